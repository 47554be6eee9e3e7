"""The report on the terminal: a table that folds to the width it has, or plain rows where nobody is looking."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlsweep.report.cells import NOT_IDENTIFIED, cells, headings
from rlsweep.report.numbers import one_line
from rlsweep.report.rows import Report
from rlsweep.report.words import sentence

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def rows(report: Report) -> Iterator[str]:
    """A header and one row a variant, separated by tabs."""
    yield "\t".join(headings(report))
    for row in report.variants:
        yield "\t".join(str(cell) for cell in cells(row))


def verdicts(report: Report, where: str) -> Iterator[str]:
    """The verdict lines with their flags, then the line that says where the pictures are."""
    for row in report.variants:
        yield sentence(row, report)
        yield from (f"  {one_line(flag)}" for flag in row.flags)
    yield where


def show(report: Report, where: str, console: "Console | None" = None) -> None:
    """Print table, verdicts and `where` the pictures are. Nothing is cut off: what is too wide is folded."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    console = console or Console(color_system=None if plain else "auto")
    console.print(_table(report, gap=0 if console.width < 90 else 1))
    console.print()
    for row in report.variants:
        console.print(Text(sentence(row, report), overflow="fold"))
        for flag in row.flags:
            console.print(Padding(Text(one_line(flag), style="yellow", overflow="fold"), (0, 0, 0, 2)))
    console.print()
    console.print(Text(where), soft_wrap=True)


def _table(report: Report, gap: int) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    found = [cells(row) for row in report.variants]
    # The box itself puts one space between columns.
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, gap, 0, 0))
    for index, heading in enumerate(headings(report)):
        words = " ".join([heading, *(str(row[index]) for row in found)]).split()
        # Numbers keep their words whole; it is the names that give way, by folding.
        table.add_column(Text(heading), overflow="fold", min_width=max(map(len, words)) if index else 8)
    for row in found:
        unknown = ["dim" if cell.value == NOT_IDENTIFIED else "" for cell in row]
        texts = (f"{cell.value}\n{cell.interval}".strip() for cell in row)
        table.add_row(*(Text(text, style=style) for text, style in zip(texts, unknown, strict=True)))
    return table

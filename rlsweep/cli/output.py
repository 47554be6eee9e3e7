"""What commands print: columns on a terminal, tab-separated rows elsewhere; in a pipe, notes don't mix with rows."""

import itertools
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from contextlib import suppress

import click

from rlsweep.report.numbers import one_line

ROOT_HELP = "Folder of runs and sweeps [default: RLSWEEP_ROOT, else ./rlsweep-out]."
_LEAST_FOLDED = 12
"""Columns are folded down to this width: that of a run's key, which never is."""


def on_terminal() -> bool:
    """Whether stdout is a terminal. It may be closed."""
    return sys.stdout is not None and sys.stdout.isatty()


def note(text: str) -> None:
    """A line for people: on stdout where that is a terminal, else on stderr. No command fails for want of a reader."""
    with suppress(OSError):
        click.echo(text, err=not on_terminal())


def print_json(found: object) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(found, ensure_ascii=False, indent=2, allow_nan=False))


def print_rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Rows of cells. No cell is ever cut: where the terminal is too narrow, a row becomes a block of lines."""
    rows = [[one_line(cell) for cell in row] for row in rows]  # names come from people
    if not on_terminal():
        for row in rows:
            click.echo("\t".join(row))
        return
    for line in layout(head, rows, shutil.get_terminal_size().columns):
        click.echo(line)


def layout(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Lines of a table: the widest columns are folded, or where that does not fit, each cell gets a line of its own."""
    if not rows:
        return []
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    room = width - 2 * (len(head) - 1)
    while sum(widths) > room:
        widest = widths.index(max(widths))
        if widths[widest] <= _LEAST_FOLDED:
            return _blocks(head, rows)
        widths[widest] -= 1
    return [*map(_emphasis, _folded(head, widths)), *(line for row in rows for line in _folded(row, widths))]


def size_text(amount: int) -> str:
    """A size in decimal units, as disks are sold."""
    value, units = float(amount), iter(("B", "kB", "MB", "GB", "TB"))
    unit = next(units)
    while value >= 1000 and unit != "TB":
        value, unit = value / 1000, next(units)
    return f"{value:.3g} {unit}"


class _Wrapper(textwrap.TextWrapper):
    """Breaks lines after commas too: names of variants have no other place."""

    wordsep_simple_re = re.compile(r"([\t\n\x0b\x0c\r ]+|(?<=,)(?=\S))")


def _folded(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    columns = [
        _Wrapper(each, break_on_hyphens=False).wrap(cell) or [""] for cell, each in zip(cells, widths, strict=True)
    ]
    lines = itertools.zip_longest(*columns, fillvalue="")
    return ["  ".join(f"{cell:<{each}}" for cell, each in zip(line, widths, strict=True)).rstrip() for line in lines]


def _blocks(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    longest = max(map(len, head))
    blocks = [[f"{name:<{longest}}  {cell}".rstrip() for name, cell in zip(head, row, strict=True)] for row in rows]
    return "\n\n".join("\n".join(block) for block in blocks).split("\n")


def _emphasis(text: str) -> str:
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain else click.style(text, bold=True)

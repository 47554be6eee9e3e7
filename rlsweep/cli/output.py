"""What commands print: columns on a terminal, tab-separated rows elsewhere; in a pipe, notes don't mix with rows."""

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence

import click

ROOT_HELP = "Folder of runs and sweeps [default: RLSWEEP_ROOT, else ./rlsweep-out]."
_LEAST_LAST = 24
"""Columns that the last cell of a row needs to be wrapped beside the others."""


def note(text: str) -> None:
    """A line for people: on stdout where that is a terminal, else on stderr."""
    click.echo(text, err=not sys.stdout.isatty())


def print_json(found: object) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(found, ensure_ascii=False, indent=2, allow_nan=False))


def print_rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Rows of cells. No cell is ever cut: where the terminal is too narrow, a row becomes a block of lines."""
    if not sys.stdout.isatty():
        for row in rows:
            click.echo("\t".join(" ".join(cell.split()) for cell in row))
        return
    for line in layout(head, rows, shutil.get_terminal_size().columns):
        click.echo(line)


def layout(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Lines of a table: the last column is wrapped, or where that does not fit, each cell gets a line of its own."""
    if not rows:
        return []
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    before = sum(widths[:-1]) + 2 * (len(head) - 1)
    if before + min(widths[-1], _LEAST_LAST) > width:
        longest = max(map(len, head))
        blocks = [[f"{name:<{longest}}  {cell}".rstrip() for name, cell in zip(head, row, strict=True)] for row in rows]
        return "\n\n".join("\n".join(block) for block in blocks).split("\n")
    lines = [_emphasis(_padded(head, widths))]
    for row in rows:
        last = textwrap.wrap(row[-1], width - before, break_long_words=False, break_on_hyphens=False) or [""]
        lines.append(_padded([*row[:-1], last[0]], widths))
        lines += [" " * before + more for more in last[1:]]
    return lines


def _padded(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def _emphasis(text: str) -> str:
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain else click.style(text, bold=True)

"""report.md: the report's words and tables as Markdown that any renderer shows the same."""

import re
from collections.abc import Iterable, Sequence

from rlsweep.report.cells import DIFFERENCE_HEADINGS, RUN_HEADINGS, cells, differences, headings, run_cells
from rlsweep.report.numbers import one_line
from rlsweep.report.rows import Report
from rlsweep.report.words import answer, sentence, standings


def to_markdown(report: Report) -> str:
    """The whole report but for its pictures."""
    lines = [f"# {_text(report.sweep)}", "", _text(answer(report)), ""]
    against = [f"- {_text(line)}" for line in standings(report)]
    lines += [f"Against {_text(report.base)}:", "", *against, ""] if against else []
    lines += _table(headings(report), ([str(cell) for cell in cells(row)] for row in report.variants))
    lines += ["", "Intervals hold 90%.", "", "## Verdicts", ""]
    for row in report.variants:
        lines.append(f"- {_text(sentence(row, report))}")
        lines += [f"  - {_text(flag)}" for flag in row.flags]
    lines += ["", "## Runs", ""]
    lines += _table(RUN_HEADINGS, (run_cells(run, report.unit) for row in report.variants for run in row.runs))
    written = [(row.name, row.samples) for row in report.variants if row.samples is not None]
    lines += ["", "## What the models wrote", ""] if written else []
    lines += [f"- {_text(name)}: `{found.command}`, in {_text(found.path)}" for name, found in written]
    lines += ["", "## Differences", ""]
    different = differences(report)
    lines += _table(DIFFERENCE_HEADINGS, different) if different else ["None."]
    lines += ["", "## How the numbers were made", ""]
    lines += [f"- {_text(what)}: {_text(how)}" for what, how in report.checklist]
    return "\n".join(lines) + "\n"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [_line(heads), _line(["---"] * len(heads), escape=False)]
    return lines + [_line(row) for row in rows]


def _line(words: Sequence[str], *, escape: bool = True) -> str:
    return f"| {' | '.join(_text(word) if escape else word for word in words)} |"


def _text(text: str) -> str:
    """Text without any power: pipes, HTML and Markdown's marks show as themselves."""
    plain = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # An underscore or an asterisk within a word or between spaces marks nothing; brackets only do before ( or :.
    plain = re.sub(r"([\\`|])", r"\\\1", plain)
    plain = re.sub(r"(?<![A-Za-z0-9])([*_~])(?=\S)|(?<=\S)([*_~])(?![A-Za-z0-9])", r"\\\g<0>", plain)
    plain = re.sub(r"\](?=[(:\[])", r"\\]", plain)
    return re.sub(r"^(#|[-+*]|\d+\.)(?=\s|$)", r"\\\1", plain).replace("://", "&#58;//").replace("$", "&#36;")

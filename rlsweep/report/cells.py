"""A variant's numbers as table cells: the same text in the terminal, Markdown and HTML."""

from collections.abc import Callable
from dataclasses import dataclass

from rlsweep.law.fit import Quantity
from rlsweep.recipe.nodes import Scalar
from rlsweep.report.numbers import UNITS, compute, number, one_line, rate
from rlsweep.report.rows import Report, RunRow, VariantRow

NOT_IDENTIFIED = "not identified"
QUANTITIES = ("A", "B", "C_mid")


@dataclass(frozen=True)
class Cell:
    """A value in words or digits, and its 90% interval (empty where there is none)."""

    value: str
    interval: str = ""

    def __str__(self) -> str:
        return f"{self.value} {self.interval}".strip()


def headings(report: Report) -> tuple[str, ...]:
    """Headings of the verdict table."""
    return ("variant", "seeds", "final pass rate", "A", "B", f"C_mid, {UNITS[report.unit]}")


def cells(row: VariantRow) -> tuple[Cell, ...]:
    """Cells of one variant, in the order of `headings`."""
    return (Cell(one_line(row.name)), Cell(seeds(row)), final(row), *(quantity(row, name) for name in QUANTITIES))


def seeds(row: VariantRow) -> str:
    """Seeds with an evaluation, of those wanted."""
    return str(row.seeds) if row.seeds == len(row.runs) else f"{row.seeds} of {len(row.runs)}"


def final(row: VariantRow) -> Cell:
    """Final pass rate of a variant."""
    if row.pass_rate is None or row.pass_rate.estimate is None:
        return Cell("no evaluation")
    return Cell(rate(row.pass_rate.estimate), interval(row.pass_rate, rate))


def quantity(row: VariantRow, name: str) -> Cell:
    """A, B, C_mid or R0: a number only where the data carry one, marked where they hardly do."""
    if row.fit is None:
        return Cell(NOT_IDENTIFIED)
    found: Quantity = getattr(row.fit, name)
    write = rate if name in ("A", "R0") else number
    if row.verdict == NOT_IDENTIFIED or found.estimate is None:
        return Cell(NOT_IDENTIFIED, interval(found, write) if name == "A" else "")
    return Cell(
        write(found.estimate) + (" (weak)" if row.verdict == "weak" and name == "A" else ""), interval(found, write)
    )


def interval(found: Quantity, write: Callable[[float], str]) -> str:
    """`[.812, .871]`"""
    return f"[{write(found.low)}, {write(found.high)}]"


RUN_HEADINGS = (
    "run",
    "variant",
    "seed",
    "state",
    "steps",
    "compute",
    "last pass rate",
    "attempts",
    "truncated",
    "interrupted",
    "lost",
)


def run_cells(run: RunRow, unit: str) -> tuple[str, ...]:
    """Cells of one run, in the order of `RUN_HEADINGS`."""
    wanted = f" of {run.wanted_steps}" if run.wanted_steps != run.step else ""
    return (
        run.key,
        one_line(run.variant),
        str(run.seed),
        one_line(f"{run.state}: {run.reason}" if run.reason and run.state != "finished" else run.state),
        f"{run.step}{wanted}",
        "none" if run.compute is None else compute(run.compute, unit),
        "none" if run.pass_rate is None else rate(run.pass_rate),
        str(run.attempts),
        "" if run.truncated is None else f"{run.truncated:.1%}",
        "" if run.interrupted is None else f"{run.interrupted:.1%}",
        compute(run.lost, unit) if run.lost else "none",
    )


DIFFERENCE_HEADINGS = ("variant", "path", "base", "value")


def differences(report: Report) -> list[tuple[str, str, str, str]]:
    """Cells of every leaf in which a variant differs, in the order of `DIFFERENCE_HEADINGS`."""
    return [
        (row.name, path, text(report.base_values[path]) if path in report.base_values else "", text(value))
        for row in report.variants
        for path, value in row.difference.items()
    ]


def text(value: Scalar) -> str:
    """A leaf as a recipe writes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return one_line(str(value))

"""One wanted run as its folder tells it: state, progress, evaluations, and what was lost on the way or is damaged."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TypeVar

from rlsweep.curves.journal import clock, from_rows
from rlsweep.errors import RlsweepError
from rlsweep.launch.status import RunStatus
from rlsweep.law.curve import Curve
from rlsweep.report import recipes
from rlsweep.report.rows import RunRow
from rlsweep.store import attempts, outcome, provenance
from rlsweep.store.attempts import Attempt
from rlsweep.store.files import describe
from rlsweep.store.journal import read_rows
from rlsweep.store.layout import RunFolder
from rlsweep.store.rows import Row

T = TypeVar("T")


def read_run(run: RunFolder, status: RunStatus, unit: str) -> RunRow:
    """The row of a run, whether it has begun or not. UsageError where `unit` is no unit of compute.

    A file that is damaged is named in `damage`, and the row is made without it.
    """
    damage: list[str] = []

    def tried(read: Callable[[], T]) -> T | None:
        try:
            return read()
        except (RlsweepError, OSError) as error:
            damage.append(describe(error).rstrip("."))
            return None

    def journal() -> tuple[list[Row], Curve]:
        rows = _rows(run.journal)
        return rows, from_rows(rows, run.journal, status.variant, status.seed, axis)

    axis = clock("samples" if unit == "steps" else unit).removeprefix("clock/")
    rows, curve = tried(journal) or ([], from_rows([], run.journal, status.variant, status.seed, axis))
    damage += [] if damage else _missing(run, status, rows)
    attempted = tried(partial(attempts.every, run)) or []
    lost = [tried(partial(_lost, attempt, rows, unit)) or 0.0 for attempt in attempted]
    for read in (partial(recipes.leaves, run.recipe), partial(outcome.read, run)):
        tried(read)
    damage += provenance.every(run)[1]
    evaluations = [row for row in rows if row["kind"] == "evaluation"]
    return RunRow(
        key=status.run_key,
        variant=status.variant,
        seed=status.seed,
        state=status.state,
        reason=status.reason,
        step=max((row["step"] for row in rows), default=status.step if damage else 0),
        wanted_steps=status.total,
        attempts=len(attempted),
        curve=_in_steps(curve) if unit == "steps" else curve,
        compute=max((value for row in rows if (value := _compute(row, unit)) is not None), default=None),
        lost=sum(lost),
        sizes=tuple(dict.fromkeys((len(row["counts"]), row["samples"]) for row in evaluations)),
        truncated=_truncated(rows),
        interrupted=_last(rows, "evaluation/interrupted"),
        most_truncated=_most_truncated(rows),
        verifier_errors=_verifier_errors(rows),
        marks={row["step"]: _mark(row) for row in evaluations if 0 < sum(row["counts"]) < _responses(row)},
        damage=tuple(dict.fromkeys(damage)),
    )


def _rows(path: Path) -> list[Row]:
    return [row for row in read_rows(path) if row.get("kind") in ("step", "evaluation")]


def _missing(run: RunFolder, status: RunStatus, rows: Sequence[Row]) -> list[str]:
    """Rows that the journal must have had once, told from how the run ended."""
    if status.state == "running":  # it may have been taken back to a checkpoint while we looked
        return []
    step = max((row["step"] for row in rows), default=0)
    if step < status.step:
        return [f"{run.journal}: ends at step {step}, but the run had reached step {status.step}; rows are missing"]
    measured = max((row["step"] for row in rows if row["kind"] == "evaluation"), default=-1)
    if status.state == "finished" and measured < step:
        return [f"{run.journal}: a finished run ends with an evaluation, the one at step {step} is missing"]
    return []


def _in_steps(curve: Curve) -> Curve:
    assert curve.steps is not None
    return replace(curve, unit="steps", compute=curve.steps)


def _compute(row: Row, unit: str) -> float | None:
    value = row["step"] if unit == "steps" else row["metrics"].get(f"clock/{unit}")
    return None if value is None or not math.isfinite(value) else float(value)


def _lost(attempt: Attempt, kept: Sequence[Row], unit: str) -> float:
    """Compute from the last kept row before those that an attempt took back to the end of these."""
    taken_back = _rows(attempt.discarded)
    if not taken_back:
        return 0.0
    first = min(row["step"] for row in taken_back)
    before = [value for row in kept if row["step"] < first and (value := _compute(row, unit)) is not None]
    values = [value for row in taken_back if (value := _compute(row, unit)) is not None]
    return max(0.0, max(values, default=0.0) - max(before, default=0.0))


def _last(rows: Sequence[Row], name: str) -> float | None:
    """The newest value of a metric, None where it was never written or isn't finite."""
    values = [float(row["metrics"][name]) for row in rows if name in row["metrics"]]
    return values[-1] if values and math.isfinite(values[-1]) else None


def _truncated(rows: Sequence[Row]) -> float | None:
    """The larger of the last evaluation's share and the mean share in training since the evaluation before it."""
    evaluated = [row["step"] for row in rows if row["kind"] == "evaluation"]
    since = evaluated[-2] if len(evaluated) > 1 else 0
    recent = [row["metrics"].get("train/truncated", math.nan) for row in rows if row["step"] >= since]
    training = [float(share) for share in recent if math.isfinite(share)]
    evaluation = _last(rows, "evaluation/truncated")
    shares = ([] if evaluation is None else [evaluation]) + ([fmean(training)] if training else [])
    return max(shares, default=None)


def _most_truncated(rows: Sequence[Row]) -> float | None:
    """The largest share of an evaluation, or mean share in training from one evaluation to the next."""
    shares: list[float] = []
    training: list[float] = []
    for row in rows:
        share = row["metrics"].get("train/truncated", math.nan)
        training += [share] if math.isfinite(share) else []
        if row["kind"] == "evaluation" or row is rows[-1]:
            share = row["metrics"].get("evaluation/truncated", math.nan)
            shares += [share] if math.isfinite(share) else []
            shares += [fmean(training)] if training else []
            training = []
    return max(shares, default=None)


def _verifier_errors(rows: Sequence[Row]) -> int:
    names = ("train/verifier_errors", "evaluation/verifier_errors")
    counts = [row["metrics"].get(name, 0) for row in rows for name in names]
    return int(sum(count for count in counts if math.isfinite(count)))


def _responses(row: Row) -> int:
    return len(row["counts"]) * int(row["samples"])


def _mark(row: Row) -> int:
    """Equal where two evaluations are: the successes of each prompt, and what was measured of the responses."""
    measured = [row["metrics"].get(f"evaluation/{name}") for name in ("response_tokens", "truncated", "interrupted")]
    return hash((tuple(row["counts"]), row["samples"], *measured))

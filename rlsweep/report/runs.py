"""One wanted run as its folder tells it: state, progress, evaluations, and what was lost on the way."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from rlsweep.curves.journal import from_run
from rlsweep.launch.status import RunStatus
from rlsweep.law.curve import Curve
from rlsweep.report.rows import RunRow
from rlsweep.store import attempts
from rlsweep.store.journal import read_rows
from rlsweep.store.layout import RunFolder


def read_run(run: RunFolder, status: RunStatus, unit: str) -> RunRow:
    """The row of a run, whether it has begun or not. RlsweepError where a file is damaged."""
    rows = read_rows(run.journal)
    tries = attempts.every(run)
    return RunRow(
        key=status.run_key,
        variant=status.variant,
        seed=status.seed,
        state=status.state,
        reason=status.reason,
        step=max((row["step"] for row in rows), default=0),
        wanted_steps=status.total,
        attempts=len(tries),
        curve=_curve(run, status, unit),
        compute=max((value for row in rows if (value := _compute(row, unit)) is not None), default=None),
        lost=sum(_span(read_rows(attempt.discarded), rows, unit) for attempt in tries),
        sizes=tuple(
            dict.fromkeys(
                (len(row.get("counts") or ()), int(row.get("samples") or 0))
                for row in rows
                if row["kind"] == "evaluation"
            )
        ),
        truncated=_truncated(rows),
        interrupted=_last(rows, "evaluation/interrupted"),
    )


def _curve(run: RunFolder, status: RunStatus, unit: str) -> Curve:
    if unit != "steps":
        return from_run(run, status.variant, status.seed, unit)
    curve = from_run(run, status.variant, status.seed, "samples")
    assert curve.steps is not None
    return replace(curve, unit=unit, compute=curve.steps)


def _compute(row: dict[str, Any], unit: str) -> float | None:
    value = row["step"] if unit == "steps" else row["metrics"].get(f"clock/{unit}")
    return None if value is None or not math.isfinite(value) else float(value)


def _span(taken_back: Sequence[dict[str, Any]], kept: Sequence[dict[str, Any]], unit: str) -> float:
    """Compute from the last kept row before the discarded ones to the end of the discarded ones."""
    if not taken_back:
        return 0.0
    first = min(row["step"] for row in taken_back)
    before = [value for row in kept if row["step"] < first and (value := _compute(row, unit)) is not None]
    values = [value for row in taken_back if (value := _compute(row, unit)) is not None]
    return max(0.0, max(values, default=0.0) - max(before, default=0.0))


def _last(rows: Sequence[dict[str, Any]], name: str) -> float | None:
    """The newest value of a metric, None where it was never written or isn't finite."""
    values = [float(row["metrics"][name]) for row in rows if name in row["metrics"]]
    return values[-1] if values and math.isfinite(values[-1]) else None


def _truncated(rows: Sequence[dict[str, Any]]) -> float | None:
    """The larger of the last evaluation's share and the mean share in training since the evaluation before it."""
    evaluated = [row["step"] for row in rows if row["kind"] == "evaluation"]
    since = evaluated[-2] if len(evaluated) > 1 else 0
    recent = [row["metrics"].get("train/truncated", math.nan) for row in rows if row["step"] >= since]
    training = [float(share) for share in recent if math.isfinite(share)]
    evaluation = _last(rows, "evaluation/truncated")
    shares = ([] if evaluation is None else [evaluation]) + ([fmean(training)] if training else [])
    return max(shares, default=None)

"""The curve of a run from its journal: pass rates of the evaluations against a clock."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlsweep.errors import UsageError
from rlsweep.law.curve import Curve
from rlsweep.store.journal import read_rows
from rlsweep.store.layout import RunFolder
from rlsweep.store.metrics import METRICS


def from_run(run: RunFolder, name: str, seed: int | None, unit: str) -> Curve:
    """The evaluations so far; a run still going or not yet begun is fine. Compute is the metric `clock/<unit>`, 0 at
    step 0.

    Raises UsageError where `unit` is no clock, or an evaluation has no reading of it."""
    clock = f"clock/{unit}"
    if clock not in METRICS:
        clocks = sorted(metric.removeprefix("clock/") for metric in METRICS if metric.startswith("clock/"))
        raise UsageError(f"{unit!r} is not a unit of compute; choose one of {', '.join(clocks)}")
    rows = read_rows(run.journal)
    # a journal may keep the clocks with the steps alone
    at_step = {row["step"]: row["metrics"] for row in rows if row["kind"] == "step"}
    points = []
    for row in rows:
        if row["kind"] == "evaluation":
            step = row["step"]
            compute = 0.0 if step == 0 else row["metrics"].get(clock, at_step.get(step, {}).get(clock))
            if compute is None or not np.isfinite(compute):
                raise UsageError(f"{run.journal}: the evaluation at step {step} has no {clock}")
            points.append((float(compute), *_pass_rate(row, run), float(step)))
    points.sort(key=lambda point: (point[0], point[3]))
    columns = np.array(points, dtype=float).reshape(-1, 4).T
    return Curve(name, seed, unit, columns[0], columns[1], columns[2], columns[3])


def _pass_rate(row: dict[str, Any], run: RunFolder) -> tuple[float, float]:
    """Pass rate and its sampling variance: from the counts where there are any, else from the metric, variance
    unknown."""
    if row.get("counts"):
        return pass_rate_of(row["counts"], row["samples"])
    rate = row["metrics"].get("evaluation/pass_rate", np.nan)
    if not 0 <= rate <= 1:
        raise UsageError(
            f"{run.journal}: the evaluation at step {row['step']} has neither counts nor a pass rate in [0, 1]"
        )
    return float(rate), float("nan")


def pass_rate_of(counts: Sequence[int], samples: int) -> tuple[float, float]:
    """Mean pass rate of n prompts with k `samples` each, and the unbiased variance of it given the prompts.

    sum_i k / (k - 1) p_i (1 - p_i) / (k n^2): prompts differ, so this is less than p (1 - p) / (k n). With one sample
    a prompt that bound is all there is, and it is returned."""
    shares = np.asarray(counts, dtype=float) / samples
    n, rate = len(shares), float(shares.mean())
    if samples < 2:
        return rate, rate * (1 - rate) / n
    return rate, float((shares * (1 - shares)).sum() / ((samples - 1) * n**2))

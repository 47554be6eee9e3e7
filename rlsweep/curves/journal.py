"""The curve of a run from its journal: pass rates of the evaluations against a clock."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rlsweep.errors import RlsweepError, UsageError
from rlsweep.law.curve import LARGEST_COMPUTE, Curve
from rlsweep.store.journal import read_rows
from rlsweep.store.layout import RunFolder
from rlsweep.store.metrics import METRICS
from rlsweep.store.rows import Row


def from_run(run: RunFolder, name: str, seed: int | None, unit: str) -> Curve:
    """The evaluations of a run's journal so far, as `from_rows` gives them; not yet begun is fine. RlsweepError where
    the journal is damaged."""
    return from_rows(read_rows(run.journal), run.journal, name, seed, unit)


def clock(unit: str) -> str:
    """The metric that counts compute in `unit`. UsageError where there is none."""
    name = f"clock/{unit}"
    if name not in METRICS:
        clocks = sorted(metric.removeprefix("clock/") for metric in METRICS if metric.startswith("clock/"))
        raise UsageError(f"{unit!r} is not a unit of compute; choose one of {', '.join(clocks)}")
    return name


def from_rows(rows: Sequence[Row], source: Path, name: str, seed: int | None, unit: str) -> Curve:
    """The evaluations among the rows of the journal `source`. Compute is the metric `clock/<unit>`, 0 at step 0.

    One that was made off the schedule, at the end of a budget, counts as long as it is the last: so a run whose budget
    was raised has the curve it would have had with that budget from the start.

    Raises UsageError where `unit` is no clock, or an evaluation has no reading of it; RlsweepError where its counts
    can't be counts of its samples."""
    metric = clock(unit)
    evaluations = [row for row in rows if row.get("kind") == "evaluation"]
    points = []
    for row in evaluations:
        step = row["step"]
        if not _is_counted(row):
            raise RlsweepError(f"{source}: the evaluation at step {step} has no counts from 0 to its samples")
        if row.get("off_schedule") and row is not evaluations[-1]:
            continue
        compute = 0.0 if step == 0 else row["metrics"].get(metric, np.nan)
        if not 0 <= compute <= LARGEST_COMPUTE:
            raise UsageError(f"{source}: the evaluation at step {step} has no {metric}")
        points.append((float(compute), *pass_rate_of(row["counts"], row["samples"]), float(step)))
    points.sort(key=lambda point: (point[0], point[3]))
    columns = np.array(points, dtype=float).reshape(-1, 4).T
    return Curve(name, seed, unit, columns[0], columns[1], columns[2], columns[3])


def _is_counted(row: Row) -> bool:
    counts, samples = row.get("counts"), row.get("samples")
    return (
        isinstance(samples, int)
        and isinstance(counts, list)
        and bool(counts)
        and all(isinstance(count, int) and 0 <= count <= samples for count in counts)
        and samples > 0
    )


def pass_rate_of(counts: Sequence[int], samples: int) -> tuple[float, float]:
    """Mean pass rate of n prompts with k `samples` each, and the unbiased variance of it given the prompts.

    sum_i k / (k - 1) p_i (1 - p_i) / (k n^2): prompts differ, so this is less than p (1 - p) / (k n). With one sample
    a prompt that bound is all there is, and it is returned. Where all responses were right or all wrong, counts alone
    would say there is no noise: it is then that of a flat prior on the pass rate (Beta(1, 1))."""
    shares = np.asarray(counts, dtype=float) / samples
    n, rate = len(shares), float(shares.mean())
    responses = n * samples
    if rate in (0.0, 1.0):
        likely = (sum(counts) + 1) / (responses + 2)
        return rate, likely * (1 - likely) / (responses + 3)
    if samples < 2:
        return rate, rate * (1 - rate) / n
    return rate, float((shares * (1 - shares)).sum() / ((samples - 1) * n**2))

"""The pass rate that the seeds of a variant ended with, and how sure it is."""

from collections.abc import Sequence

import numpy as np

from rlsweep.law.curve import Curve
from rlsweep.law.fit import Quantity
from rlsweep.law.noise import SEED_SD_CEILING

PRIOR_SEEDS = 3
"""The assumed seed sd counts like the spread of so many more seeds: that of two or three alone is useless."""


def common_step(curves: Sequence[Curve]) -> int | None:
    """The last step at which every curve with points has one; None where there is no such step."""
    steps = [{int(step) for step in curve.steps} for curve in curves if curve.steps is not None and len(curve.steps)]
    return max(set.intersection(*steps), default=None) if steps else None


def final_pass_rate(curves: Sequence[Curve], step: int | None) -> Quantity | None:
    """Mean over seeds of the evaluation at `step`, with a 90% interval; None where no curve has it.

    Variance of the mean over n seeds: sum of sampling variances / n^2 + seed variance / n. The seed variance is the
    spread between seeds beyond sampling, averaged with the assumed sd of .01 counted as PRIOR_SEEDS seeds; the interval
    takes Student's t with as many degrees of freedom. With one seed it is the assumed sd alone.
    """
    from scipy.special import stdtrit

    found = [_at(curve, step) for curve in curves if curve.steps is not None and step in curve.steps]
    if not found:
        return None
    seeds = len(found)
    rates, variances = (np.array(column) for column in zip(*found, strict=True))
    mean, sampling = float(rates.mean()), float(variances.sum())
    beyond = max(0.0, float(((rates - mean) ** 2).sum()) - (seeds - 1) * sampling / seeds)
    freedom = PRIOR_SEEDS + seeds - 1
    seed_variance = (PRIOR_SEEDS * SEED_SD_CEILING**2 + beyond) / freedom
    half = float(stdtrit(freedom, 0.95)) * (sampling / seeds**2 + seed_variance / seeds) ** 0.5
    return Quantity(mean, max(0.0, mean - half), min(1.0, mean + half))


def _at(curve: Curve, step: int | None) -> tuple[float, float]:
    """Pass rate and sampling variance at a step."""
    assert curve.steps is not None
    index = int(np.flatnonzero(curve.steps == step)[-1])
    return float(curve.pass_rate[index]), float(curve.variance[index])

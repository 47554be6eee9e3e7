"""Compare two fitted variants: their ceilings, and the compute each needs to reach the same pass rate."""

from dataclasses import dataclass

import numpy as np

from rlsweep.law.fit import Fit, Quantity, quantity
from rlsweep.law.sigmoid import compute_to_reach, pass_rate

_FARTHEST = 40.0  # draws that need more than this many times the largest compute are counted as needing that much


@dataclass(frozen=True)
class Comparison:
    """`other` against `base`.

    difference          A of other less A of base
    probability_higher  that other's A is the higher one
    target              the common pass rate; None where base has none to offer (no gain, or a decline)
    ratio               compute of other to reach the target, as a multiple of base's; None where other doesn't reach it
    probability_faster  that other needs less compute to the target; None with ratio
    identified          both ceilings are, so that the difference may be shown
    verdict             one sentence, in words"""

    base: str
    other: str
    difference: Quantity
    probability_higher: float
    target: float | None
    ratio: Quantity | None
    probability_faster: float | None
    identified: bool
    verdict: str


def compare(base: Fit, other: Fit) -> Comparison:
    """Compare two fits of the same unit of compute, by pairs of independent draws.

    The target is base's fitted pass rate at its largest compute less 2 sd of it, so that base surely reached it. Other
    does not reach it where even the 95% quantile of its own, at its own largest compute, lies below. Raises ValueError
    for different units."""
    if base.unit != other.unit:
        raise ValueError(f"can't compare compute in {base.unit} with compute in {other.unit}")
    # fits made with one seed share their random numbers: shuffled, their draws are independent
    rng = np.random.default_rng(1)
    n = min(len(base.draws), len(other.draws))
    ours, theirs = rng.permutation(base.draws)[:n], rng.permutation(other.draws)[:n]
    difference = theirs[:, 0] - ours[:, 0]

    target = _target(base)
    ratio = faster = None
    if target is not None and not other.declines and float(other.predict(other.window[1])[2][0]) >= target:
        pairs = [
            np.clip(compute_to_reach(target, *draws.T), 1e-6 * fit.window[1], _FARTHEST * fit.window[1])
            for draws, fit in ((ours, base), (theirs, other))
        ]
        ratio = quantity(pairs[1] / pairs[0])
        faster = float(np.mean(pairs[1] < pairs[0]))
    identified = base.verdict == other.verdict == "identified"
    shown = quantity(difference)
    return Comparison(
        base=base.name,
        other=other.name,
        difference=shown,
        probability_higher=float(np.mean(difference > 0)),
        target=target,
        ratio=ratio,
        probability_faster=faster,
        identified=identified,
        verdict=f"{_ceiling(base, other, shown, identified)}; {_speed(base, other, target, ratio)}.",
    )


def _target(base: Fit) -> float | None:
    at_end = pass_rate(base.window[1], *base.draws.T)
    target = float(np.median(at_end) - 2 * at_end.std())
    start = base.R0.estimate if base.R0.estimate is not None else 1.0
    gained = target > start + 2 * base.noise
    return target if gained and not base.declines and base.window[1] > 0 else None


def _ceiling(base: Fit, other: Fit, difference: Quantity, identified: bool) -> str:
    if not identified:
        which = " and ".join(f"{f.name} is {_state(f)}" for f in (base, other) if f.verdict != "identified")
        return f"the ceilings can't be compared ({which})"
    low, high = difference.low, difference.high
    size = f"{difference.estimate:+.3f} [{low:+.3f}, {high:+.3f}]"
    if low > 0:
        return f"{other.name} has a higher ceiling than {base.name}, A {size}"
    if high < 0:
        return f"{other.name} has a lower ceiling than {base.name}, A {size}"
    return f"{other.name} and {base.name} don't differ in their ceiling, A {size}"


def _state(fit: Fit) -> str:
    return "only weakly identified" if fit.verdict == "weak" else fit.verdict


def _speed(base: Fit, other: Fit, target: float | None, ratio: Quantity | None) -> str:
    if target is None:
        return f"{base.name} sets no pass rate to reach"
    if ratio is None:
        return f"{other.name} does not reach {target:.3f}"
    size = f"{ratio.estimate:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
    end = "" if ratio.low > 1 or ratio.high < 1 else ", no clear difference"
    return f"{other.name} reaches {target:.3f} at {size} times the compute{end}"

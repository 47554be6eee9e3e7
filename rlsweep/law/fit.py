"""Fit the law to the curves of one variant: parameters with 90% intervals, a verdict, flags, predictions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from rlsweep.law.curve import Curve
from rlsweep.law.flags import curve_flags, declines, dips, gate, lack_of_fit
from rlsweep.law.noise import SEED_SD_CEILING, noise_sd, stack
from rlsweep.law.plan import TARGET_WIDTH, more_compute
from rlsweep.law.posterior import posterior
from rlsweep.law.sigmoid import gain_share, pass_rate

Verdict = Literal["identified", "weak", "not identified"]

WEAK_WIDTH = 0.20
"""Of the 90% interval of A; wider, and the ceiling is not identified."""
_ONE = 0.99  # an interval of A that ends above this reaches 1


@dataclass(frozen=True)
class Quantity:
    """Posterior median and the 5% and 95% quantiles. The estimate is None where none may be given."""

    estimate: float | None
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Fit:
    """The law fitted to the seeds of one variant.

    A, B, C_mid, R0 keep their numbers whatever the verdict; who shows them decides. C_mid, `window` (smallest and
    largest compute) and `more_compute` refer to compute in `unit`.

    phi           posterior median of the share of the gain A - R0 made at the largest compute
    noise         sd of one evaluation, sampling and training wander
    more_compute  times today's compute that would bring the 90% width of A to .06; 1 where it is so; None if unknown
    draws         (n, 4) from the joint posterior, in the order A, B, C_mid, R0"""

    name: str
    unit: str
    verdict: Verdict
    A: Quantity
    B: Quantity
    C_mid: Quantity
    R0: Quantity
    phi: float
    noise: float
    flags: tuple[str, ...]
    declines: bool
    points: int
    seeds: int
    window: tuple[float, float]
    more_compute: float | None
    draws: np.ndarray

    def predict(self, compute: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(median, 5%, 95%) of the variant's pass rate at each compute, each (n,). The band is of the mean curve: a
        single new evaluation adds its own noise."""
        x = np.atleast_1d(np.asarray(compute, dtype=float))
        A, B, C_mid, R0 = (self.draws[:, k, None] for k in range(4))
        low, middle, high = np.quantile(pass_rate(x, A, B, C_mid, R0), [0.05, 0.5, 0.95], axis=0)
        return middle, low, high


def quantity(values: np.ndarray) -> Quantity:
    """Median and 90% interval of draws, (n,)."""
    low, middle, high = (float(v) for v in np.quantile(values, [0.05, 0.5, 0.95]))
    return Quantity(middle, low, high)


def fit(curves: Curve | Sequence[Curve], *, draws: int = 2000, seed: int = 0) -> Fit:
    """Fit one law to one curve or to the seeds of one variant, pooled: shared A, B, C_mid, R0, with seeds' own offsets.

    The same data and `seed` give the same numbers, in whatever order the curves come. Too little data is no error:
    the verdict is "not identified" and the intervals are wide. Raises ValueError for no curve at all, or curves in
    different units."""
    given = [curves] if isinstance(curves, Curve) else list(curves)
    if not given or not all(isinstance(c, Curve) for c in given):
        raise ValueError("fit needs a Curve or a sequence of at least one Curve")
    if len({c.unit for c in given}) > 1:
        raise ValueError(f"curves have different units of compute: {', '.join(sorted({c.unit for c in given}))}")
    if draws < 1:
        raise ValueError(f"draws must be at least 1, got {draws}")
    ordered = sorted(given, key=lambda c: (c.seed is None, c.seed or 0, c.pass_rate.tobytes(), c.compute.tobytes()))

    computes = np.concatenate([c.compute for c in ordered])
    window = (float(computes.min()), float(computes.max())) if len(computes) else (0.0, 0.0)
    scale = window[1] or 1.0
    result = posterior(stack(ordered, scale), draws, np.random.default_rng(seed))
    sample = result.draws * [1.0, 1.0, scale, 1.0]
    A, B, C_mid, R0 = (quantity(column) for column in sample.T)
    noise = float(np.hypot(noise_sd(ordered), result.tau))

    falls = any(declines(c) for c in ordered)
    sound = gate(ordered) and not falls and not any(dips(c) for c in ordered)
    width = A.high - A.low
    verdict: Verdict = "not identified"
    if sound and width <= WEAK_WIDTH:
        verdict = "identified" if width <= TARGET_WIDTH else "weak"

    more = None
    if verdict == "identified":
        more = 1.0
    elif sound:
        longest = max(len(c.compute) for c in ordered)
        more = more_compute(sample, scale, noise, longest, len(ordered), SEED_SD_CEILING * result.seed_scale)
    return Fit(
        name=ordered[0].name,
        unit=ordered[0].unit,
        verdict=verdict,
        A=A,
        B=B,
        C_mid=C_mid,
        R0=R0,
        phi=float(np.median(gain_share(window[1], sample[:, 1], sample[:, 2]))),
        noise=noise,
        flags=_flags(ordered, sample, A, C_mid, window, result.seed_scale),
        declines=falls,
        points=len(computes),
        seeds=len(ordered),
        window=window,
        more_compute=more,
        draws=sample,
    )


def _flags(
    curves: Sequence[Curve],
    draws: np.ndarray,
    A: Quantity,
    C_mid: Quantity,
    window: tuple[float, float],
    seed_scale: float,
) -> tuple[str, ...]:
    flags = curve_flags(curves)
    if A.high > _ONE:
        flags.append("The interval of A reaches 1, the most a pass rate can be.")
    trained = [c.compute[c.compute > 0].min() for c in curves if (c.compute > 0).any()]
    if trained and C_mid.estimate is not None and not min(trained) <= C_mid.estimate <= window[1]:
        flags.append("C_mid lies outside the observed compute.")
    if seed_scale > 1:
        flags.append(f"The seeds differ: about {seed_scale:.0f} times the usual spread between seeds is allowed for.")
    columns = [draws[:, k, None] for k in range(4)]
    misfit = lack_of_fit(curves, [np.median(pass_rate(c.compute, *columns), axis=0) for c in curves])
    if misfit:
        flags.append(misfit)
    return tuple(flags)

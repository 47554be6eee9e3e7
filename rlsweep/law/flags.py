"""What is wrong with a curve, as plain sentences, and the gates a fit must pass before its ceiling is believed."""

from collections.abc import Sequence

import numpy as np

from rlsweep.law.curve import Curve
from rlsweep.law.noise import SEED_SD_CEILING, WANDER, local_sd, noise_sd, sampling_variance

FEWEST_POINTS = 10
RISE_IN_SD = 10.0
_NO_GAIN_IN_SD = 3.0
_ONLY_RISES = "the law only rises, so a fit through this is not to be believed"


def rise(curves: Sequence[Curve]) -> float:
    """Mean over seeds of: last three evaluations less the first one."""
    rises = [float(c.pass_rate[-3:].mean() - c.pass_rate[0]) for c in curves if len(c.pass_rate) > 1]
    return float(np.mean(rises)) if rises else 0.0


def gate(curves: Sequence[Curve]) -> bool:
    """Whether there is enough to identify anything: 10 evaluations in a curve and a rise of 10 sd of one evaluation."""
    longest = max((len(c.compute) for c in curves), default=0)
    return longest >= FEWEST_POINTS and rise(curves) >= RISE_IN_SD * noise_sd(curves)


def declines(curve: Curve) -> str | None:
    """A sentence when the pass rate ends well below its best: smoothed peak less last three > max(.03, 4 sd) and
    its own swing. Of fewer than five evaluations: best less last > max(.06, 6 sd)."""
    if len(curve.pass_rate) < 2:
        return None
    few = len(curve.pass_rate) < 5
    smooth = curve.pass_rate if few else _smooth(curve)
    peak, last = float(smooth.max()), float(smooth[-1])
    sd = _sampling_sd(curve)
    if peak - last <= (max(0.06, 6 * sd) if few else max(0.03, 4 * sd, _swing(curve))):
        return None
    gained = peak - float(curve.pass_rate[0])
    word = "collapses" if peak - last > 0.5 * max(gained, 0.06) else "declines"
    return f"{_whose(curve)} {word}: the pass rate falls from {peak:.2f} to {last:.2f} by the end; {_ONLY_RISES}."


def dips(curve: Curve) -> str | None:
    """The same on the way, of a run that came back: smoothed peak so far less smoothed rate > max(.06,
    5 sd) and its own swing."""
    if len(curve.pass_rate) < 5 or declines(curve):
        return None
    smooth = _smooth(curve)
    best = np.maximum.accumulate(smooth)
    low = int((best - smooth).argmax())
    if best[low] - smooth[low] <= max(0.06, 5 * _sampling_sd(curve), _swing(curve)):
        return None
    fall = f"from {best[low]:.2f} to {smooth[low]:.2f}"
    return f"{_whose(curve)} dips: the pass rate falls {fall} on the way; {_ONLY_RISES}."


def _spikes(curve: Curve) -> str | None:
    if len(curve.pass_rate) < 5:
        return None
    drop = -np.diff(curve.pass_rate)
    if drop.max() <= max(0.06, 5 * _sampling_sd(curve), _swing(curve)):
        return None
    return f"{_whose(curve)} drops by {drop.max():.2f} between two evaluations."


def _smooth(curve: Curve) -> np.ndarray:
    """Means of three evaluations in a row."""
    return np.convolve(curve.pass_rate, np.ones(3) / 3, mode="valid")


def _swing(curve: Curve) -> float:
    """How far wander alone may carry five evaluations or more down: 2.3 sqrt(2 ln n) sd of the smoothed rate.
    (The extremes of n normal values lie about 2 sqrt(2 ln n) sd apart.)

    The sd is by how far smoothed rates lie off the middle of two others, a 16th of the curve (at most 8 evaluations)
    before and after. It is a median, so that the fall looked for doesn't count, and no more than the noise model has.
    """
    smooth = _smooth(curve)
    lag = min(max(len(smooth) // 16, 1), 8)
    off = smooth[lag:-lag] - (smooth[: -2 * lag] + smooth[2 * lag :]) / 2
    seen = float(np.median(np.abs(off))) / (0.6745 * 1.5**0.5)
    sd = min(seen, np.hypot(_sampling_sd(curve), max(WANDER)))
    return float(2.3 * np.sqrt(2 * np.log(len(curve.pass_rate))) * sd)


def _sampling_sd(curve: Curve) -> float:
    """Noise sd that isn't raised by the very jumps looked for: from counts where they are known, else from
    neighbours."""
    known = np.isfinite(curve.variance)
    return float(np.sqrt(np.median(sampling_variance(curve)[0]))) if known.any() else noise_sd([curve])


def _whose(curve: Curve) -> str:
    return "The run" if curve.seed is None else f"Seed {curve.seed}"


def curve_flags(curves: Sequence[Curve]) -> list[str]:
    """Flags that need no fit."""
    flags = [f for check in (declines, dips, _spikes) for f in map(check, curves) if f]
    longest = max((len(c.compute) for c in curves), default=0)
    if longest < FEWEST_POINTS:
        flags.append(f"Few points: {longest} evaluations in the longest curve, at least {FEWEST_POINTS} are needed.")
    in_sd = rise(curves) / noise_sd(curves)
    if in_sd < RISE_IN_SD:
        size, limit = ("No", _NO_GAIN_IN_SD) if in_sd < _NO_GAIN_IN_SD else ("Small", RISE_IN_SD)
        flags.append(
            f"{size} gain: the pass rate rises by less than {limit:.0f} standard deviations of one evaluation."
        )
    if len(curves) == 1:
        flags.append(f"One seed: the spread between seeds is assumed ({SEED_SD_CEILING:.2f} in A), not measured.")
    return flags


def lack_of_fit(curves: Sequence[Curve], fitted: Sequence[np.ndarray]) -> str | None:
    """A sentence when the points lie further from the law than noise explains (rms more than 2.5 times its sd). Each
    seed's own mean offset is taken out first: seeds may differ."""
    squares, expected = [], []
    for curve, line in zip(curves, fitted, strict=True):
        if len(curve.compute) < 5 or local_sd(curve) is None:
            continue
        residual = curve.pass_rate - line
        squares.append(float(np.mean((residual - residual.mean()) ** 2)))
        expected.append(noise_sd([curve]) ** 2)
    ratio = np.sqrt(np.mean(squares) / np.mean(expected)) if squares else 0.0
    if ratio <= 2.5:
        return None
    return f"Lack of fit: the points lie {ratio:.1f} times further from the law than noise explains."

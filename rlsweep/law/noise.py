"""What an evaluation adds to the law: sampling noise of known or guessed size, training wander, and the seed's own
offsets.

Covariance of the points i of seed s and j of seed t, of S seeds:

    [s = t] (D_i [i = j]  +  tau^2 rho^|i-j|)  +  ([s = t] - 1/S) k^2 (.01^2 g_i g_j  +  .08^2 h_i h_j)

D is the sampling variance, g the share of the gain made, h = dR / d log C_mid. The evaluation at compute 0 has no
wander. tau, rho and, where D is unknown, its scale are summed over the small grids below; k is judged first, from the
differences between seeds. The seeds' effects sum to 0: the variance k^2 / S of their mean is added to A and log C_mid
after the fit."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from rlsweep.law.curve import Curve

SEED_SD_CEILING = 0.01  # arXiv 2510.13786: three seeds of one recipe had ceilings within +-.015
SEED_SD_LOG_C_MID = 0.08

WANDER = {0.0: 0.2, 0.003: 0.25, 0.006: 0.3, 0.012: 0.2, 0.024: 0.05}  # sd tau -> prior weight
CORRELATION = {0.5: 0.5, 0.85: 0.5}  # rho -> prior weight
SEED_SCALE = {1.0: 0.8, 2.0: 0.08, 3.0: 0.06, 5.0: 0.04, 10.0: 0.02}  # k -> prior weight; one seed stays at 1
UNKNOWN_SCALE = {0.6: 0.25, 1.0: 0.5, 1.7: 0.25}  # of the sd, where the sampling variance isn't known

_SD_FLOOR = 0.001  # counts that are all 0 or all k have an estimated variance of 0: no evaluation is that exact
_GUESS_SD, _GUESS_WEIGHT = 0.01, 4  # prior guess of an unknown sd, worth this many second differences


@dataclass(frozen=True)
class Hypotheses:
    """Noise hypotheses, arrays of shape (H,): tau, rho, the scale of unknown sds, and the log prior weight."""

    tau: np.ndarray
    rho: np.ndarray
    scale: np.ndarray
    log_prior: np.ndarray

    def take(self, index: np.ndarray) -> "Hypotheses":
        """The hypotheses at `index`."""
        return Hypotheses(self.tau[index], self.rho[index], self.scale[index], self.log_prior[index])


@dataclass(frozen=True)
class Points:
    """The evaluations of all seeds, one after the other, arrays of shape (points,); `first` marks the first after
    compute 0."""

    log_compute: np.ndarray  # log(compute / largest compute); -inf at 0
    pass_rate: np.ndarray
    variance: np.ndarray
    known: np.ndarray
    seed: np.ndarray
    first: np.ndarray
    seeds: int

    def matched(self) -> "Points":
        """The evaluations up to the compute that every seed has reached; none where a seed has no evaluation."""
        ends = [self.log_compute[self.seed == s].max(initial=-np.inf) for s in range(self.seeds)]
        seen = len(np.unique(self.seed)) == self.seeds
        keep = (self.log_compute <= min(ends)) & seen
        return Points(
            self.log_compute[keep],
            self.pass_rate[keep],
            self.variance[keep],
            self.known[keep],
            self.seed[keep],
            self.first[keep],
            self.seeds,
        )


def local_sd(curve: Curve) -> float | None:
    """Noise sd of one evaluation from second differences: how far points lie off the line between their neighbours in
    log compute, by the median, so that a spike doesn't count. None with fewer than 5 points after compute 0."""
    trained = curve.compute > 0
    if trained.sum() < 5:
        return None
    x, y = np.log(curve.compute[trained]), curve.pass_rate[trained]
    span = x[2:] - x[:-2]
    left = np.where(span > 0, (x[2:] - x[1:-1]) / np.where(span > 0, span, 1), 0.5)
    off = y[1:-1] - left * y[:-2] - (1 - left) * y[2:]
    return float(np.median(np.abs(off) / np.sqrt(1 + left**2 + (1 - left) ** 2)) / 0.6745)


def sampling_variance(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    """Variance of each point and whether it is known; the unknown get a guess from second differences, drawn to sd
    .01."""
    known = np.isfinite(curve.variance)
    local, differences = local_sd(curve), max(int((curve.compute > 0).sum()) - 2, 0)
    if local is None:
        local, differences = 0.0, 0
    guess = (_GUESS_WEIGHT * _GUESS_SD**2 + differences * local**2) / (_GUESS_WEIGHT + differences)
    typical = float(np.median(curve.variance[known])) if known.any() else 0.0
    variance = np.where(known, np.maximum(curve.variance, max(0.25 * typical, _SD_FLOOR**2)), guess)
    return variance, known


def noise_sd(curves: Sequence[Curve]) -> float:
    """Typical sd of one evaluation, sampling and short-term wander: the larger of what counts say and what neighbours
    show."""
    sds = []
    for curve in curves:
        if len(curve.compute):
            local = local_sd(curve)
            sampling = float(np.sqrt(np.median(sampling_variance(curve)[0])))
            sds.append(sampling if local is None else max(sampling, local))
    return float(np.median(sds)) if sds else _GUESS_SD


def stack(curves: Sequence[Curve], scale: float) -> Points:
    """The points of all curves, compute divided by `scale` (the largest compute)."""
    columns: list[tuple[np.ndarray, ...]] = []
    for number, curve in enumerate(curves):
        variance, known = sampling_variance(curve)
        first = np.zeros(len(known), dtype=bool)
        first[np.flatnonzero(curve.compute > 0)[:1]] = True
        with np.errstate(divide="ignore"):
            log_compute = np.log(curve.compute / scale)
        columns.append((log_compute, curve.pass_rate, variance, known, np.full(len(known), number), first))
    log_computes, rates, variances, knowns, seeds, firsts = (
        np.concatenate(parts) for parts in zip(*columns, strict=True)
    )
    return Points(log_computes, rates, variances, knowns, seeds, firsts, len(curves))


def hypotheses(points: Points) -> Hypotheses:
    """The grid over tau, rho and the scale of unknown variances, with prior weights."""
    rows = []
    scales = UNKNOWN_SCALE if not points.known.all() else {1.0: 1.0}
    for (tau, w_tau), (rho, w_rho), (scale, w_scale) in product(WANDER.items(), CORRELATION.items(), scales.items()):
        if tau > 0:
            rows.append((tau, rho, scale, np.log(w_tau * w_rho * w_scale)))
        elif rho == min(CORRELATION):
            rows.append((0.0, 0.0, scale, np.log(w_tau * w_scale)))
    return Hypotheses(*np.array(rows).T)

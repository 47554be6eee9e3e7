"""How much more compute would identify the ceiling: sd(A) = s K(phi, N), the Cramer-Rao bound of the law."""

import numpy as np
from scipy.special import logit

from rlsweep.law.sigmoid import gain_share

TARGET_WIDTH = 0.06  # of the 90% interval of A
WIDTH_IN_SD = 2 * 1.645

# sd of A in units of the noise sd of one evaluation, by share of the gain seen (phi) and evaluations (N), evenly spaced
_PHI = np.array([0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98])
_N = np.array([20.0, 40.0, 80.0])
_K = np.array(
    [
        [69, 17.5, 9.8, 5.6, 3.0, 2.2, 1.5, 0.9, 0.6],
        [52, 13.3, 7.4, 4.2, 2.3, 1.6, 1.1, 0.65, 0.4],
        [38, 9.7, 5.4, 3.1, 1.7, 1.2, 0.8, 0.5, 0.3],
    ]
)
_FARTHEST = 32.0  # times today's compute; a plan beyond it is no plan


def sd_factor(phi: np.ndarray, n: np.ndarray) -> np.ndarray:
    """K(phi, N), interpolated in log K over logit phi and log N. Beyond N = 20 .. 80 it goes as 1/sqrt(N); phi is
    clipped to the table's .3 .. .98. Arguments broadcast."""
    phi, n = np.broadcast_arrays(np.asarray(phi, dtype=float), np.asarray(n, dtype=float))
    x = logit(np.clip(phi, _PHI[0], _PHI[-1]))
    rows = np.stack([np.interp(x, logit(_PHI), np.log(row)) for row in _K])
    inside = np.log(np.clip(n, _N[0], _N[-1]) / _N[0]) / np.log(2)
    low = np.minimum(inside.astype(int), 1)
    share = inside - low
    below, above = np.take_along_axis(rows, low[None], 0)[0], np.take_along_axis(rows, low[None] + 1, 0)[0]
    return np.asarray(np.exp(below + share * (above - below)) * np.sqrt(np.clip(n, _N[0], _N[-1]) / n))


def more_compute(
    draws: np.ndarray, largest: float, noise: float, points: int, seeds: int, seed_sd: float
) -> float | None:
    """Times today's compute at which the 90% interval of A would be TARGET_WIDTH wide; None where that can't be said.

    draws (n, 4) of A, B, C_mid, R0; `largest` compute; `noise` sd of one evaluation; `points` of one curve; `seed_sd`
    of A. The answer is the median over the draws. None when less than .3 of the gain has been seen, when the spread
    of so few seeds is wider than the target alone, or when it takes more than 32 times."""
    budget = (TARGET_WIDTH / WIDTH_IN_SD) ** 2 - seed_sd**2 / seeds
    phi = gain_share(largest, draws[:, 1], draws[:, 2])
    if budget <= 0 or points < 1 or np.median(phi) < _PHI[0]:
        return None
    # the bound assumes the noise is all there is: where the posterior is wider than it says, it is scaled up to the
    # posterior
    now = sd_factor(np.median(phi), np.asarray(points))
    width = np.quantile(draws[:, 0], 0.95) - np.quantile(draws[:, 0], 0.05)
    fit_sd = np.sqrt(max((width / WIDTH_IN_SD) ** 2 - seed_sd**2 / seeds, 0.0))
    noise = max(noise / np.sqrt(seeds), float(fit_sd / now))
    times = np.geomspace(1, _FARTHEST, 61)
    later = gain_share(largest * times[None, :], draws[:, 1, None], draws[:, 2, None])
    enough = (noise * sd_factor(later, points * times[None, :]) <= np.sqrt(budget)) & (later >= _PHI[0])
    first = np.where(enough.any(axis=1), times[enough.argmax(axis=1)], np.inf)
    answer = float(np.median(first))
    return answer if np.isfinite(answer) else None

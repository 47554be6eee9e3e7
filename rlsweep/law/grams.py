"""Gram products of the law's columns under each noise hypothesis: all that the data say, given C_mid and B.

The columns of a cell (C_mid, B) are 1, the gain share g and h = B g (1 - g), the slope of g against -log C_mid; y is
the data. Each is whitened by a scalar Kalman filter of the wander, whose gains don't depend on the cell: linear in
points, exact."""

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from rlsweep.law.noise import SEED_SD_CEILING, SEED_SD_LOG_C_MID, Hypotheses, Points
from rlsweep.law.triangle import Cells, mode

_RIDGE = 1e-3  # a prior of sd 30 on R0 and A, flat on [0, 1]: keeps cells that see neither of them solvable


@dataclass(frozen=True)
class Grams:
    """Inner products under the inverse of (sampling + wander): (seeds, H, 1) without g or h, (seeds, H, cells) with."""

    one_one: np.ndarray
    one_y: np.ndarray
    y_y: np.ndarray
    one_g: np.ndarray
    g_g: np.ndarray
    g_y: np.ndarray
    one_h: np.ndarray
    g_h: np.ndarray
    h_h: np.ndarray
    h_y: np.ndarray
    log_det: np.ndarray  # (H, 1), of the covariance of all points


def grams(points: Points, noise: Hypotheses, log_c_mid: np.ndarray, log_b: np.ndarray) -> Grams:
    """Whiten and multiply, one point at a time. `log_c_mid` and `log_b` have shape (cells,)."""
    tau2, rho, scale2 = noise.tau[:, None] ** 2, noise.rho[:, None], noise.scale[:, None] ** 2
    count, cells = len(noise.tau), len(log_b)
    narrow = {name: np.zeros((points.seeds, count, 1)) for name in ("one_one", "one_y", "y_y")}
    wide = {name: np.zeros((points.seeds, count, cells)) for name in
            ("one_g", "g_g", "g_y", "one_h", "g_h", "h_h", "h_y")}  # fmt: skip
    log_det = np.zeros((count, 1))
    slope = np.exp(log_b)
    means: list[np.ndarray] = []
    p = tau2
    for i in range(len(points.pass_rate)):
        g_row = expit(slope * (points.log_compute[i] - log_c_mid))
        row = [np.ones((1, 1)), np.full((1, 1), points.pass_rate[i]), g_row[None], (slope * g_row * (1 - g_row))[None]]
        variance = points.variance[i] * (1.0 if points.known[i] else scale2)
        if np.isneginf(points.log_compute[i]):
            total = variance + np.zeros((count, 1))
            white = [x / np.sqrt(total) for x in row]
        else:
            if points.first[i]:
                means, p = [np.zeros((count, 1))] * 4, tau2
            total = p + variance
            errors = [x - m for x, m in zip(row, means, strict=True)]
            gain = p / total
            means = [rho * (m + gain * e) for m, e in zip(means, errors, strict=True)]
            p = rho**2 * p * (1 - gain) + (1 - rho**2) * tau2
            root = np.sqrt(total)
            white = [e / root for e in errors]
        one, y, g, h = white
        s = points.seed[i]
        log_det += np.log(total)
        narrow["one_one"][s] += one * one
        narrow["one_y"][s] += one * y
        narrow["y_y"][s] += y * y
        wide["one_g"][s] += one * g
        wide["g_g"][s] += g * g
        wide["g_y"][s] += g * y
        wide["one_h"][s] += one * h
        wide["g_h"][s] += g * h
        wide["h_h"][s] += h * h
        wide["h_y"][s] += h * y
    return Grams(**narrow, **wide, log_det=log_det)


def _reduce(q: Grams, k: float, gain: np.ndarray | float) -> tuple[Cells, np.ndarray]:
    """Add the seed effects of scale `k` (Woodbury, rank 2 a seed); `gain` is A - R0 in the effect of log C_mid.

    Returns the Gaussian in (R0, A) and the log density's constant, shape (H, cells)."""
    a, c = k * SEED_SD_CEILING, k * SEED_SD_LOG_C_MID * gain
    m00, m01, m11 = 1 + a * a * q.g_g, a * c * q.g_h, 1 + c * c * q.h_h
    det = m00 * m11 - m01 * m01
    one, g, y = (a * q.one_g, c * q.one_h), (a * q.g_g, c * q.g_h), (a * q.g_y, c * q.h_y)

    def less(x: tuple[np.ndarray, np.ndarray], z: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        return np.asarray((m11 * x[0] * z[0] - m01 * (x[0] * z[1] + x[1] * z[0]) + m00 * x[1] * z[1]) / det)

    one_one, one_g, g_g = q.one_one - less(one, one), q.one_g - less(one, g), q.g_g - less(g, g)
    one_y, g_y, y_y = q.one_y - less(one, y), q.g_y - less(g, y), q.y_y - less(y, y)
    cells = Cells(
        p00=(one_one - 2 * one_g + g_g).sum(axis=0) + _RIDGE,
        p01=(one_g - g_g).sum(axis=0),
        p11=g_g.sum(axis=0) + _RIDGE,
        b0=(one_y - g_y).sum(axis=0) + 0.5 * _RIDGE,
        b1=g_y.sum(axis=0) + 0.5 * _RIDGE,
    )
    constant = -0.5 * (y_y.sum(axis=0) + np.log(det).sum(axis=0) + q.log_det)
    return cells, constant


def gaussians(q: Grams, seed_scales: tuple[float, ...]) -> tuple[Cells, np.ndarray]:
    """For each seed scale, hypothesis and cell: the Gaussian in (R0, A) and the log density's constant, (scales, H,
    cells).

    The effect of a seed's log C_mid is first-order; its gain is the cell's best one without that effect."""
    without, _ = _reduce(q, 1.0, 0.0)
    R0, A, _ = mode(without)
    parts = [_reduce(q, k, A - R0) for k in seed_scales]
    cells = Cells(*(np.stack([getattr(c, name) for c, _ in parts]) for name in ("p00", "p01", "p11", "b0", "b1")))
    return cells, np.stack([constant for _, constant in parts])

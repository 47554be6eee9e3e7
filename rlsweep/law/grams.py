"""Gram products of the law's columns under each noise hypothesis: all that the data say, given C_mid and B. From them
the Gaussian of (R0, A).

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


def best_gain(q: Grams) -> np.ndarray:
    """A - R0 of each hypothesis and cell at its best, without effects of log C_mid, (H, cells)."""
    R0, A, _ = mode(gaussians(q, 1.0, 0.0)[0])
    return np.asarray(A - R0)


def gaussians(q: Grams, k: float, gain: np.ndarray | float) -> tuple[Cells, np.ndarray]:
    """The Gaussian in (R0, A) of each hypothesis and cell with seed effects of scale `k`, and the log density's
    constant, shape (H, cells). The effect of a seed's log C_mid is first-order; `gain` is A - R0 in it.

    The effects are contrasts: over the seeds those in A sum to 0, and so do those in log C_mid, since what all seeds
    have in common is the law's (or its misfit), not theirs. Their covariance is that of independent effects less that
    of their mean: Woodbury of rank 2 a seed, then of rank 2 back. With one seed nothing is left."""
    a, c = k * SEED_SD_CEILING, k * SEED_SD_LOG_C_MID * gain
    m00, m01, m11 = 1 + a * a * q.g_g, a * c * q.g_h, 1 + c * c * q.h_h
    det = m00 * m11 - m01 * m01
    i00, i01, i11 = m11 / det, -m01 / det, m00 / det
    n00, n01, n11 = (i.mean(axis=0) for i in (i00, i01, i11))
    n_det = n00 * n11 - n01 * n01
    effects = {"one": (a * q.one_g, c * q.one_h), "g": (a * q.g_g, c * q.g_h), "y": (a * q.g_y, c * q.h_y)}
    solved = {x: (i00 * u + i01 * v, i01 * u + i11 * v) for x, (u, v) in effects.items()}
    means = {x: (u.mean(axis=0), v.mean(axis=0)) for x, (u, v) in solved.items()}

    def product(x: str, z: str, plain: np.ndarray) -> np.ndarray:
        own = sum((e * t).sum(axis=0) for e, t in zip(effects[x], solved[z], strict=True))
        (x0, x1), (z0, z1) = means[x], means[z]
        common = (n11 * x0 * z0 - n01 * (x0 * z1 + x1 * z0) + n00 * x1 * z1) / n_det
        return np.asarray(plain.sum(axis=0) - own + len(det) * common)

    one_one, one_g, g_g = product("one", "one", q.one_one), product("one", "g", q.one_g), product("g", "g", q.g_g)
    one_y, g_y, y_y = product("one", "y", q.one_y), product("g", "y", q.g_y), product("y", "y", q.y_y)
    cells = Cells(
        p00=one_one - 2 * one_g + g_g + _RIDGE,
        p01=one_g - g_g,
        p11=g_g + _RIDGE,
        b0=one_y - g_y + 0.5 * _RIDGE,
        b1=g_y + 0.5 * _RIDGE,
    )
    constant = -0.5 * (y_y + np.log(det).sum(axis=0) + np.log(n_det) + q.log_det)
    return cells, constant

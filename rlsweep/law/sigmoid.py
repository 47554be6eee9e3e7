"""The law itself: R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B)   (arXiv 2510.13786, equation 1)."""

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit


def gain_share(compute: ArrayLike, B: ArrayLike, C_mid: ArrayLike) -> np.ndarray:
    """Share of the gain A - R0 made after `compute`: 1 / (1 + (C_mid / C)^B), in [0, 1], exactly 0 at compute 0.

    Arguments broadcast; `compute` and `C_mid` in one unit, B > 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(expit(np.asarray(B) * (np.log(np.asarray(compute, dtype=float)) - np.log(C_mid))))


def pass_rate(compute: ArrayLike, A: ArrayLike, B: ArrayLike, C_mid: ArrayLike, R0: ArrayLike) -> np.ndarray:
    """Pass rate after `compute`: exactly R0 at 0, half of the gain at C_mid, A in the limit. Arguments broadcast."""
    return np.asarray(np.asarray(R0) + (np.asarray(A) - np.asarray(R0)) * gain_share(compute, B, C_mid))


def compute_to_reach(target: float, A: ArrayLike, B: ArrayLike, C_mid: ArrayLike, R0: ArrayLike) -> np.ndarray:
    """Compute at which the law reaches `target`: C_mid ((T - R0) / (A - T))^(1/B); 0 where R0 >= T, inf where A <=
    T."""
    A, B, C_mid, R0 = np.broadcast_arrays(A, B, C_mid, R0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        compute = C_mid * ((target - R0) / (A - target)) ** (1 / B)
    return np.where(target <= R0, 0.0, np.where(target >= A, np.inf, compute))

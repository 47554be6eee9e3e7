"""The posterior of (A, B, C_mid, R0): summed over a grid of (log C_mid, log B) and the noise hypotheses, then drawn
from exactly."""

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from rlsweep.law import triangle
from rlsweep.law.grams import gaussians, grams
from rlsweep.law.noise import SEED_SCALE, Hypotheses, Points, hypotheses

B_MEDIAN, B_LOG_SD = 1.6, 0.65
C_MID_RANGE = 0.02, 40.0  # times the largest compute

PRIORS = (
    "log B ~ Normal(log 1.6, .65); C_mid log-uniform between .02 and 40 times the largest compute; (R0, A) uniform on "
    "0 <= R0 <= A <= 1; training wander of sd 0 to .024 with correlation .5 or .85 between evaluations; between seeds "
    "an sd of .01 in A and .08 in log C_mid, with two or more seeds also 3 (prior weight .15) or 10 times (.05) that"
)

_COARSE, _FINE = (28, 20), (36, 28)  # cells along log C_mid and log B
_ZOOMS = 8
_ENOUGH = 8.0  # effective cells that a grid must see before it is trusted
_BEST = 16  # cells kept by a zoom until then
_TAIL = 2e-5  # posterior mass a zoom may leave out at each side


@dataclass(frozen=True)
class _Box:
    """A rectangle of (log C_mid, log B) cut in cells; `c` and `b` are the centres of all cells, (cells,)."""

    low: tuple[float, float]
    high: tuple[float, float]
    shape: tuple[int, int]

    @property
    def size(self) -> tuple[float, float]:
        return (self.high[0] - self.low[0]) / self.shape[0], (self.high[1] - self.low[1]) / self.shape[1]

    def centres(self) -> tuple[np.ndarray, np.ndarray]:
        axes = [self.low[k] + self.size[k] * (np.arange(self.shape[k]) + 0.5) for k in (0, 1)]
        c, b = np.meshgrid(*axes, indexing="ij")
        return c.ravel(), b.ravel()


_WHOLE = _Box(
    (np.log(C_MID_RANGE[0]), np.log(B_MEDIAN) - 3.2 * B_LOG_SD),
    (np.log(C_MID_RANGE[1]), np.log(B_MEDIAN) + 3.2 * B_LOG_SD),
    _COARSE,
)


@dataclass(frozen=True)
class Posterior:
    """Draws (n, 4) in the order A, B, C_mid, R0, C_mid in units of the largest compute; posterior means of tau and
    seed scale."""

    draws: np.ndarray
    tau: float
    seed_scale: float


def log_weights(
    points: Points,
    noise: Hypotheses,
    seed_scales: dict[float, float],
    c: np.ndarray,
    b: np.ndarray,
    own: tuple[np.ndarray, np.ndarray] | None = None,
) -> tuple[np.ndarray, triangle.Cells]:
    """Unnormalised log posterior and Gaussian of every (seed scale, noise hypothesis, cell), shape (scales, H, cells).

    With `own`, the seed scale and hypothesis of each cell, only those: shape (cells,)."""
    cells, constant = gaussians(grams(points, noise, c, b), tuple(seed_scales))
    scales = np.log(np.array(list(seed_scales.values())))[:, None, None]
    constant = constant + scales + noise.log_prior[:, None] - 0.5 * ((b - np.log(B_MEDIAN)) / B_LOG_SD) ** 2
    if own is not None:
        index = (*own, np.arange(len(c)))
        cells, constant = cells.take(index), constant[index]
    return constant + triangle.log_mass(cells), cells


def posterior(points: Points, draws: int, rng: np.random.Generator) -> Posterior:
    """Zoom until the grid resolves the posterior, then draw.

    A draw picks a cell and its noise by their weight, a place in the cell by the density there, and (R0, A) from the
    cut Gaussian of that place: nothing is left of the grid."""
    seed_scales = SEED_SCALE if points.seeds > 1 else {1.0: 1.0}
    noise, box = hypotheses(points), _WHOLE
    for zoom in range(_ZOOMS):
        c, b = box.centres()
        logs, _ = log_weights(points, noise, seed_scales, c, b)
        weights = np.exp(logs - logsumexp(logs))
        resolved = box.shape == _FINE and 1 / (weights.sum(axis=(0, 1)) ** 2).sum() >= _ENOUGH
        if resolved or zoom == _ZOOMS - 1:
            break
        box, settled = _zoom(box, logsumexp(logs, axis=(0, 1)))
        if settled:
            kept = weights.sum(axis=(0, 2)) > 1e-4
            noise = noise.take(np.flatnonzero(kept))
            scale_weights = weights.sum(axis=(1, 2))
            seed_scales = {k: w for (k, w), own in zip(seed_scales.items(), scale_weights, strict=True) if own > 1e-4}

    # twice as many places as draws, evenly within cells drawn by weight; then the density at the place against its
    # cell's
    number = 2 * draws
    flat = _systematic(weights.ravel(), number, rng)
    scale, hypothesis, cell = np.unravel_index(flat, weights.shape)
    c = c[cell] + box.size[0] * (rng.random(number) - 0.5)
    b = b[cell] + box.size[1] * (rng.random(number) - 0.5)
    at_place, cells = log_weights(points, noise, seed_scales, c, b, own=(scale, hypothesis))
    kept = _systematic(np.exp(np.minimum(at_place - logs.ravel()[flat], 3.0)), draws, rng)
    R0, A = triangle.draw(cells.take(kept), rng)
    return Posterior(
        draws=np.column_stack([A, np.exp(b[kept]), np.exp(c[kept]), R0]),
        tau=float(np.sqrt(weights.sum(axis=(0, 2)) @ noise.tau**2)),
        seed_scale=float(weights.sum(axis=(1, 2)) @ np.array(list(seed_scales))),
    )


def _zoom(box: _Box, log_cells: np.ndarray) -> tuple[_Box, bool]:
    """The part of `box` that holds the mass, with a margin, and whether the grid saw enough cells to be believed.

    Where the posterior is narrower than the cells, so that its top may lie between centres, the best cells are kept
    instead."""
    weights = np.exp(log_cells - logsumexp(log_cells))
    settled = bool(1 / (weights**2).sum() >= _ENOUGH)
    margin = 1 if settled else 2
    if not settled:
        best = np.argsort(log_cells)[-_BEST:]
        weights = np.zeros_like(weights)
        weights[best] = 1 / _BEST
    table = weights.reshape(box.shape)
    low, high = [], []
    for k in (0, 1):
        cdf = np.cumsum(table.sum(axis=1 - k))
        first, last = int(np.searchsorted(cdf, _TAIL)), min(int(np.searchsorted(cdf, 1 - _TAIL)), box.shape[k] - 1)
        low.append(max(box.low[k] + box.size[k] * (first - margin), _WHOLE.low[k]))
        high.append(min(box.low[k] + box.size[k] * (last + 1 + margin), _WHOLE.high[k]))
    return _Box((low[0], low[1]), (high[0], high[1]), _FINE if settled else _COARSE), settled


def _systematic(weights: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """`draws` indices in proportion to `weights`, evenly spaced through their sum (less noise than independent ones),
    shuffled."""
    cdf = np.cumsum(weights)
    picks = np.searchsorted(cdf, (np.arange(draws) + rng.random()) / draws * cdf[-1], side="right")
    return rng.permutation(np.minimum(picks, len(weights) - 1))

"""The posterior of (A, B, C_mid, R0): summed over a grid of (log C_mid, log B) and the noise hypotheses, then drawn
from exactly."""

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp, ndtr, ndtri

from rlsweep.law import triangle
from rlsweep.law.grams import best_gain, gaussians, grams
from rlsweep.law.noise import SEED_SCALE, SEED_SD_CEILING, SEED_SD_LOG_C_MID, Hypotheses, Points, hypotheses

B_MEDIAN, B_LOG_SD = 1.6, 0.65
C_MID_RANGE = 0.02, 40.0  # times the largest compute

PRIORS = (
    "log B ~ Normal(log 1.6, .65); C_mid log-uniform between .02 and 40 times the largest compute; (R0, A) uniform on "
    "0 <= R0 <= A <= 1; training wander of sd 0 to .024 with correlation .5 or .85 between evaluations; between seeds "
    "an sd of .01 in A and .08 in log C_mid, with two or more seeds also 2 (prior weight .08), 3 (.06), 5 (.04) or 10 "
    "times (.02) that, judged only from what the seeds don't have in common"
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
    """Draws (n, 4) in the order A, B, C_mid, R0, C_mid in units of the largest compute; posterior mean of tau and
    median of the seed scale."""

    draws: np.ndarray
    tau: float
    seed_scale: float


@dataclass(frozen=True)
class _Grid:
    """A box with its noise hypotheses and the unnormalised log posterior of each hypothesis and cell, (H, cells)."""

    box: _Box
    noise: Hypotheses
    logs: np.ndarray


def log_weights(
    points: Points, noise: Hypotheses, seed_scale: float, c: np.ndarray, b: np.ndarray, own: np.ndarray | None = None
) -> tuple[np.ndarray, triangle.Cells]:
    """Unnormalised log posterior and Gaussian of every noise hypothesis and cell, shape (H, cells).

    With `own`, the hypothesis of each cell, only that: shape (cells,)."""
    q = grams(points, noise, c, b)
    cells, constant = gaussians(q, seed_scale, best_gain(q))
    constant = constant + noise.log_prior[:, None] - 0.5 * ((b - np.log(B_MEDIAN)) / B_LOG_SD) ** 2
    if own is not None:
        index = (own, np.arange(len(c)))
        cells, constant = cells.take(index), constant[index]
    return constant + triangle.log_mass(cells), cells


def seed_scale_weights(points: Points, c: float, b: float) -> np.ndarray:
    """Posterior weights of SEED_SCALE at one cell, where the law fits best, (scales,).

    Only evaluations up to the compute that every seed has reached are used. There the law and its misfit are common to
    all seeds, so that the effects, which sum to 0, are judged by the differences between seeds alone."""
    noise, place = hypotheses(points), (np.array([c]), np.array([b]))
    gain = best_gain(grams(points, noise, *place))
    q = grams(points.matched(), noise, *place)
    logs = []
    for k, weight in SEED_SCALE.items():
        cells, constant = gaussians(q, k, gain)
        logs.append(np.log(weight) + logsumexp(noise.log_prior[:, None] + constant + triangle.log_mass(cells)))
    return np.asarray(np.exp(logs - logsumexp(logs)))


def posterior(points: Points, draws: int, rng: np.random.Generator) -> Posterior:
    """Fit with the usual spread of seeds, judge the spread, fit again where it is wider, then draw.

    The draws are of the law of the seeds at hand. The variant's own differs from it by the mean of the seeds' effects,
    which their curves can't show and which is added last."""
    scales = np.array(list(SEED_SCALE))
    seed_scale, scale_weights = 1.0, np.eye(len(scales))[0]
    grid = _settle(points, seed_scale)
    if points.seeds > 1:
        best = int(logsumexp(grid.logs, axis=0).argmax())
        c, b = (float(x[best]) for x in grid.box.centres())
        scale_weights = seed_scale_weights(points, c, b)
        seed_scale = float(scales[np.searchsorted(np.cumsum(scale_weights), 0.5)])
        if seed_scale > 1:
            grid = _settle(points, seed_scale)

    A, log_b, log_c, R0 = _draw(points, grid, seed_scale, draws, rng)
    spread = scales[_systematic(scale_weights, draws, rng)] / np.sqrt(points.seeds)
    A = _normal_within(A, SEED_SD_CEILING * spread, R0, rng)
    log_c = log_c + SEED_SD_LOG_C_MID * spread * rng.standard_normal(draws)
    return Posterior(
        draws=np.column_stack([A, np.exp(log_b), np.exp(log_c), R0]),
        tau=float(np.sqrt(np.exp(grid.logs - logsumexp(grid.logs)).sum(axis=1) @ grid.noise.tau**2)),
        seed_scale=seed_scale,
    )


def _draw(
    points: Points, grid: _Grid, seed_scale: float, draws: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A, log B, log C_mid and R0, each (draws,).

    A draw picks a cell and its noise by their weight, a place in the cell by the density there, and (R0, A) from the
    cut Gaussian of that place: nothing is left of the grid. There are twice as many places as draws, evenly within
    cells drawn by weight; each is kept by the density there against its cell's."""
    box, number = grid.box, 2 * draws
    flat = _systematic(np.exp(grid.logs - logsumexp(grid.logs)).ravel(), number, rng)
    hypothesis, cell = np.unravel_index(flat, grid.logs.shape)
    c, b = (x[cell] + size * (rng.random(number) - 0.5) for x, size in zip(box.centres(), box.size, strict=True))
    at_place, cells = log_weights(points, grid.noise, seed_scale, c, b, own=hypothesis)
    kept = _systematic(np.exp(np.minimum(at_place - grid.logs.ravel()[flat], 3.0)), draws, rng)
    R0, A = triangle.draw(cells.take(kept), rng)
    return A, b[kept], c[kept], R0


def _settle(points: Points, seed_scale: float) -> _Grid:
    """Zoom until the grid resolves the posterior."""
    noise, box = hypotheses(points), _WHOLE
    for zoom in range(_ZOOMS):
        logs, _ = log_weights(points, noise, seed_scale, *box.centres())
        weights = np.exp(logs - logsumexp(logs))
        resolved = box.shape == _FINE and 1 / (weights.sum(axis=0) ** 2).sum() >= _ENOUGH
        if resolved or zoom == _ZOOMS - 1:
            break
        box, settled = _zoom(box, logsumexp(logs, axis=0))
        if settled:
            noise = noise.take(np.flatnonzero(weights.sum(axis=1) > 1e-4))
    return _Grid(box, noise, logs)


def _normal_within(centre: np.ndarray, sd: np.ndarray, low: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One draw from each normal, cut to [low, 1]; its centre lies within. Arguments have shape (draws,)."""
    bottom, top = ndtr((low - centre) / sd), ndtr((1 - centre) / sd)
    return np.asarray(np.clip(centre + sd * ndtri(bottom + rng.random(len(centre)) * (top - bottom)), low, 1))


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

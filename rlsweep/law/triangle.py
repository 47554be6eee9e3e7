"""A Gaussian in (R0, A) cut to the triangle 0 <= R0 <= A <= 1, for many cells at once.

With C_mid, B and the noise given, the law is linear in (R0, A), so their posterior is exp(-x'Px/2 + b'x) on the
triangle. R0 is integrated in closed form (a difference of error functions) and A by Gauss-Legendre quadrature over
the part of [0, 1] that holds the mass; where the limits of R0 are out of reach A is closed form too. All arrays in
`Cells` have the same shape."""

from dataclasses import dataclass

import numpy as np
from scipy.special import erf, erfcx, log_ndtr, ndtri_exp

_DROP = 14.0  # the log density falls by this much at the ends of the range integrated over: 5.3 sd of a Gaussian
_HALVINGS = 10
_FREE = 6.0  # sd of R0 given A from both its limits at which these no longer matter
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_STEPS = 97  # points of the distribution function of A from which draws are made


@dataclass(frozen=True)
class Cells:
    """The Gaussian of each cell: precision (p00, p01, p11) and linear term (b0, b1) in the order (R0, A)."""

    p00: np.ndarray
    p01: np.ndarray
    p11: np.ndarray
    b0: np.ndarray
    b1: np.ndarray

    def expand(self) -> "Cells":
        """The same with an axis added at the end, to broadcast against several values of A a cell."""
        return Cells(*(x[..., None] for x in (self.p00, self.p01, self.p11, self.b0, self.b1)))

    def take(self, index: np.ndarray | tuple[np.ndarray, ...]) -> "Cells":
        """The cells at `index`."""
        return Cells(*(x[index] for x in (self.p00, self.p01, self.p11, self.b0, self.b1)))


def _profile(cells: Cells, A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Best R0 in [0, A] and the log density there."""
    R0 = np.clip((cells.b0 - cells.p01 * A) / cells.p00, 0, A)
    return R0, R0 * (cells.b0 - 0.5 * cells.p00 * R0 - cells.p01 * A) + A * (cells.b1 - 0.5 * cells.p11 * A)


def mode(cells: Cells) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(R0, A, log density) at the highest point of each triangle.

    The log density maximised over R0 is concave in A and smooth, and quadratic on each of three stretches (R0 inside,
    at 0, at A): its top is one of the three stationary points or an end."""
    c = cells
    candidates = [
        (c.b1 - c.p01 * c.b0 / c.p00) / _schur(c),
        c.b1 / c.p11,
        (c.b0 + c.b1) / np.maximum(c.p00 + 2 * c.p01 + c.p11, 1e-12),
        np.zeros_like(c.b0),
        np.ones_like(c.b0),
    ]
    best_R0, best_A, best = np.zeros_like(c.b0), np.zeros_like(c.b0), np.full_like(c.b0, -np.inf)
    for candidate in candidates:
        A = np.clip(candidate, 0, 1)
        R0, value = _profile(c, A)
        better = value > best
        best_R0, best_A, best = (
            np.where(better, R0, best_R0),
            np.where(better, A, best_A),
            np.where(better, value, best),
        )
    return best_R0, best_A, best


def _schur(cells: Cells) -> np.ndarray:
    """Precision of A with R0 integrated out: the smallest curvature of the profile anywhere."""
    return np.asarray(np.maximum(cells.p11 - cells.p01**2 / cells.p00, 1e-12 * cells.p11))


def _range(cells: Cells, A: np.ndarray, top: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The stretch of [0, 1] around the mode `A` outside of which the profile lies more than _DROP below `top`."""
    reach = np.sqrt(2 * _DROP / _schur(cells))
    ends = []
    for limit in (np.maximum(A - reach, 0), np.minimum(A + reach, 1)):
        inner, outer = A, limit
        for _ in range(_HALVINGS):
            middle = 0.5 * (inner + outer)
            inside = _profile(cells, middle)[1] > top - _DROP
            inner, outer = np.where(inside, middle, inner), np.where(inside, outer, middle)
        # bisection never tests the limit itself: a profile that is still high there keeps it as its end
        ends.append(np.where(_profile(cells, limit)[1] > top - _DROP, limit, outer))
    return ends[0], ends[1]


def _edges(cells: Cells, A: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """R0 given A: the centre and root precision of its Gaussian, and 0 and A in its standard units."""
    root = np.sqrt(cells.p00)
    centre = (cells.b0 - cells.p01 * A) / cells.p00
    return centre, root, -centre * root, (A - centre) * root


def _log_interval(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Log of the integral of exp(-x^2/2) over [low, high], relative to its highest value there."""
    low, high = np.where(low + high < 0, -high, low), np.where(low + high < 0, -low, high)
    # erf where the interval holds 0; beyond it scaled erfc, which leaves out exp(-low^2/2)
    tail = np.maximum(low, 0)
    scaled = erfcx(tail / np.sqrt(2)) - np.exp(0.5 * (tail**2 - high**2)) * erfcx(high / np.sqrt(2))
    mass = np.where(low > 0, scaled, erf(high / np.sqrt(2)) - erf(low / np.sqrt(2)))
    return np.asarray(np.log(np.maximum(mass, 1e-300)) + 0.5 * np.log(np.pi / 2))


def _log_density(cells: Cells, A: np.ndarray) -> np.ndarray:
    """Log of the density of A with R0 integrated over [0, A]; the scale is that of exp(-x'Px/2 + b'x)."""
    _, root, low, high = _edges(cells, A)
    return np.asarray(_profile(cells, A)[1] + _log_interval(low, high) - np.log(root))


def log_mass(cells: Cells) -> np.ndarray:
    """Log of the integral of exp(-x'Px/2 + b'x) over the triangle."""
    _, A, top = mode(cells)
    low, high = _range(cells, A, top)
    out = np.empty_like(top)

    ends = [_edges(cells, end)[2:] for end in (low, high)]
    free = np.maximum(ends[0][0], ends[1][0]) < -_FREE
    free &= np.minimum(ends[0][1], ends[1][1]) > _FREE
    c = cells.take(free)
    root = np.sqrt(_schur(c))
    centre = (c.b1 - c.p01 * c.b0 / c.p00) / root**2
    out[free] = (
        top[free] + _log_interval(-centre * root, (1 - centre) * root) + 0.5 * np.log(2 * np.pi / c.p00) - np.log(root)
    )

    c, low, high, top = cells.take(~free), low[~free], high[~free], top[~free]
    half = 0.5 * (high - low)
    values = _log_density(c.expand(), (low + half)[:, None] + half[:, None] * _NODES)
    out[~free] = top + np.log(np.maximum((np.exp(values - top[:, None]) @ _WEIGHTS) * half, 1e-300))
    return out


def draw(cells: Cells, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """One (R0, A) from each of the cells, shape (cells,): A by its tabulated distribution function, then R0 given A."""
    _, A, top = mode(cells)
    low, high = _range(cells, A, top)
    grid = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, _STEPS)
    density = np.exp(_log_density(cells.expand(), grid) - top[:, None])
    cdf = np.concatenate([np.zeros((len(A), 1)), np.cumsum(density[:, 1:] + density[:, :-1], axis=1)], axis=1)
    level = rng.random(len(A)) * cdf[:, -1]
    step = np.clip((cdf <= level[:, None]).sum(axis=1) - 1, 0, _STEPS - 2)
    rows = np.arange(len(A))
    below, above = cdf[rows, step], cdf[rows, step + 1]
    share = np.clip((level - below) / np.maximum(above - below, 1e-300), 0, 1)
    A = grid[rows, step] + share * (grid[rows, step + 1] - grid[rows, step])

    centre, root, left, right = _edges(cells, A)
    flip = left + right > 0  # into the lower tail, where the logarithm of the distribution function keeps its digits
    left, right = np.where(flip, -right, left), np.where(flip, -left, right)
    floor = np.exp(log_ndtr(left) - log_ndtr(right))
    standard = ndtri_exp(log_ndtr(right) + np.log(floor + rng.random(len(A)) * (1 - floor)))
    R0 = centre + np.where(flip, -standard, standard) / root
    return np.clip(np.nan_to_num(R0), 0, A), A

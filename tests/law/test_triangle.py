"""The cut Gaussian against slow references: a numerical optimiser and a sum over a fine mesh of the triangle."""

import numpy as np
import pytest
from scipy.optimize import minimize

from rlsweep.law.triangle import Cells, draw, log_mass, mode

_MESH = 900


def random_cells(rng: np.random.Generator, count: int) -> Cells:
    """Precisions from nearly nothing to sd .03, correlated, with centres inside and outside the triangle."""
    scale = 10 ** rng.uniform(-2, 3, size=(2, count))
    correlation = rng.uniform(-0.99, 0.99, size=count)
    p00, p11 = scale
    p01 = correlation * np.sqrt(p00 * p11)
    centre = rng.uniform(-0.5, 1.5, size=(2, count))
    return Cells(p00, p01, p11, p00 * centre[0] + p01 * centre[1], p01 * centre[0] + p11 * centre[1])


def log_density(c: Cells, i: int, R0: np.ndarray, A: np.ndarray) -> np.ndarray:
    quadratic = c.p00[i] * R0**2 + 2 * c.p01[i] * R0 * A + c.p11[i] * A**2
    return np.asarray(c.b0[i] * R0 + c.b1[i] * A - 0.5 * quadratic)


def mesh() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Midpoints of a mesh of the triangle: R0 = A u with u in [0, 1], so that a cell's area is A dA du."""
    middle = (np.arange(_MESH) + 0.5) / _MESH
    A, u = np.meshgrid(middle, middle, indexing="ij")
    return A * u, A, A / _MESH**2


def test_mode_is_the_optimisers() -> None:
    cells = random_cells(np.random.default_rng(0), 60)
    R0, A, top = mode(cells)
    assert ((R0 >= 0) & (R0 <= A) & (A <= 1)).all()
    for i in range(60):
        scale = max(cells.p00[i], cells.p11[i])
        found = minimize(
            lambda x, i=i, scale=scale: -float(log_density(cells, i, x[0], x[1])) / scale,
            [0.3, 0.6],
            method="SLSQP",
            bounds=[(0, 1), (0, 1)],
            constraints={"type": "ineq", "fun": lambda x: x[1] - x[0]},
            options={"ftol": 1e-14, "maxiter": 500},
        )
        assert top[i] >= -found.fun * scale - 1e-6 * scale
        assert log_density(cells, i, R0[i], A[i]) == pytest.approx(top[i], rel=1e-9, abs=1e-9)


def test_mass_is_that_of_a_fine_mesh() -> None:
    cells = random_cells(np.random.default_rng(1), 40)
    result = log_mass(cells)
    R0, A, area = mesh()
    for i in range(40):
        values = log_density(cells, i, R0, A)
        top = values.max()
        assert result[i] == pytest.approx(top + np.log((np.exp(values - top) * area).sum()), abs=2e-3)


def test_mass_far_outside_the_triangle_and_of_a_flat_density() -> None:
    flat = Cells(*(np.array([x]) for x in (1e-9, 0.0, 1e-9, 0.0, 0.0)))
    assert log_mass(flat)[0] == pytest.approx(np.log(0.5), abs=1e-6)
    for centre in ((3.0, -2.0), (-4.0, 5.0), (8.0, 9.0)):
        p = np.array([1e6])
        far = log_mass(Cells(p, 0 * p, p, p * centre[0], p * centre[1]))
        assert np.isfinite(far).all()


def test_draws_have_the_moments_of_a_fine_mesh() -> None:
    cells = random_cells(np.random.default_rng(2), 6)
    R0_mesh, A_mesh, area = mesh()
    for i in range(6):
        same = Cells(*(np.full(8_000, x[i]) for x in (cells.p00, cells.p01, cells.p11, cells.b0, cells.b1)))
        R0, A = draw(same, np.random.default_rng(i))
        assert ((R0 >= 0) & (R0 <= A) & (A <= 1)).all()
        values = log_density(cells, i, R0_mesh, A_mesh)
        weight = np.exp(values - values.max()) * area
        weight /= weight.sum()
        for drawn, exact in ((R0, R0_mesh), (A, A_mesh), (R0 * A, R0_mesh * A_mesh), (A**2, A_mesh**2)):
            mean = (weight * exact).sum()
            sd = np.sqrt((weight * (exact - mean) ** 2).sum())
            assert drawn.mean() == pytest.approx(mean, abs=5 * sd / np.sqrt(8_000) + 1e-5)

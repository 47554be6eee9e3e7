"""The grid posterior against loops: dense covariances, one cell and one noise hypothesis at a time."""

from itertools import product

import numpy as np
import pytest

from rlsweep.law.curve import Curve
from rlsweep.law.grams import gaussians, grams
from rlsweep.law.noise import SEED_SD_CEILING, SEED_SD_LOG_C_MID, hypotheses, stack
from rlsweep.law.posterior import B_LOG_SD, B_MEDIAN, log_weights, posterior
from rlsweep.law.sigmoid import gain_share, pass_rate


def curves() -> list[Curve]:
    rng = np.random.default_rng(3)
    found = []
    for seed, n in enumerate((9, 6)):
        compute = np.concatenate([[0.0], np.sort(rng.uniform(0.1, 4, n - 1))])
        rates = np.clip(pass_rate(compute, 0.7, 1.6, 1.0, 0.25) + 0.02 * rng.normal(size=n), 0, 1)
        variance = np.full(n, 0.03**2)
        variance[2] = np.nan
        found.append(Curve("base", seed, "flops", compute, rates, variance))
    return found


def dense(points: object, tau: float, rho: float, scale: float) -> np.ndarray:
    """Sampling and wander, by definition."""
    p = points
    n = len(p.pass_rate)  # type: ignore[attr-defined]
    V = np.zeros((n, n))
    for i, j in product(range(n), range(n)):
        trained = np.isfinite(p.log_compute[i]) and np.isfinite(p.log_compute[j])  # type: ignore[attr-defined]
        if p.seed[i] == p.seed[j] and trained:  # type: ignore[attr-defined]
            V[i, j] = tau**2 * rho ** abs(i - j)
        if i == j:
            V[i, i] += p.variance[i] * (1 if p.known[i] else scale**2)  # type: ignore[attr-defined]
    return V


def test_weights_are_those_of_dense_loops() -> None:
    scale = max(float(c.compute.max()) for c in curves())
    points = stack(curves(), scale)
    noise = hypotheses(points)
    c, b = np.log([0.15, 0.25, 2.0]), np.log([1.2, 2.0, 0.8])
    seed_scales = {1.0: 0.7, 3.0: 0.3}
    result, _ = log_weights(points, noise, seed_scales, c, b)

    middle = (np.arange(450) + 0.5) / 450
    A, u = np.meshgrid(middle, middle, indexing="ij")
    R0, area = A * u, A / 450**2
    with np.errstate(divide="ignore"):
        compute = np.exp(points.log_compute)
    reference = np.empty_like(result)
    for h, m in product(range(len(noise.tau)), range(3)):
        base = dense(points, noise.tau[h], noise.rho[h], noise.scale[h])
        g = gain_share(compute, np.exp(b[m]), np.exp(c[m]))
        slope = np.exp(b[m]) * g * (1 - g)

        def fill(V: np.ndarray, g: np.ndarray = g) -> tuple[np.ndarray, np.ndarray]:
            """Residual sums of squares over the mesh and log determinant."""
            inverse = np.linalg.inv(V)
            X = np.column_stack([1 - g, g])
            P, q, yy = (
                X.T @ inverse @ X,
                X.T @ inverse @ points.pass_rate,
                points.pass_rate @ inverse @ points.pass_rate,
            )
            squares = yy - 2 * (q[0] * R0 + q[1] * A) + P[0, 0] * R0**2 + 2 * P[0, 1] * R0 * A + P[1, 1] * A**2
            return squares, np.linalg.slogdet(V)[1]

        ceiling = [np.where(points.seed == s, g, 0) * SEED_SD_CEILING for s in (0, 1)]
        squares, _ = fill(base + sum(np.outer(x, x) for x in ceiling))
        best = np.unravel_index(squares.argmin(), squares.shape)
        gain = float(A[best] - R0[best])
        shift = [np.where(points.seed == s, slope, 0) * gain * SEED_SD_LOG_C_MID for s in (0, 1)]
        for k, (size, weight) in enumerate(seed_scales.items()):
            V = base + size**2 * sum(np.outer(x, x) for x in [*ceiling, *shift])
            squares, log_det = fill(V)
            mass = np.log((np.exp(-0.5 * (squares - squares.min())) * area).sum()) - 0.5 * squares.min()
            prior = np.log(weight) + noise.log_prior[h] - 0.5 * ((b[m] - np.log(B_MEDIAN)) / B_LOG_SD) ** 2
            reference[k, h, m] = mass - 0.5 * log_det + prior
    # the mesh is off by up to .08 where the mass sits in a corner; twice as fine a mesh halves that
    assert result - result.max() == pytest.approx(reference - reference.max(), abs=0.1)


def test_draws_follow_the_weights_of_a_fine_grid() -> None:
    """Quantiles of C_mid and B against a plain fixed grid over the whole prior, without zoom."""
    points = stack(curves(), max(float(c.compute.max()) for c in curves()))
    drawn = posterior(points, 4000, np.random.default_rng(0)).draws
    c = np.linspace(np.log(0.02), np.log(40), 91)
    b = np.linspace(np.log(0.2), np.log(12), 61)
    C, B = (x.ravel() for x in np.meshgrid(c, b, indexing="ij"))
    logs, _ = log_weights(points, hypotheses(points), {1.0: 0.8, 3.0: 0.15, 10.0: 0.05}, C, B)
    table = np.exp(logs - logs.max()).sum(axis=(0, 1)).reshape(91, 61)
    table /= table.sum()
    for column, axis, values in ((2, 1, c), (1, 0, b)):
        cdf = np.cumsum(table.sum(axis=axis))
        for level in (0.05, 0.25, 0.5, 0.75, 0.95):
            k = int(np.searchsorted(cdf, level))
            edge = values[k] + 0.5 * (values[1] - values[0])
            share = float(np.mean(np.log(drawn[:, column]) <= edge))
            assert share == pytest.approx(cdf[k], abs=0.025)


def test_gaussian_has_the_weighted_least_squares_centre() -> None:
    """With one seed and no seed effects the cell's centre is that of numpy's least squares on whitened columns."""
    one = [curves()[0]]
    points = stack(one, 4.0)
    noise = hypotheses(points)
    c, b = np.log([0.25]), np.log([1.6])
    cells, _ = gaussians(grams(points, noise, c, b), (1e-9,))
    for h in range(len(noise.tau)):
        root = np.linalg.cholesky(dense(points, noise.tau[h], noise.rho[h], noise.scale[h]))
        with np.errstate(divide="ignore"):
            g = gain_share(np.exp(points.log_compute), 1.6, 0.25)
        X = np.linalg.solve(root, np.column_stack([1 - g, g]))
        expected = np.linalg.lstsq(X, np.linalg.solve(root, points.pass_rate), rcond=None)[0]
        P = np.array([[cells.p00[0, h, 0], cells.p01[0, h, 0]], [cells.p01[0, h, 0], cells.p11[0, h, 0]]])
        assert np.linalg.solve(P, [cells.b0[0, h, 0], cells.b1[0, h, 0]]) == pytest.approx(expected, abs=1e-5)

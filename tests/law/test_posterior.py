"""The grid posterior against loops: dense covariances, one cell and one noise hypothesis at a time."""

from itertools import product

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import multivariate_normal

from rlsweep.law.curve import Curve
from rlsweep.law.grams import best_gain, gaussians, grams
from rlsweep.law.noise import SEED_SCALE, SEED_SD_CEILING, SEED_SD_LOG_C_MID, Points, hypotheses, stack
from rlsweep.law.posterior import B_LOG_SD, B_MEDIAN, log_weights, posterior, seed_scale_weights
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


def dense(p: Points, tau: float, rho: float, scale: float) -> np.ndarray:
    """Sampling and wander, by definition."""
    n = len(p.pass_rate)
    V = np.zeros((n, n))
    for i, j in product(range(n), range(n)):
        trained = np.isfinite(p.log_compute[i]) and np.isfinite(p.log_compute[j])
        if p.seed[i] == p.seed[j] and trained:
            V[i, j] = tau**2 * rho ** abs(i - j)
        if i == j:
            V[i, i] += p.variance[i] * (1 if p.known[i] else scale**2)
    return V


def contrasts(p: Points, column: np.ndarray) -> np.ndarray:
    """Covariance of effects of sd 1 along `column` that sum to 0 over the seeds: independent ones less their mean."""
    same = p.seed[:, None] == p.seed[None, :]
    return (same - 1 / p.seeds) * np.outer(column, column)


def test_weights_are_those_of_dense_loops() -> None:
    points = stack(curves(), max(float(c.compute.max()) for c in curves()))
    noise = hypotheses(points)
    c, b = np.log([0.15, 0.25, 2.0]), np.log([1.2, 2.0, 0.8])
    scales = (1.0, 3.0)
    result = np.stack([log_weights(points, noise, k, c, b)[0] for k in scales])

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

        ceiling = SEED_SD_CEILING**2 * contrasts(points, g)
        squares, _ = fill(base + ceiling)
        best = np.unravel_index(squares.argmin(), squares.shape)
        gain = float(A[best] - R0[best])
        shift = (SEED_SD_LOG_C_MID * gain) ** 2 * contrasts(points, slope)
        for k, size in enumerate(scales):
            V = base + size**2 * (ceiling + shift)
            squares, log_det = fill(V)
            mass = np.log((np.exp(-0.5 * (squares - squares.min())) * area).sum()) - 0.5 * squares.min()
            prior = noise.log_prior[h] - 0.5 * ((b[m] - np.log(B_MEDIAN)) / B_LOG_SD) ** 2
            reference[k, h, m] = mass - 0.5 * log_det + prior
    # the mesh is off by up to .08 where the mass sits in a corner; twice as fine a mesh halves that
    assert result - result.max() == pytest.approx(reference - reference.max(), abs=0.1)


def test_draws_follow_the_weights_of_a_fine_grid() -> None:
    """Quantiles of C_mid and B against a plain fixed grid over the whole prior, without zoom. The variant's C_mid
    differs from that of its two seeds by the mean of their effects."""
    points = stack(curves(), max(float(c.compute.max()) for c in curves()))
    result = posterior(points, 4000, np.random.default_rng(0))
    assert result.seed_scale == 1
    c = np.linspace(np.log(0.02), np.log(40), 91)
    b = np.linspace(np.log(0.2), np.log(12), 61)
    C, B = (x.ravel() for x in np.meshgrid(c, b, indexing="ij"))
    logs, _ = log_weights(points, hypotheses(points), 1.0, C, B)
    table = np.exp(logs - logs.max()).sum(axis=0).reshape(91, 61)
    table /= table.sum()
    best = table.ravel().argmax()
    scale_weights = seed_scale_weights(points, C[best], B[best])
    spread = SEED_SD_LOG_C_MID * np.array(list(SEED_SCALE)) / 2**0.5
    for column, axis, values in ((2, 1, c), (1, 0, b)):
        mass = table.sum(axis=axis)
        cdf = np.cumsum(mass)
        for level in (0.05, 0.25, 0.5, 0.75, 0.95):
            k = int(np.searchsorted(cdf, level))
            edge = values[k] + 0.5 * (values[1] - values[0])
            shifted = mass @ ndtr((edge - c[:, None]) / spread) @ scale_weights if column == 2 else cdf[k]
            share = float(np.mean(np.log(result.draws[:, column]) <= edge))
            assert share == pytest.approx(shifted, abs=0.025)


def test_the_spread_of_seeds_is_judged_by_their_difference_alone() -> None:
    """With matched evaluations and given noise, by the density of the difference of the two curves: whatever they have
    in common cancels."""
    rng = np.random.default_rng(4)
    compute = np.linspace(0, 1, 16)
    rates = pass_rate(compute, 0.6, 1.5, 0.3, 0.2) + 0.05 * np.sin(9 * compute)
    pair = [rates + sign * 0.025 * compute + 0.01 * rng.normal(size=16) for sign in (-1, 1)]
    points = stack([Curve("x", s, "flops", compute, y, np.full(16, 1e-4)) for s, y in enumerate(pair)], 1.0)
    noise = hypotheses(points)
    g = gain_share(compute, 1.5, 0.3)
    slope = 1.5 * g * (1 - g)
    place = np.log([0.3]), np.log([1.5])
    gain = best_gain(grams(points, noise, *place))
    for h in range(len(noise.tau)):
        given = noise.take(np.array([h]))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("rlsweep.law.posterior.hypotheses", lambda _, given=given: given)
            weights = seed_scale_weights(points, np.log(0.3), np.log(1.5))
        base = dense(points, noise.tau[h], noise.rho[h], 1.0)[:16, :16]
        effects = SEED_SD_CEILING**2 * np.outer(g, g) + (SEED_SD_LOG_C_MID * gain[h, 0]) ** 2 * np.outer(slope, slope)
        density = [multivariate_normal(cov=2 * (base + k**2 * effects)).pdf(pair[1] - pair[0]) for k in SEED_SCALE]
        expected = np.array(list(SEED_SCALE.values())) * density
        assert weights == pytest.approx(expected / expected.sum(), abs=1e-4)


def test_matched_evaluations_end_where_the_slowest_seed_does() -> None:
    long, short = curves()
    points = stack([long, short], 4.0).matched()
    end = min(long.compute[-1], short.compute[-1])
    assert (np.exp(points.log_compute) * 4 <= end * (1 + 1e-12)).all()
    assert [(points.seed == s).sum() for s in (0, 1)] == [(c.compute <= end).sum() for c in (long, short)]
    assert points.seeds == 2 and points.first.sum() == 2
    nothing = Curve("base", 2, "flops", np.zeros(0), np.zeros(0), np.zeros(0))
    assert len(stack([long, short, nothing], 4.0).matched().pass_rate) == 0


def test_gaussian_has_the_weighted_least_squares_centre() -> None:
    """With one seed no effects are left, whatever their scale: the cell's centre is that of numpy's least squares on
    whitened columns."""
    one = [curves()[0]]
    points = stack(one, 4.0)
    noise = hypotheses(points)
    c, b = np.log([0.25]), np.log([1.6])
    cells, _ = gaussians(grams(points, noise, c, b), 3.0, 0.5)
    for h in range(len(noise.tau)):
        root = np.linalg.cholesky(dense(points, noise.tau[h], noise.rho[h], noise.scale[h]))
        with np.errstate(divide="ignore"):
            g = gain_share(np.exp(points.log_compute), 1.6, 0.25)
        X = np.linalg.solve(root, np.column_stack([1 - g, g]))
        expected = np.linalg.lstsq(X, np.linalg.solve(root, points.pass_rate), rcond=None)[0]
        P = np.array([[cells.p00[h, 0], cells.p01[h, 0]], [cells.p01[h, 0], cells.p11[h, 0]]])
        assert np.linalg.solve(P, [cells.b0[h, 0], cells.b1[h, 0]]) == pytest.approx(expected, abs=1e-5)

import numpy as np
import pytest

from rlsweep.law.curve import Curve
from rlsweep.report.pool import common_step, final_pass_rate


def curve(rates: list[float], steps: list[int], variance: float = 1e-4, seed: int = 0) -> Curve:
    return Curve(
        "a", seed, "flops", np.array(steps) * 1e9, np.array(rates), np.full(len(rates), variance), np.array(steps)
    )


def test_the_common_step_is_the_last_that_every_seed_has() -> None:
    curves = [curve([0.1, 0.2, 0.3], [0, 10, 20]), curve([0.1, 0.2], [0, 10]), curve([], [])]
    assert common_step(curves) == 10
    assert common_step([]) is None
    assert common_step([curve([0.1], [0]), curve([0.1], [5])]) is None


def test_one_seed_takes_the_assumed_spread() -> None:
    found = final_pass_rate([curve([0.2, 0.5], [0, 10])], 10)
    # sd^2 = 1e-4 sampling + .01^2 assumed; t of 3 degrees of freedom at 95% is 2.3534
    half = 2.353363 * (1e-4 + 1e-4) ** 0.5
    assert found is not None
    assert (found.estimate, found.low, found.high) == pytest.approx((0.5, 0.5 - half, 0.5 + half), rel=1e-6)


def test_two_seeds_add_their_own_spread() -> None:
    found = final_pass_rate([curve([0.50], [10]), curve([0.60], [10], seed=1)], 10)
    # spread (.05^2 + .05^2) beyond sampling (1 x 2e-4 / 2), averaged with 3 x .01^2 over 4 degrees of freedom
    seed_variance = (3e-4 + 5e-3 - 1e-4) / 4
    half = 2.131847 * (2e-4 / 4 + seed_variance / 2) ** 0.5
    assert found is not None
    assert (found.estimate, found.low, found.high) == pytest.approx((0.55, 0.55 - half, 0.55 + half), rel=1e-6)


def test_agreeing_seeds_never_make_the_spread_negative() -> None:
    alike = final_pass_rate([curve([0.5], [10], variance=1e-2, seed=seed) for seed in range(3)], 10)
    assert alike is not None
    assert alike.high - alike.low > 2 * 2 * (1e-2 / 3) ** 0.5


def test_bounds_stay_pass_rates() -> None:
    found = final_pass_rate([curve([0.999], [10])], 10)
    assert found is not None
    assert found.high == 1.0
    assert found.low < 0.97
    assert final_pass_rate([curve([0.5], [10])], None) is None


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(600):
        ends = 0.6 + rng.normal(0, 0.01, 2) + rng.normal(0, 0.008, 2)
        found = final_pass_rate([curve([end], [10], variance=6.4e-5) for end in ends], 10)
        assert found is not None
        hits += found.low <= 0.6 <= found.high
    assert 0.86 <= hits / 600 <= 0.97

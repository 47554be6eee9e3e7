import numpy as np
import pytest

from rlsweep.law.plan import more_compute, sd_factor


def test_table_values_and_what_lies_between() -> None:
    assert sd_factor(np.array([0.3, 0.9, 0.98]), np.array(20)) == pytest.approx([69, 1.5, 0.6])
    assert sd_factor(np.array([0.7, 0.8]), np.array([40, 80])) == pytest.approx([4.2, 1.7])
    assert sd_factor(np.array(0.9), np.array([10, 320])) == pytest.approx([1.5 * 2**0.5, 0.8 / 2])
    between = sd_factor(np.array(0.87), np.array(30))
    assert 1.1 < between < 2.2


def plan(C_mid: float, B: float, noise: float = 0.01, seeds: int = 1, points: int = 20) -> float | None:
    rng = np.random.default_rng(0)
    # draws whose A is as wide as the bound says, so that the bound decides
    draws = np.column_stack(
        [0.7 + 1e-6 * rng.normal(size=100), np.full(100, B), np.full(100, C_mid), np.full(100, 0.2)]
    )
    return more_compute(draws, 1.0, noise, points, seeds, 0.01)


def test_hand_checked_plan() -> None:
    # B 2, phi .7: C_mid = (.3 / .7)^.5. At m times the compute phi = 1 / (1 + .4286 / m^2) and N = 20 m. One seed
    # leaves sqrt(.01824^2 - .01^2) = .01525 for the fit: K <= 1.525. m = 1.6: phi .857, N 32: K about 1.75; m = 1.8:
    # .883, 36: 1.38
    answer = plan((0.3 / 0.7) ** 0.5, 2.0)
    assert answer is not None and 1.6 < answer < 1.8


def test_more_noise_needs_more_and_more_seeds_less() -> None:
    quiet, loud, many = plan(1.0, 1.5, 0.005), plan(1.0, 1.5, 0.02), plan(1.0, 1.5, 0.02, seeds=4)
    assert quiet is not None and loud is not None and many is not None
    assert quiet < many < loud


def test_says_nothing_where_nothing_can_be_said() -> None:
    assert plan(3.0, 2.0) is None  # .1 of the gain seen
    assert plan(0.9, 0.2, noise=0.1) is None  # beyond 32 times
    assert more_compute(np.full((4, 4), 0.5), 1.0, 0.01, 20, 1, seed_sd=0.03) is None  # seeds alone are wider

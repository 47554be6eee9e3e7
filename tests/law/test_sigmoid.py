import numpy as np
import pytest

from rlsweep.law.sigmoid import compute_to_reach, gain_share, pass_rate


def test_hand_computed_values() -> None:
    # (C_mid / C)^B at C = 2 C_mid, B = 2 is 1/4: the share is 1 / (1 + 1/4)
    assert pass_rate(2000.0, 0.7, 2.0, 1000.0, 0.2) == pytest.approx(0.2 + 0.5 * 0.8, abs=1e-15)
    assert pass_rate(1000.0, 0.7, 3.3, 1000.0, 0.2) == pytest.approx(0.45, abs=1e-15)
    # 19^(1/B) C_mid is where 95% of the gain is made
    assert gain_share(10.0 * 19**0.5, 2.0, 10.0) == pytest.approx(0.95, abs=1e-12)


def test_published_fit_at_half_the_run() -> None:
    # arXiv 2510.13786: A .645, B 1.70, C_mid 10909 says .93 of the gain at 50k GPU-hours
    assert gain_share(50_000, 1.70, 10909) == pytest.approx(0.93, abs=0.005)


@pytest.mark.parametrize("R0", [0.0, 0.1, 1 / 3, 0.4021])
def test_compute_zero_gives_exactly_the_start(R0: float) -> None:
    assert pass_rate(0.0, 0.9, 0.37, 1e21, R0) == R0


def test_ends_and_order() -> None:
    compute = np.geomspace(1e-300, 1e300, 4001)
    rates = pass_rate(compute, 0.8, 4.0, 1e5, 0.1)
    assert np.isfinite(rates).all() and (np.diff(rates) >= 0).all()
    assert rates[0] == pytest.approx(0.1) and rates[-1] == pytest.approx(0.8)


def test_compute_to_reach_inverts_the_law() -> None:
    compute = compute_to_reach(0.55, 0.61, 1.92, 2542.0, 0.4)
    assert pass_rate(compute, 0.61, 1.92, 2542.0, 0.4) == pytest.approx(0.55, abs=1e-12)
    assert compute_to_reach(0.7, 0.61, 1.92, 2542.0, 0.4) == np.inf
    assert compute_to_reach(0.4, 0.61, 1.92, 2542.0, 0.4) == 0

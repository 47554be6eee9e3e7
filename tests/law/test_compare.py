from dataclasses import replace

import numpy as np
import pytest

from rlsweep.law.compare import compare
from rlsweep.law.curve import Curve
from rlsweep.law.fit import Fit, fit
from rlsweep.law.sigmoid import pass_rate


def variant(name: str, A: float = 0.7, C_mid: float = 0.12, B: float = 1.8, end: float = 1.0, noise: int = 0) -> Fit:
    rng = np.random.default_rng(noise)
    compute = np.linspace(0, end, 31)
    curves = []
    for seed in range(3):
        rates = pass_rate(compute, A, B, C_mid, 0.2) + 0.005 * rng.normal(size=31)
        curves.append(Curve(name, seed, "flops", compute, np.clip(rates, 0, 1), np.full(31, 0.005**2)))
    return fit(curves)


def test_a_higher_ceiling_is_said() -> None:
    result = compare(variant("base"), variant("loss=dapo", A=0.78, noise=1))
    assert result.identified and result.difference.low > 0 and result.probability_higher > 0.99
    assert result.difference.estimate == pytest.approx(0.08, abs=0.02)
    assert result.verdict.startswith("loss=dapo has a higher ceiling than base, A +0.0")


def test_faster_with_the_same_ceiling() -> None:
    result = compare(variant("base"), variant("fast", C_mid=0.06, noise=1))
    assert result.ratio is not None and result.ratio.high < 1
    assert result.ratio.low < 0.5 < result.ratio.high
    assert result.probability_faster is not None and result.probability_faster > 0.95
    assert "don't differ in their ceiling" in result.verdict and "times the compute." in result.verdict


def test_a_fit_against_itself_is_a_draw_with_the_width_of_two() -> None:
    """Fits with one seed share random numbers: taken in order their differences would all be zero."""
    one = variant("base")
    result = compare(one, one)
    assert result.difference.low < 0 < result.difference.high
    width = one.A.high - one.A.low
    assert result.difference.high - result.difference.low == pytest.approx(width * 2**0.5, rel=0.15)
    assert result.probability_higher == pytest.approx(0.5, abs=0.05)
    assert result.ratio is not None and result.ratio.low < 1 < result.ratio.high
    assert "no clear difference" in result.verdict


def test_a_target_not_reached_is_a_value() -> None:
    result = compare(variant("base"), variant("low", A=0.5, noise=1))
    assert result.target is not None and result.ratio is None and result.probability_faster is None
    assert "low does not reach 0.6" in result.verdict


def test_not_identified_says_nothing_of_ceilings() -> None:
    short = variant("short", C_mid=2.0, noise=1)
    result = compare(variant("base"), short)
    assert short.verdict == "not identified" and not result.identified
    assert result.verdict.startswith("the ceilings can't be compared (short is not identified); short does not reach")


def test_a_base_without_gain_sets_no_target() -> None:
    result = compare(variant("flat", A=0.2), variant("other", noise=1))
    assert result.target is None and result.ratio is None
    assert "flat sets no pass rate to reach" in result.verdict


def test_target_is_reached_at_the_compute_the_laws_say() -> None:
    base, other = variant("base"), variant("other", A=0.74, B=1.4, C_mid=0.1, noise=1)
    result = compare(base, other)
    assert result.target is not None and result.ratio is not None

    target = result.target

    def needed(A: float, B: float, C_mid: float) -> float:
        return float(C_mid * ((target - 0.2) / (A - target)) ** (1 / B))

    assert result.ratio.low < needed(0.74, 1.4, 0.1) / needed(0.7, 1.8, 0.12) < result.ratio.high


def test_refuses_different_units() -> None:
    one = variant("base")
    with pytest.raises(ValueError, match="flops with compute in device_hours"):
        compare(one, replace(one, unit="device_hours"))

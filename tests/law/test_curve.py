import numpy as np
import pytest

from rlsweep.law.curve import Curve


def make(compute: object, pass_rate: object, variance: object, steps: object = None) -> Curve:
    return Curve("base", 0, "flops", compute, pass_rate, variance, steps)


def test_keeps_a_copy_that_cannot_change() -> None:
    compute = np.array([0.0, 1.0])
    curve = make(compute, [0.1, 0.2], [np.nan, 0.0])
    compute[0] = 5
    assert curve.compute[0] == 0
    with pytest.raises(ValueError, match="read-only"):
        curve.compute[0] = 5


def test_an_empty_curve_and_equal_computes_are_curves() -> None:
    assert len(make([], [], []).compute) == 0
    assert len(make([1, 1, 1], [0.1, 0.2, 0.1], [0, 0, 0], [1, 2, 3]).compute) == 3


@pytest.mark.parametrize(
    ("compute", "pass_rate", "variance"),
    [
        ([2, 1], [0.1, 0.2], [0, 0]),
        ([0, 1], [0.1], [0, 0]),
        ([0, np.nan], [0.1, 0.2], [0, 0]),
        ([0, np.inf], [0.1, 0.2], [0, 0]),
        ([-1, 1], [0.1, 0.2], [0, 0]),
        ([0, 1], [10, 62], [0, 0]),
        ([0, 1], [-1, 1], [0, 0]),
        ([0, 1], [0.1, np.nan], [0, 0]),
        ([0, 1], [0.1, 0.2], [0, -1]),
        ([0, 1], [0.1, 0.2], [0, np.inf]),
        ([[0, 1]], [[0.1, 0.2]], [[0, 0]]),
        (["a", "b"], [0.1, 0.2], [0, 0]),
        (0.0, 0.1, 0.0),
    ],
)
def test_refuses_what_is_no_curve(compute: object, pass_rate: object, variance: object) -> None:
    with pytest.raises(ValueError, match="curve 'base'"):
        make(compute, pass_rate, variance)

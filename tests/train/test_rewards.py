"""Rewards by outcome, and ScaleRL's length penalty."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlsweep.recipe.length import Interrupt, NoLengthControl, Penalty
from rlsweep.recipe.reward import Reward
from rlsweep.train.rewards import correct, reward

OPTIONS = Reward(correct=2.0, wrong=-1.0, truncated=-0.5, unparseable=-0.25)
OUTCOMES: list[Any] = ["correct", "wrong", "truncated", "unparseable"]


@pytest.mark.parametrize("length", [NoLengthControl(), Interrupt(), Penalty()], ids=str)
def test_each_outcome_earns_its_own_reward(length: Any) -> None:
    assert reward(OPTIONS, length, OUTCOMES, [5] * 4).tolist() == [2.0, -1.0, -0.5, -0.25]


@pytest.mark.parametrize(
    ("tokens", "penalty"), [(0, 0), (60, 0), (61, -0.025), (80, -0.5), (99, -0.975), (100, -1), (101, -1), (10**6, -1)]
)
def test_penalty_falls_over_the_ramp(tokens: int, penalty: float) -> None:
    length = Penalty(limit=100, ramp=40)
    assert reward(OPTIONS, length, ["correct"], [tokens]).tolist() == pytest.approx([2.0 + penalty])


@given(limit=st.integers(2, 200), data=st.data(), tokens=st.integers(0, 300))
def test_penalty_equals_the_slow_reference(limit: int, data: st.DataObject, tokens: int) -> None:
    """Token by token: each one from limit - ramp on costs 1 / ramp more, until all of 1 is lost."""
    ramp = data.draw(st.integers(1, limit))
    lost = sum(1 / ramp for place in range(1, tokens + 1) if limit - ramp < place <= limit)
    assert reward(OPTIONS, Penalty(limit=limit, ramp=ramp), ["correct"], [tokens]).item() == pytest.approx(2.0 - lost)


def test_penalty_is_for_correct_responses_only() -> None:
    assert reward(OPTIONS, Penalty(limit=100, ramp=40), OUTCOMES, [100] * 4).tolist() == [1.0, -1.0, -0.5, -0.25]


def test_correct_is_the_raw_outcome() -> None:
    assert correct(OUTCOMES).tolist() == [True, False, False, False]


def test_no_responses() -> None:
    assert reward(OPTIONS, Penalty(), [], []).shape == correct([]).shape == (0,)


def test_unknown_outcome_is_refused() -> None:
    unknown: Any = "maybe"
    with pytest.raises(ValueError, match=r"'maybe'.*valid: correct, wrong, truncated, unparseable"):
        reward(OPTIONS, NoLengthControl(), [unknown], [1])

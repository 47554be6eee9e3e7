"""Advantages: the hand-checkable example, deviations over the right set, filters on raw outcomes."""

import math
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from rlsweep.recipe.length import NoLengthControl, Penalty
from rlsweep.recipe.reward import Reward
from rlsweep.tasks.protocol import Outcome
from rlsweep.train.advantages import advantages, zero_variance
from rlsweep.train.rewards import correct, reward


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_example() -> None:
    # Rewards (1, 0), (0, 1) and, without variance, (1, 1): the batch's std is .5 over the kept four, .408248 over all.
    rewards, group = double(1, 0, 0, 1, 1, 1), torch.tensor([0, 0, 1, 1, 2, 2])
    kept = ~zero_variance(rewards > 0, group)[group]
    assert kept.tolist() == [True, True, True, True, False, False]
    centred = advantages("none", rewards, group)
    assert centred.tolist() == [0.5, -0.5, -0.5, 0.5, 0, 0]
    of_kept = advantages("batch", rewards[kept], group[kept])
    assert of_kept.tolist() == pytest.approx([1, -1, -1, 1], abs=1e-5)
    assert (centred[:4] / of_kept).tolist() == pytest.approx([0.5] * 4, abs=2e-6)
    of_all = advantages("batch", rewards, group)
    assert of_all.tolist() == pytest.approx([1.224745, -1.224745, -1.224745, 1.224745, 0, 0], abs=1e-5)
    assert (centred[:4] / of_all[:4]).tolist() == pytest.approx([0.408248] * 4, abs=2e-6)


def test_prompt_deviation_is_each_groups_own() -> None:
    rewards, group = double(1, 0, 0, 0, 1, -1), torch.tensor([4, 4, 4, 4, 2, 2])
    std = math.sqrt(3) / 4
    expected = [0.75 / std, -0.25 / std, -0.25 / std, -0.25 / std, 1, -1]
    assert advantages("prompt", rewards, group).tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kind", ["prompt", "batch", "none"])
def test_groups_of_one_and_equal_rewards_have_no_advantage(kind: Any) -> None:
    rewards, group = double(1, -1, 0.1, 0.1, 0.1), torch.tensor([0, 1, 2, 2, 2])
    result = advantages(kind, rewards, group)
    assert result[:2].tolist() == [0, 0]
    assert result.tolist() == pytest.approx([0] * 5, abs=1e-9)


@pytest.mark.parametrize("kind", ["prompt", "batch", "none"])
def test_nothing_kept(kind: Any) -> None:
    nothing = torch.zeros(0, dtype=torch.long)
    assert advantages(kind, double(), nothing).shape == (0,)
    assert zero_variance(nothing.bool(), nothing).shape == (0,)


@pytest.mark.parametrize("kind", ["prompt", "batch"])
def test_normalized_advantages_do_not_depend_on_the_reward_scale(kind: Any) -> None:
    rewards, group = double(1, 0, 0, 0, 1, 1, 0), torch.tensor([0, 0, 0, 0, 1, 1, 1])
    torch.testing.assert_close(
        advantages(kind, rewards, group), advantages(kind, 2 * rewards - 1, group), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("kind", ["prompt", "batch", "none"])
def test_order_and_names_of_groups_are_immaterial(kind: Any) -> None:
    rewards, group = double(1, 0, 0, 0, 1, 1, 0), torch.tensor([0, 0, 0, 0, 1, 1, 1])
    order = torch.tensor([6, 0, 3, 5, 2, 1, 4])
    torch.testing.assert_close(
        advantages(kind, rewards[order], 7 - group[order]), advantages(kind, rewards, group)[order]
    )


def test_zero_variance_reads_outcomes_and_no_reward() -> None:
    outcomes: list[Outcome] = [
        *("correct", "correct"),
        *("wrong", "truncated"),
        *("correct", "wrong"),
        "correct",
        "unparseable",
    ]
    group = torch.tensor([0, 0, 1, 1, 2, 2, 3, 4])
    lengths = [3, 9, 3, 9, 3, 9, 3, 9]
    penalty = Penalty(limit=10, ramp=10)
    scales = [
        Reward(correct=1, wrong=-1, truncated=-1, unparseable=-1),
        Reward(correct=1, wrong=0, truncated=0, unparseable=0),
        Reward(correct=1, wrong=0, truncated=-5, unparseable=-0.5),
    ]
    for options in scales:
        for length in (NoLengthControl(), penalty):
            # The decision is the same although penalty and unlike rewards do tell the rollouts of 0 and 1 apart.
            rewards = reward(options, length, outcomes, lengths)
            assert advantages("none", rewards, group)[6:].tolist() == [0, 0]
            assert zero_variance(correct(outcomes), group).tolist() == [True, True, False, True, True]
    assert advantages("none", reward(scales[0], penalty, outcomes, lengths), group)[0] > 0


def test_zero_variance_equals_the_slow_reference() -> None:
    """Random ragged groups, groups of one among them, in any order and with any numbers."""
    rng = random.Random(0)
    found = set()
    for _ in range(200):
        rollouts = [(rng.choice([-3, 0, 2, 7]), rng.random() < 0.7) for _ in range(rng.randint(1, 9))]
        numbers = sorted({number for number, _ in rollouts})
        expected = [len({right for other, right in rollouts if other == number}) == 1 for number in numbers]
        group, right = (torch.tensor(each) for each in zip(*rollouts, strict=True))
        assert zero_variance(right, group).tolist() == expected
        found |= set(expected)
    assert found == {True, False}


def test_zero_variance_orders_groups_by_index() -> None:
    assert zero_variance(torch.tensor([True, True, True, False]), torch.tensor([9, 9, 2, 2])).tolist() == [False, True]

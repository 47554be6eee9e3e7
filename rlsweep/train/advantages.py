"""Advantages of rollouts from their rewards, and the filter of groups that have nothing to say.

`group_index` [N] says which group (the rollouts of one prompt) a rollout belongs to, by any integers.
"""

from typing import Literal

import torch
from torch import Tensor

Normalization = Literal["prompt", "batch", "none"]

EPSILON = 1e-6
"""Added to the standard deviation; rewards are of order 1."""


def advantages(kind: Normalization, rewards: Tensor, group_index: Tensor) -> Tensor:
    """Advantages [N] (float64) of the kept rollouts of a step, whose rewards are `rewards` [N] (ScaleRL 2.1, 3.2, 4).

    Rewards are centred within their group, then divided by a standard deviation + 1e-6: that of their group (`prompt`),
    that of all centred rewards of the batch, each rollout alike (`batch`), or by nothing (`none`). Standard deviations
    are those of the population (divided by n, not n - 1). `rewards` is the whole batch that is trained on, after the
    filters: the paper leaves open whether the batch's deviation is taken before them; here it is taken after. A group
    of one rollout is its own mean, so its advantage is 0.
    """
    assert rewards.shape == group_index.shape and rewards.ndim == 1, (rewards.shape, group_index.shape)
    rewards = rewards.double()
    _, group = torch.unique(group_index, return_inverse=True)
    centred = rewards - _group_mean(rewards, group)
    if kind == "none":
        return centred
    if kind == "prompt":
        variance = _group_mean(centred.square(), group)
    else:
        # The mean of centred rewards is 0.
        variance = centred.square().sum() / max(len(centred), 1)
    return centred / (variance.sqrt() + EPSILON)


def zero_variance(correct: Tensor, group_index: Tensor) -> Tensor:
    """Whether all rollouts of a group are right or all are wrong: [groups] (bool), in ascending order of group index.

    `correct` [N] (bool) is the verifier's raw outcome, so rewards and penalties have no say. With groups numbered from
    0 without a gap, `~zero_variance(correct, group_index)[group_index]` selects the rollouts of the other groups.
    """
    assert correct.shape == group_index.shape and correct.ndim == 1, (correct.shape, group_index.shape)
    assert correct.dtype == torch.bool, correct.dtype
    groups, group = torch.unique(group_index, return_inverse=True)
    empty = torch.zeros(len(groups), dtype=torch.long, device=correct.device)
    right = empty.index_add(0, group, correct.long())
    size = empty.index_add(0, group, torch.ones_like(group))
    return (right == 0) | (right == size)


def _group_mean(values: Tensor, group: Tensor) -> Tensor:
    """Mean of each rollout's group [N]; `group` numbers groups from 0 without a gap."""
    size = torch.bincount(group)
    total = values.new_zeros(len(size)).index_add(0, group, values)
    return (total / size)[group]

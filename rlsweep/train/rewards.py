"""What a response earns: a reward for the verifier's outcome, less the length penalty."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rlsweep.recipe.length import Length, Penalty
from rlsweep.recipe.reward import Reward
from rlsweep.tasks.protocol import Outcome


def reward(options: Reward, length: Length, outcomes: Sequence[Outcome], response_tokens: Sequence[int]) -> Tensor:
    """Rewards [N] (float64) of responses with these outcomes and lengths (all tokens, end of sequence included).

    The length penalty is added to correct responses only (ScaleRL Eq. 9). ValueError for an unknown outcome.
    """
    earned = {
        "correct": options.correct,
        "wrong": options.wrong,
        "truncated": options.truncated,
        "unparseable": options.unparseable,
    }
    rewards = []
    for outcome, tokens in zip(outcomes, response_tokens, strict=True):
        if outcome not in earned:
            raise ValueError(f"a verifier returned the outcome {outcome!r}; valid: {', '.join(earned)}")
        penalty = _penalty(length, tokens) if isinstance(length, Penalty) and outcome == "correct" else 0.0
        rewards.append(earned[outcome] + penalty)
    return torch.tensor(rewards, dtype=torch.float64)


def correct(outcomes: Sequence[Outcome]) -> Tensor:
    """Which responses are right [N] (bool): what filters and pass rates read."""
    return torch.tensor([outcome == "correct" for outcome in outcomes], dtype=torch.bool)


def _penalty(options: Penalty, tokens: int) -> float:
    """clip((limit - tokens) / ramp - 1, -1, 0): 0 up to limit - ramp, then falling to -1 at limit."""
    return min(max((options.limit - tokens) / options.ramp - 1, -1.0), 0.0)

"""Knobs of the loss, and the choices of aggregation and normalization."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from rlsweep.recipe.batch import Batch
from rlsweep.recipe.budget import Budget
from rlsweep.recipe.loss import Cispo, Dapo, DrGrpo, Grpo, Gspo
from rlsweep.recipe.reward import Reward


@pytest.mark.drives(
    "loss[cispo]",
    "loss[cispo].eps_max",
    "loss[dapo]",
    "loss[dapo].eps_low",
    "loss[dapo].eps_high",
    "loss[gspo]",
    "loss[gspo].eps_low",
    "loss[gspo].eps_high",
    "loss[grpo]",
    "loss[grpo].eps",
    "loss[dr_grpo]",
    "loss[dr_grpo].eps",
)
@pytest.mark.parametrize(
    ("loss", "change"),
    [
        (Cispo(eps_max=1.1), {"eps_max": 1.3}),
        (Dapo(eps_low=0.1, eps_high=0.1), {"eps_low": 0.2}),
        (Dapo(eps_low=0.1, eps_high=0.1), {"eps_high": 0.2}),
        (Gspo(eps_low=0.02, eps_high=0.02), {"eps_low": 0.2}),
        (Gspo(eps_low=0.02, eps_high=0.02), {"eps_high": 0.2}),
        (Grpo(eps=0.1), {"eps": 0.2}),
        (DrGrpo(eps=0.1), {"eps": 0.2}),
    ],
    ids=str,
)
def test_which_tokens_a_loss_cuts(lab: Any, learned: Any, loss: Any, change: dict[str, float]) -> None:
    """The second batch is off-policy: the gradient is the formula's, and a wider interval cuts fewer tokens, just those
    whose ratio lies outside of it on the side that is widened."""
    kind: Any = ("constant", "none") if isinstance(loss, DrGrpo) else ("sample", "batch")
    recipe = replace(
        lab.base, loss=loss, aggregation=kind[0], normalization=kind[1], batch=Batch(prompts=4, rollouts=24)
    )
    # Rewards that make advantages of either sign frequent.
    recipe = replace(recipe, reward=Reward(correct=0.0, wrong=0.5, truncated=-1.0, unparseable=-1.0))
    narrow, wide = lab.run(recipe), lab.run(replace(recipe, loss=replace(loss, **change)))
    assert torch.equal(narrow.flat(1), wide.flat(1))  # the first batch has ratios of 1
    before, after = learned(narrow, 1), learned(wide, 1)
    assert before.ratios == after.ratios and before.clipped > after.clipped > 0
    assert lab.apart(before.gradient, after.gradient) > 1e-3
    if isinstance(loss, Cispo):
        assert before.clipped == sum(ratio > 1.1 for ratio in before.ratios)
        assert after.clipped == sum(ratio > 1.3 for ratio in before.ratios)


@pytest.mark.drives(
    "aggregation[sample]",
    "aggregation[prompt]",
    "aggregation[token]",
    "aggregation[constant]",
    "normalization[prompt]",
    "normalization[batch]",
    "normalization[none]",
)
def test_aggregation_and_normalization(lab: Any, learned: Any) -> None:
    recipe = replace(lab.base, batch=Batch(prompts=6, rollouts=24), budget=Budget(steps=1))
    recipe = replace(recipe, reward=Reward(correct=1.0, wrong=-1.0, truncated=0.5, unparseable=0.0))
    gradients = {}
    kinds = [(kind, "batch") for kind in ("sample", "prompt", "token", "constant")]
    for aggregation, normalization in (*kinds, ("prompt", "prompt"), ("prompt", "none")):
        run = lab.run(replace(recipe, aggregation=aggregation, normalization=normalization))
        gradients[aggregation, normalization] = learned(run, 0).gradient
    directions = {names: gradient / gradient.norm() for names, gradient in gradients.items()}
    names = list(directions)
    for place, one in enumerate(names):
        for other in names[place + 1 :]:
            # Within one batch token and constant differ by a factor, as do batch and none; the others point elsewhere.
            scaled = {one[0], other[0]} == {"token", "constant"} or {one[1], other[1]} == {"batch", "none"}
            scaled &= one[0] == other[0] or one[1] == other[1]
            assert (lab.apart(directions[one], directions[other]) < 1e-4) == scaled, (one, other)
            assert lab.apart(gradients[one], gradients[other]) > 1e-2, (one, other)

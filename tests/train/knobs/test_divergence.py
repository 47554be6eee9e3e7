"""A run that diverges, which no knob asks for."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rlsweep.recipe.budget import Budget
from rlsweep.recipe.curriculum import Curriculum
from rlsweep.rollout.protocol import Group, Request
from rlsweep.store import checkpoints
from rlsweep.train.state import State


@pytest.mark.parametrize("broken", ["sampler", "trainer"])
def test_a_run_that_diverges_keeps_its_last_good_checkpoint(lab: Any, broken: str) -> None:
    """Log-probabilities, a loss or a gradient that is not finite ends the run before any weight is touched."""
    recipe = replace(
        lab.base,
        curriculum=Curriculum(zero_variance="keep", no_positive_resampling=None),
        execution=replace(lab.base.execution, checkpoint_every=2),
        budget=Budget(steps=5),
    )

    def script(request: Request, group: Group) -> Group:
        if broken != "sampler" or group.id != 3 * 6 + 2:
            return group
        first = group.rollouts[0]
        nan = replace(first, logprobs=(*first.logprobs[:-1], math.nan))
        return Group(group.id, (nan, *group.rollouts[1:]))

    def break_trainer(state: State) -> None:
        if broken == "trainer" and state.step == 3:
            with torch.no_grad():
                next(state.model.parameters())[10, 0] = math.inf

    run = lab.start(recipe, script, break_trainer)
    assert (run.outcome.state, run.outcome.step) == ("diverged", 3)
    assert [row["step"] for row in run.rows("step")] == [1, 2, 3]
    assert sorted(run.gradients) == [0, 1, 2]
    newest = checkpoints.newest(run.state.run)
    assert newest is not None and newest.step == 2
    stored = load_file(newest.path / "model" / "model.safetensors")
    assert all(torch.equal(run.weights[2][name], value) for name, value in stored.items())

"""The gradient of a step is that of the step written out, for every loss, aggregation, normalization and precision."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from rlsweep.recipe.curriculum import Curriculum
from rlsweep.recipe.length import NoLengthControl, Penalty
from rlsweep.recipe.model import Embedded
from rlsweep.recipe.reward import Reward
from rlsweep.recipe.schema import Recipe
from rlsweep.rollout.protocol import Rollout
from rlsweep.tasks.protocol import Outcome
from rlsweep.train.intake import Graded
from rlsweep.train.update import select


def test_a_step_is_the_one_written_out(
    policy: Any, combined: Recipe, ragged: Callable[[int], list[Graded]], written_out: Any, batches: dict[int, Any]
) -> None:
    """The gradient is the closed form's: none reaches a ratio where it must not, and each clip cuts what it should.
    Filters and length penalty vary with the batch."""
    recipe = replace(combined, reward=Reward(correct=1.0, wrong=-1.0, truncated=-0.5, unparseable=-0.75))
    clipped = 0
    for seed, filter_, length in ((1, "drop", recipe.length), (2, "keep", Penalty(limit=8, ramp=5))):
        each = replace(recipe, curriculum=Curriculum(zero_variance=filter_), length=length)
        if seed not in batches:
            groups = ragged(seed)
            logs = [
                [written_out.distributions(recipe, policy.model, g.prompt, r.tokens) for r in g.rollouts]
                for g in groups
            ]
            batches[seed] = groups, logs
        groups, logs = batches[seed]
        expected = written_out.step(each, policy.model, groups, logs)
        batch, seen = select(each, groups)
        gradient, measured = policy.learn(each, batch, microbatch=60)
        advantage = list(itertools.chain(*expected.advantages))
        assert batch.advantage.tolist() == pytest.approx(advantage, rel=1e-5, abs=1e-6)
        assert policy.close(gradient, expected.gradient) and gradient.norm() > 0
        assert {name: (seen | measured)[name] for name in expected.metrics} == pytest.approx(
            expected.metrics, rel=1e-3, abs=1e-5
        )
        clipped += expected.clipped
    assert clipped


@pytest.fixture(scope="module")
def batches() -> dict[int, Any]:
    """Groups and their distributions under the policy, once for all combinations."""
    return {}


@pytest.mark.parametrize(
    ("kind", "dropped", "kept"),
    [
        ("sample", 2.75, 1.833333),
        ("prompt", 3.083333, 2.055556),
        ("token", 2.8, 2.0),
        ("constant", 1.75, 1.166667),
    ],
)
def test_the_example_from_groups_to_one_number(recipe: Recipe, kind: Any, dropped: float, kept: float) -> None:
    """P: 2 tokens at 1, 4 at 2; Q: 1 at 3, 3 at 5; Z without variance, whose tokens have no loss; limit of 4 tokens.
    Rewards (1, 0), (0, 1), (1, 1). Forced tokens are put in: they count for nothing."""

    def rollout(counted: int, forced: int) -> Rollout:
        mask = (True,) * forced + (False,) * counted
        return Rollout((7,) * len(mask), (0.0,) * len(mask), mask, ((0, 0, len(mask)),), "stop")

    lengths: list[tuple[tuple[int, int], tuple[Outcome, Outcome]]] = [
        ((2, 4), ("correct", "wrong")),
        ((1, 3), ("wrong", "correct")),
        ((2, 2), ("correct", "correct")),
    ]
    groups = [
        Graded(index, (3, 4), tuple(rollout(each, forced=index) for each in tokens), outcomes)
        for index, (tokens, outcomes) in enumerate(lengths)
    ]
    recipe = replace(
        recipe,
        aggregation=kind,
        length=NoLengthControl(),
        reward=Reward(correct=1, wrong=0, truncated=0, unparseable=0),
        sampling=replace(recipe.sampling, max_tokens=4),
    )
    sums = torch.tensor([2 * 1, 4 * 2, 1 * 3, 3 * 5, 0, 0], dtype=torch.float64)
    for filter_, loss, advantage in (("drop", dropped, 1.0), ("keep", kept, 1.224745)):
        batch, _ = select(replace(recipe, curriculum=Curriculum(zero_variance=filter_)), groups)
        assert float((batch.weight * sums[: len(batch.rollouts)]).sum()) == pytest.approx(loss, abs=1e-6)
        signs = [1, -1, -1, 1, 0, 0][: len(batch.rollouts)]
        assert batch.advantage.tolist() == pytest.approx([advantage * sign for sign in signs], abs=1e-5)


@pytest.mark.parametrize(("dtype", "head"), [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_bfloat16_moves_the_gradient_by_its_rounding_and_no_more(
    policy: Any, recipe: Recipe, ragged: Callable[[int], list[Graded]], written_out: Any, dtype: Any, head: Any
) -> None:
    """Off the float32 one by a few roundings of 2^-8; as written out in the same precision, and however it is cut, but
    for the order of sums before a rounding."""
    groups = ragged(7)
    rounded = replace(recipe, model=Embedded(dtype=dtype, head_dtype=head))
    exact = policy.gradient(recipe, groups)
    whole = policy.gradient(rounded, groups)
    gap = float((whole - exact).norm() / exact.norm())
    assert 2**-11 < gap < 2**-4
    for gradient in (policy.gradient(rounded, groups, 1), written_out(rounded, policy.model, groups).gradient):
        assert float((gradient - whole).norm() / exact.norm()) < gap / 2
    assert all(p.dtype == torch.float32 for p in policy.model.parameters())

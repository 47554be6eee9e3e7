"""What must not change gradients: order, cut, padding, forced tokens, the scale of rewards, batches without a word."""

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from rlsweep.recipe.curriculum import Curriculum
from rlsweep.recipe.length import Penalty
from rlsweep.recipe.loss import Cispo, DrGrpo, Gspo
from rlsweep.recipe.reward import Reward
from rlsweep.recipe.schema import Recipe
from rlsweep.rollout.protocol import Rollout
from rlsweep.train.intake import Graded
from rlsweep.train.update import TrainingBatch, micro_batches, select, update


def test_order_and_cut_are_immaterial(policy: Any, aggregated: Recipe, ragged: Callable[[int], list[Graded]]) -> None:
    """Groups and rollouts in any order, in micro-batches of one rollout, of some, or all at once."""
    groups = ragged(3)
    whole, measured = policy.learn(aggregated, select(aggregated, groups)[0])
    rng = random.Random(0)
    shuffled = []
    for group in rng.sample(groups, len(groups)):
        order = rng.sample(range(len(group.rollouts)), len(group.rollouts))
        rollouts, outcomes = (tuple(each[i] for i in order) for each in (group.rollouts, group.outcomes))
        shuffled.append(replace(group, rollouts=rollouts, outcomes=outcomes))
    assert shuffled != groups
    sizes = set()
    for groups_, microbatch in itertools.product((groups, shuffled), (1, 40, 10_000)):
        batch = select(aggregated, groups_)[0]
        sizes.add(len(micro_batches(batch, microbatch)))
        gradient, metrics = policy.learn(aggregated, batch, microbatch)
        assert policy.close(gradient, whole)
        assert metrics == pytest.approx(measured, rel=1e-4, abs=1e-5)
    assert len(sizes) == 3 and min(sizes) == 1 and max(sizes) > 5


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
def test_padding_and_what_stands_where_nothing_counts_are_immaterial(
    policy: Any, recipe: Recipe, ragged: Callable[[int], list[Graded]], loss: Any, garbage: float
) -> None:
    """A far longer row of weight 0 widens all others; what the sampler said of forced tokens is never looked at."""
    if isinstance(loss, DrGrpo):
        recipe = replace(recipe, aggregation="constant", normalization="none")
    elif isinstance(loss, Gspo):
        recipe = replace(recipe, aggregation="sample")
    recipe = replace(recipe, loss=loss)
    groups = ragged(4)
    clean, measured = policy.learn(recipe, select(recipe, groups)[0])
    assert clean.norm() > 0

    def spoil(rollout: Rollout) -> Rollout:
        values = zip(rollout.logprobs, rollout.forced, strict=True)
        return replace(rollout, logprobs=tuple(garbage if forced else value for value, forced in values))

    spoilt = [replace(g, rollouts=tuple(map(spoil, g.rollouts))) for g in groups]
    assert any(any(r.forced) for g in groups for r in g.rollouts)
    batch, _ = select(recipe, spoilt)
    gradient, metrics = policy.learn(recipe, batch)
    assert torch.equal(gradient, clean) and metrics == measured

    tokens = tuple(range(40))
    long = Rollout(tokens, (garbage,) * 40, (True,) * 40, ((1, 0, 40),), "length")
    wide = TrainingBatch(
        prompts=[*batch.prompts, (3,) * 20],
        rollouts=[*batch.rollouts, long],
        advantage=torch.cat([batch.advantage, torch.tensor([5.0])]),
        weight=torch.cat([batch.weight, torch.zeros(1, dtype=batch.weight.dtype)]),
    )
    gradient, metrics = policy.learn(recipe, wide)
    assert policy.close(gradient, clean)
    assert metrics == pytest.approx(measured, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("loss", [Cispo(eps_max=1.2), Gspo(eps_low=0.05, eps_high=0.07)], ids=str)
def test_forced_tokens_have_no_part_in_anything(
    policy: Any, recipe: Recipe, ragged: Callable[[int], list[Graded]], loss: Any
) -> None:
    """With one phrase forced at the end of each rollout, where nothing is conditioned on it, nothing changes."""
    recipe = replace(recipe, loss=loss)
    phrase = (11, 12, 13)

    def lengthen(rollout: Rollout) -> Rollout:
        return replace(
            rollout,
            tokens=rollout.tokens + phrase,
            logprobs=rollout.logprobs + (0.0,) * 3,
            forced=rollout.forced + (True,) * 3,
            versions=((1, 0, len(rollout.tokens) + 3),),
        )

    groups = ragged(5)
    longer = [replace(g, rollouts=tuple(map(lengthen, g.rollouts))) for g in groups]
    plain, forced = select(recipe, groups)[0], select(recipe, longer)[0]
    assert torch.equal(plain.weight, forced.weight) and torch.equal(plain.advantage, forced.advantage)
    gradient, metrics = policy.learn(recipe, plain)
    again, metrics_again = policy.learn(recipe, forced)
    assert policy.close(gradient, again) and gradient.norm() > 0
    assert metrics_again == pytest.approx(metrics, rel=1e-4, abs=1e-5)


def test_filters_read_the_outcome_whatever_it_earns(recipe: Recipe, ragged: Callable[[int], list[Graded]]) -> None:
    """The same groups are kept at any reward scale and under a penalty that tells right answers apart; a group is
    kept exactly if it holds a right answer and another."""
    scales = [
        Reward(),
        Reward(correct=1, wrong=0, truncated=0, unparseable=0),
        Reward(correct=0, wrong=0.3, truncated=-4, unparseable=7),
        Reward(correct=1, wrong=1, truncated=1, unparseable=1.5),
    ]
    kept_some = dropped_some = 0
    for seed in range(6):
        groups = ragged(seed)
        expected = [len({outcome == "correct" for outcome in g.outcomes}) == 2 for g in groups]
        kept_some, dropped_some = kept_some + sum(expected), dropped_some + expected.count(False)
        survivors = [r for g, keep in zip(groups, expected, strict=True) if keep for r in g.rollouts]
        for reward, length in itertools.product(scales, (recipe.length, Penalty(limit=9, ramp=9))):
            each = replace(recipe, reward=reward, length=length)
            batch, seen = select(each, groups)
            assert batch.rollouts == survivors
            assert seen["train/groups_trained"] == sum(expected)
            assert seen["train/groups_zero_variance"] == expected.count(False)
    assert kept_some > 5 and dropped_some > 5


def test_groups_of_one_say_nothing_and_are_counted_if_kept(
    policy: Any, aggregated: Recipe, ragged: Callable[[int], list[Graded]]
) -> None:
    groups = [replace(g, rollouts=g.rollouts[:1], outcomes=g.outcomes[:1]) for g in ragged(6)]
    batch, _ = select(aggregated, groups)
    assert not batch.rollouts and len(batch.weight) == len(batch.advantage) == 0
    kept = replace(aggregated, curriculum=Curriculum(zero_variance="keep"))
    batch, _ = select(kept, groups)
    assert len(batch.rollouts) == 5 and batch.advantage.tolist() == [0.0] * 5
    gradient, metrics = policy.learn(kept, batch)
    assert torch.count_nonzero(gradient) == 0 and metrics["train/loss"] == 0
    # Beside a group that has something to say they only stand in the divisors: N, P or T.
    other = ragged(6)[1]
    other = replace(other, outcomes=("correct", *["wrong"] * (len(other.rollouts) - 1)))
    alone, together = select(aggregated, [other])[0], select(kept, [other, *groups])[0]
    count = len(other.rollouts)
    counted = [len(r.tokens) - sum(r.forced) for r in together.rollouts]
    grown = {
        "sample": sum(map(bool, counted)) / sum(map(bool, counted[:count])),
        "prompt": 1 + sum(map(bool, counted[count:])),
        "token": sum(counted) / sum(counted[:count]),
        "constant": sum(map(bool, counted)) / sum(map(bool, counted[:count])),
    }[aggregated.aggregation]
    assert (together.weight[:count] * grown).tolist() == pytest.approx(alone.weight.tolist())


def test_an_all_filtered_batch_leaves_weights_and_moments(
    policy: Any, recipe: Recipe, ragged: Callable[[int], list[Graded]], loss: Any
) -> None:
    """Moments are there from a step before, and weight decay would move weights without any gradient."""
    recipe = replace(
        recipe, loss=loss, aggregation="constant" if isinstance(loss, DrGrpo) else "sample", normalization="none"
    )
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=1e-9, weight_decay=1e6)
    prepared = policy.accelerator.prepare_optimizer(optimizer)
    before = {name: value.clone() for name, value in policy.model.state_dict().items()}
    update(recipe, policy.model, prepared, policy.accelerator, select(recipe, ragged(1))[0], 0)
    trained = {name: value.clone() for name, value in policy.model.state_dict().items()}
    moments = {(place, name): value.clone() for place, s in optimizer.state.items() for name, value in s.items()}
    assert any(not torch.equal(before[name], value) for name, value in trained.items()) and moments
    flat = [replace(g, outcomes=("correct",) * len(g.outcomes)) for g in ragged(2)]
    batch, _ = select(recipe, flat)
    metrics = update(recipe, policy.model, prepared, policy.accelerator, batch, 1)
    assert metrics["train/loss"] == 0
    assert all(torch.equal(value, trained[name]) for name, value in policy.model.state_dict().items())
    for place, state in optimizer.state.items():
        assert all(torch.equal(value, moments[place, name]) for name, value in state.items())
    policy.model.load_state_dict(before)

"""Gradients of a real model through `select` and `update`: the step written out, and all that must not change them."""

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import Qwen3ForCausalLM

from rlsweep.model.embedded import new_config
from rlsweep.recipe.curriculum import Curriculum
from rlsweep.recipe.length import NoLengthControl, Penalty
from rlsweep.recipe.loss import Cispo, Dapo, DrGrpo, Grpo, Gspo
from rlsweep.recipe.model import Embedded
from rlsweep.recipe.reward import Reward
from rlsweep.recipe.schema import Recipe
from rlsweep.rollout.protocol import Rollout
from rlsweep.tasks.protocol import Outcome
from rlsweep.train.intake import Graded
from rlsweep.train.update import TrainingBatch, micro_batches, select, update

LOSSES = [
    Cispo(eps_max=1.2),
    Dapo(eps_low=0.1, eps_high=0.15),
    Gspo(eps_low=0.05, eps_high=0.07),
    Grpo(eps=0.12),
    DrGrpo(eps=0.12),
]
COMBINATIONS = [
    (loss, aggregation, normalization)
    for loss in LOSSES
    for aggregation in ("sample", "prompt", "token", "constant")
    for normalization in ("prompt", "batch", "none")
    if not (isinstance(loss, Gspo) and aggregation in ("token", "constant"))
    and not (isinstance(loss, DrGrpo) and (aggregation, normalization) != ("constant", "none"))
]
AGGREGATED = [(loss, kind, norm) for loss, kind, norm in COMBINATIONS if norm == "batch" or isinstance(loss, DrGrpo)]
LONGEST = 9


@dataclass(frozen=True)
class Policy:
    """A small real model, and what one update of it makes of groups."""

    model: Any
    accelerator: Any

    def learn(self, recipe: Recipe, batch: TrainingBatch, microbatch: int = 10_000) -> tuple[Tensor, dict[str, float]]:
        """The gradient at the optimizer's step, which is not made, and what was measured."""
        caught: list[Tensor] = []

        class Catch(torch.optim.SGD):
            def step(self, closure: Any = None) -> None:
                parameters = [p for group in self.param_groups for p in group["params"]]
                caught.append(torch.cat([p.grad.flatten() for p in parameters]))

        recipe = replace(
            recipe,
            optimizer=replace(recipe.optimizer, grad_clip=1e9),
            execution=replace(recipe.execution, microbatch_tokens=microbatch),
        )
        prepared = self.accelerator.prepare_optimizer(Catch(self.model.parameters(), lr=1.0))
        metrics = update(recipe, self.model, prepared, self.accelerator, batch, version=3)
        assert len(caught) <= 1
        return caught[0] if caught else torch.zeros(0), metrics

    def gradient(self, recipe: Recipe, groups: Sequence[Graded], microbatch: int = 10_000) -> Tensor:
        return self.learn(recipe, select(recipe, groups)[0], microbatch)[0]


@pytest.fixture(scope="module")
def policy() -> Policy:
    """Weights are large, so that distributions are far from uniform and from each other."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        section = Embedded(width=32, layers=1, heads=2, kv_heads=1, feed_forward=48, warm_start_steps=1)
        model = Qwen3ForCausalLM(new_config(section, 60)).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, mean=float(parameter.ndim == 1), std=0.2)
    return Policy(model, Accelerator(cpu=True))


@pytest.fixture()
def recipe(small_recipe: Recipe) -> Recipe:
    return replace(small_recipe, sampling=replace(small_recipe.sampling, temperature=0.8, max_tokens=LONGEST))


@pytest.fixture(scope="module")
def ragged(policy: Policy, written_out: Any, small_recipe: Recipe) -> Callable[[int], list[Graded]]:
    """Random groups by seed: of 1 to 5 rollouts of 1 to 9 tokens, forced spans among them, near enough to the policy
    that ratios fall on both sides of every clip."""
    recipe = replace(small_recipe, sampling=replace(small_recipe.sampling, temperature=0.8, max_tokens=LONGEST))

    @cache
    def draw(seed: int) -> list[Graded]:
        rng = random.Random(seed)
        groups = []
        for index in range(5):
            prompt = tuple(rng.randrange(2, 60) for _ in range(rng.randint(1, 8)))
            rollouts, outcomes = [], []
            # Every batch has a group of one; of the others some have no variance.
            for _ in range(1 if index == 0 else rng.randint(2, 5)):
                tokens = tuple(rng.randrange(60) for _ in range(rng.randint(1, LONGEST)))
                start, length = rng.randint(0, LONGEST), rng.choice([0, 1, 3])
                forced = tuple(start <= place < start + length for place in range(len(tokens)))
                with torch.no_grad():
                    logs = written_out.distributions(recipe, policy.model, prompt, tokens)
                # Ratios differ from rollout to rollout too, or no sequence would be clipped.
                shift = rng.gauss(0, 0.15)
                behaviour = tuple(
                    0.0 if f else float(row[token]) + shift + rng.gauss(0, 0.2)
                    for row, token, f in zip(logs, tokens, forced, strict=True)
                )
                versions = ((1, 0, len(tokens)),)
                rollouts.append(Rollout(tokens, behaviour, forced, versions, rng.choice(["stop", "length"])))
                outcomes.append(rng.choice(["correct", "correct", "wrong", "truncated", "unparseable"]))
            groups.append(Graded(index, prompt, tuple(rollouts), tuple(outcomes)))
        return groups

    return draw


def close(one: Tensor, other: Tensor, relative: float = 1e-4) -> bool:
    """Whether two gradients differ by no more than rounding."""
    return bool((one - other).norm() <= relative * max(one.norm(), other.norm())) and one.shape == other.shape


# --- the step written out --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("loss", "aggregation", "normalization"), COMBINATIONS, ids=str)
def test_a_step_is_the_one_written_out(
    policy: Policy,
    recipe: Recipe,
    ragged: Callable[[int], list[Graded]],
    written_out: Any,
    batches: dict[int, Any],
    loss: Any,
    aggregation: Any,
    normalization: Any,
) -> None:
    """The gradient is the closed form's: none reaches a ratio where it must not, and each clip cuts what it should.
    Filters and length penalty vary with the batch."""
    recipe = replace(recipe, loss=loss, aggregation=aggregation, normalization=normalization)
    recipe = replace(recipe, reward=Reward(correct=1.0, wrong=-1.0, truncated=-0.5, unparseable=-0.75))
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
        assert close(gradient, expected.gradient) and gradient.norm() > 0
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


# --- what must not change gradients ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("loss", "aggregation", "normalization"), AGGREGATED, ids=str)
def test_order_and_cut_are_immaterial(
    policy: Policy,
    recipe: Recipe,
    ragged: Callable[[int], list[Graded]],
    loss: Any,
    aggregation: Any,
    normalization: Any,
) -> None:
    """Groups and rollouts in any order, in micro-batches of one rollout, of some, or all at once."""
    recipe = replace(recipe, loss=loss, aggregation=aggregation, normalization=normalization)
    groups = ragged(3)
    whole, measured = policy.learn(recipe, select(recipe, groups)[0])
    rng = random.Random(0)
    shuffled = []
    for group in rng.sample(groups, len(groups)):
        order = rng.sample(range(len(group.rollouts)), len(group.rollouts))
        rollouts, outcomes = (tuple(each[i] for i in order) for each in (group.rollouts, group.outcomes))
        shuffled.append(replace(group, rollouts=rollouts, outcomes=outcomes))
    assert shuffled != groups
    sizes = set()
    for groups_, microbatch in itertools.product((groups, shuffled), (1, 40, 10_000)):
        batch = select(recipe, groups_)[0]
        sizes.add(len(micro_batches(batch, microbatch)))
        gradient, metrics = policy.learn(recipe, batch, microbatch)
        assert close(gradient, whole)
        assert metrics == pytest.approx(measured, rel=1e-4, abs=1e-5)
    assert len(sizes) == 3 and min(sizes) == 1 and max(sizes) > 5


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_padding_and_what_stands_where_nothing_counts_are_immaterial(
    policy: Policy, recipe: Recipe, ragged: Callable[[int], list[Graded]], loss: Any, garbage: float
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
    assert close(gradient, clean)
    assert metrics == pytest.approx(measured, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("loss", [Cispo(eps_max=1.2), Gspo(eps_low=0.05, eps_high=0.07)], ids=str)
def test_forced_tokens_have_no_part_in_anything(
    policy: Policy, recipe: Recipe, ragged: Callable[[int], list[Graded]], loss: Any
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
    assert close(gradient, again) and gradient.norm() > 0
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


@pytest.mark.parametrize(("loss", "aggregation", "normalization"), AGGREGATED, ids=str)
def test_groups_of_one_say_nothing_and_are_counted_if_kept(
    policy: Policy,
    recipe: Recipe,
    ragged: Callable[[int], list[Graded]],
    loss: Any,
    aggregation: Any,
    normalization: Any,
) -> None:
    recipe = replace(recipe, loss=loss, aggregation=aggregation, normalization=normalization)
    groups = [replace(g, rollouts=g.rollouts[:1], outcomes=g.outcomes[:1]) for g in ragged(6)]
    batch, _ = select(recipe, groups)
    assert not batch.rollouts and len(batch.weight) == len(batch.advantage) == 0
    kept = replace(recipe, curriculum=Curriculum(zero_variance="keep"))
    batch, _ = select(kept, groups)
    assert len(batch.rollouts) == 5 and batch.advantage.tolist() == [0.0] * 5
    gradient, metrics = policy.learn(kept, batch)
    assert torch.count_nonzero(gradient) == 0 and metrics["train/loss"] == 0
    # Beside a group that has something to say they only stand in the divisors: N, P or T.
    other = ragged(6)[1]
    other = replace(other, outcomes=("correct", *["wrong"] * (len(other.rollouts) - 1)))
    alone, together = select(recipe, [other])[0], select(kept, [other, *groups])[0]
    count = len(other.rollouts)
    counted = [len(r.tokens) - sum(r.forced) for r in together.rollouts]
    grown = {
        "sample": sum(map(bool, counted)) / sum(map(bool, counted[:count])),
        "prompt": 1 + sum(map(bool, counted[count:])),
        "token": sum(counted) / sum(counted[:count]),
        "constant": sum(map(bool, counted)) / sum(map(bool, counted[:count])),
    }[aggregation]
    assert (together.weight[:count] * grown).tolist() == pytest.approx(alone.weight.tolist())


# --- nothing to train on, and precision ------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_an_all_filtered_batch_leaves_weights_and_moments(
    policy: Policy, recipe: Recipe, ragged: Callable[[int], list[Graded]], loss: Any
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


@pytest.mark.parametrize(("dtype", "head"), [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_bfloat16_moves_the_gradient_by_its_rounding_and_no_more(
    policy: Policy,
    recipe: Recipe,
    ragged: Callable[[int], list[Graded]],
    written_out: Any,
    dtype: Any,
    head: Any,
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

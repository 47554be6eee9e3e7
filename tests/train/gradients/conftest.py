"""Gradients of a real model through `select` and `update`, on groups drawn at random."""

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
from rlsweep.recipe.loss import Cispo, Dapo, DrGrpo, Grpo, Gspo
from rlsweep.recipe.model import Embedded
from rlsweep.recipe.schema import Recipe
from rlsweep.rollout.protocol import Rollout
from rlsweep.train.intake import Graded
from rlsweep.train.update import TrainingBatch, select, update

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


def close(one: Tensor, other: Tensor, relative: float = 1e-4) -> bool:
    """Whether two gradients differ by no more than rounding."""
    return bool((one - other).norm() <= relative * max(one.norm(), other.norm())) and one.shape == other.shape


@dataclass(frozen=True)
class Policy:
    """A small real model, and what one update of it makes of groups."""

    model: Any
    accelerator: Any
    close = staticmethod(close)

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


@pytest.fixture(params=LOSSES, ids=str)
def loss(request: pytest.FixtureRequest) -> Any:
    """Each loss."""
    return request.param


def joined(combination: tuple[Any, ...]) -> str:
    return "-".join(map(str, combination))


@pytest.fixture(params=COMBINATIONS, ids=joined)
def combined(request: pytest.FixtureRequest, recipe: Recipe) -> Recipe:
    """The recipe with each loss, aggregation and normalization that go together."""
    loss, aggregation, normalization = request.param
    return replace(recipe, loss=loss, aggregation=aggregation, normalization=normalization)


@pytest.fixture(params=AGGREGATED, ids=joined)
def aggregated(request: pytest.FixtureRequest, recipe: Recipe) -> Recipe:
    """The recipe with each loss and aggregation."""
    loss, aggregation, normalization = request.param
    return replace(recipe, loss=loss, aggregation=aggregation, normalization=normalization)


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

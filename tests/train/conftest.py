"""One step of training written out: loops over rollouts and tokens, closed forms, nothing of the code under test."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor

from rlsweep.recipe.length import NoLengthControl, Penalty
from rlsweep.recipe.loss import Cispo, Dapo, Gspo
from rlsweep.recipe.schema import Recipe


@dataclass(frozen=True)
class Step:
    """What a step must be: by group and rollout in the order given, the gradient flat and before clipping."""

    kept: list[bool]
    rewards: list[list[float]]
    advantages: list[list[float]]
    """Of kept groups; empty for the others."""
    loss: float
    gradient: Tensor
    tokens: int
    """Counted ones."""
    clipped: int
    ratios: list[float]
    metrics: dict[str, float]


def distributions(recipe: Recipe, model: Any, prompt: Sequence[int], response: Sequence[int]) -> Tensor:
    """Log-probabilities [T, V] of what could stand at each place of the response, the sequence computed alone."""
    with torch.autocast("cpu", torch.bfloat16, enabled=recipe.model.dtype == "bfloat16"):
        hidden = model.model(input_ids=torch.tensor([[*prompt, *response]]), use_cache=False).last_hidden_state[0]
    weight = model.lm_head.weight
    if recipe.model.head_dtype == "bfloat16":
        logits = (hidden.bfloat16() @ weight.bfloat16().T).float()
    else:
        logits = hidden.float() @ weight.T
    return torch.log_softmax(logits / recipe.sampling.temperature, -1)[len(prompt) - 1 : -1]


def write_out(recipe: Recipe, model: Any, groups: Sequence[Any], logs: Sequence[Sequence[Tensor]]) -> Step:
    """The step of `model` on groups with `rollouts` and `outcomes`.

    `logs` are their distributions, with graph; those of groups that are not kept are not looked at.
    """
    kept = _kept(recipe, groups)
    rewards = [[_reward(recipe, o, len(r.tokens)) for o, r in zip(g.outcomes, g.rollouts, strict=True)] for g in groups]
    advantages = _advantages(recipe, rewards, kept)
    # Counted tokens of each rollout: (entropy there, log-probability with graph, that of the behaviour policy).
    counted = [
        [
            [
                (-float((d.detach().exp() * d.detach()).sum()), d[token], behaviour)
                for d, token, behaviour, forced in zip(rows, r.tokens, r.logprobs, r.forced, strict=True)
                if not forced
            ]
            for rows, r in zip(group_logs, g.rollouts, strict=True)
        ]
        if keep
        else []
        for g, group_logs, keep in zip(groups, logs, kept, strict=True)
    ]
    trained = [(g, i) for g in range(len(groups)) if kept[g] for i in range(len(counted[g])) if counted[g][i]]
    prompts = len({g for g, _ in trained})
    loss, clipped, total = 0.0, 0, torch.zeros(())
    ratios: list[float] = []
    mismatch: list[float] = []
    entropy: list[float] = []
    for g, i in trained:
        tokens, advantage = counted[g][i], advantages[g][i]
        length, of_prompt = len(tokens), sum(map(len, counted[g]))
        mean = sum(float(logp.detach()) - behaviour for _, logp, behaviour in tokens) / length
        sequences = sum(bool(each) for each in counted[g])
        divisor = {
            "sample": len(trained) * length,
            "prompt": prompts * (sequences * length if isinstance(recipe.loss, Gspo) else of_prompt),
            "token": sum(len(counted[h][j]) for h, j in trained),
            "constant": len(trained) * recipe.sampling.max_tokens,
        }[recipe.aggregation]
        for uncertainty, logp, behaviour in tokens:
            value = float(logp.detach())
            ratio = math.exp(value - behaviour)
            term, slope, cut = _token_loss(recipe.loss, value, ratio, math.exp(mean), advantage)
            loss += term / divisor
            clipped += cut
            total = total + slope / divisor * logp
            ratios.append(ratio)
            mismatch.append(abs(value - behaviour))
            entropy.append(uncertainty)
    parameters = list(model.parameters())
    gradient = torch.zeros(sum(p.numel() for p in parameters))
    metrics: dict[str, float] = {}
    if ratios:
        parts = torch.autograd.grad(total, parameters, retain_graph=True)
        gradient = torch.cat([part.flatten() for part in parts])
        metrics = {
            "train/clip_fraction": clipped / len(ratios),
            "train/mismatch_mean": sum(mismatch) / len(mismatch),
            "train/mismatch_max": max(mismatch),
            "train/effective_sample_size": sum(ratios) ** 2 / (len(ratios) * sum(r * r for r in ratios)),
            "train/entropy": sum(entropy) / len(entropy),
            "train/grad_norm": float(gradient.double().norm()),
        }
    flat = [r for row in rewards for r in row]
    metrics |= {
        "train/loss": loss,
        "train/reward": sum(flat) / len(flat),
        "train/groups_generated": len(groups),
        "train/groups_trained": sum(kept),
    }
    return Step(kept, rewards, advantages, loss, gradient, len(ratios), clipped, ratios, metrics)


def _kept(recipe: Recipe, groups: Sequence[Any]) -> list[bool]:
    if recipe.curriculum.zero_variance == "keep":
        return [True] * len(groups)
    return [0 < g.outcomes.count("correct") < len(g.outcomes) for g in groups]


def _reward(recipe: Recipe, outcome: str, tokens: int) -> float:
    earned: float = getattr(recipe.reward, outcome)
    if isinstance(recipe.length, Penalty) and outcome == "correct":
        over = tokens - (recipe.length.limit - recipe.length.ramp)
        earned -= 0.0 if over < 0 else 1.0 if over > recipe.length.ramp else over / recipe.length.ramp
    return earned


def _advantages(recipe: Recipe, rewards: list[list[float]], kept: list[bool]) -> list[list[float]]:
    def std(values: list[float]) -> float:
        mean = sum(values) / len(values)
        return math.sqrt(sum((v - mean) ** 2 for v in values) / len(values))

    centred = [[r - sum(row) / len(row) for r in row] if keep else [] for row, keep in zip(rewards, kept, strict=True)]
    everyone = [a for row in centred for a in row]
    divisors = {
        "none": lambda row: 1.0,
        "prompt": lambda row: std(row) + 1e-6,
        "batch": lambda row: std(everyone) + 1e-6,
    }
    return [[a / divisors[recipe.normalization](row) for a in row] for row in centred]


def _token_loss(loss: Any, logp: float, ratio: float, sequence_ratio: float, a: float) -> tuple[float, float, bool]:
    """Loss of a token, its derivative by the token's log-probability, and whether the ratio was capped or cut."""
    if isinstance(loss, Cispo):
        weight = min(ratio, loss.eps_max)
        return -weight * a * logp, -weight * a, ratio > loss.eps_max
    if isinstance(loss, Gspo):
        ratio = sequence_ratio
    low, high = (loss.eps_low, loss.eps_high) if isinstance(loss, Dapo | Gspo) else (loss.eps, loss.eps)
    if a > 0 and ratio > 1 + high:
        return -(1 + high) * a, 0.0, True
    if a < 0 and ratio < 1 - low:
        return -(1 - low) * a, 0.0, True
    return -ratio * a, -ratio * a, False


@dataclass(frozen=True)
class WrittenOut:
    """The functions above for tests: the step of a recipe's model on groups, and the distributions behind it."""

    step: Callable[..., Step] = write_out
    distributions: Callable[..., Tensor] = distributions

    def __call__(self, recipe: Recipe, model: Any, groups: Sequence[Any]) -> Step:
        """Runs that differ in one knob often have model and rollouts in common: those are computed once."""
        bare = replace(BARE, model=recipe.model, sampling=recipe.sampling)
        logs = [
            [_remembered(bare, model, g.prompt, r.tokens) for r in g.rollouts] if keep else []
            for g, keep in zip(groups, _kept(recipe, groups), strict=True)
        ]
        return write_out(recipe, model, groups, logs)


BARE = Recipe(name="bare", length=NoLengthControl())
"""What distributions depend on besides model and sampling is left out, so that they are found again."""
_remembered = lru_cache(maxsize=600)(distributions)


@pytest.fixture(scope="session")
def after_each_step() -> Callable[[Callable[[], object]], Any]:
    """`with after_each_step(look):` calls `look` after each step; where it returns true, the run is asked to stop."""
    from rlsweep.train import loop
    from rlsweep.train.asked import Asked

    @contextmanager
    def watched(look: Callable[[], object]) -> Iterator[None]:
        real = loop._step

        def step(state: Any, *rest: Any) -> None:
            real(state, *rest)
            if look() and state.step < state.recipe.budget.steps:
                raise Asked

        loop._step = step
        try:
            yield
        finally:
            loop._step = real

    return watched


@pytest.fixture(scope="session")
def written_out() -> WrittenOut:
    """One step of training in loops and closed forms."""
    return WrittenOut()

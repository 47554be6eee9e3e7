"""One step of a real model: the gradient, however the batch is cut; filters and forced tokens leave the counts."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from rlsweep.model.load import load_model
from rlsweep.model.logprobs import pack, response_logprobs
from rlsweep.recipe.curriculum import Curriculum
from rlsweep.recipe.execution import Execution
from rlsweep.recipe.loss import Cispo, Dapo, Gspo
from rlsweep.recipe.reward import Reward
from rlsweep.recipe.schema import Recipe
from rlsweep.rollout.protocol import Rollout
from rlsweep.tasks.protocol import Outcome
from rlsweep.train.intake import Graded
from rlsweep.train.update import Diverged, learning_rate, micro_batches, select, update


def rollout(*tokens: int, forced: tuple[int, ...] = (), version: int = 0) -> Rollout:
    """A response whose behaviour policy was nearly uniform."""
    return Rollout(
        tokens,
        tuple(0.0 if i in forced else -3.5 - 0.1 * (t % 5) for i, t in enumerate(tokens)),
        tuple(i in forced for i in range(len(tokens))),
        ((version, 0, len(tokens)),),
        "stop",
    )


def group(index: int, outcomes: tuple[Outcome, ...], *rollouts: Rollout) -> Graded:
    return Graded(index, (6, 29, 24 + index, 39), rollouts, outcomes)


GROUPS = [
    group(0, ("correct", "wrong"), rollout(10, 11, 1), rollout(12, 13, 14, 15, 16, 1)),
    group(1, ("wrong", "correct"), rollout(20, 1, version=1), rollout(21, 5, 9, 22, 1, forced=(1, 2))),
    group(2, ("correct", "correct"), rollout(30, 31, 1), rollout(32, 1)),
]


@pytest.fixture()
def recipe(small_recipe: Recipe) -> Recipe:
    return replace(small_recipe, curriculum=Curriculum(no_positive_resampling=None))


def gradient(folder: str, recipe: Recipe, groups: list[Graded]) -> tuple[torch.Tensor, dict[str, float], Any]:
    """The gradient that one update uses, caught before the optimizer's step."""
    model, _ = load_model(folder)
    caught: list[torch.Tensor] = []

    class Catch(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            caught.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).clone())

    accelerator = Accelerator(cpu=True)
    prepared, optimizer = accelerator.prepare(model, Catch(model.parameters(), lr=0.0))
    roomy = replace(recipe, optimizer=replace(recipe.optimizer, grad_clip=1e9))
    batch, _ = select(recipe, groups)
    metrics = update(roomy, prepared, optimizer, accelerator, batch, 3)
    return caught[0] if caught else torch.zeros(0), metrics, batch


@pytest.mark.parametrize("aggregation", ["sample", "prompt", "token", "constant"])
def test_the_gradient_doesnt_depend_on_micro_batches_or_order(
    random_model_folder: str, recipe: Recipe, aggregation: Any
) -> None:
    whole = replace(recipe, aggregation=aggregation, execution=replace(recipe.execution, microbatch_tokens=10_000))
    cut = replace(whole, execution=Execution(engine="local", device="cpu", microbatch_tokens=1))
    one, measured, _ = gradient(random_model_folder, whole, GROUPS)
    four, measured_cut, batch = gradient(random_model_folder, cut, GROUPS[::-1])
    assert len(micro_batches(batch, 1)) == 4 and len(micro_batches(batch, 10_000)) == 1
    assert torch.allclose(one, four, rtol=1e-4, atol=1e-6 * float(one.abs().max()) + 1e-7)
    assert one.norm() > 0
    for name, value in measured.items():
        assert measured_cut[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


def test_the_gradient_is_the_formula_written_out(random_model_folder: str, recipe: Recipe) -> None:
    """CISPO, prompt aggregation, batch normalization: -sum A_i min(r, cap) grad l / (P T_p), forced tokens left out."""
    caught, metrics, _ = gradient(random_model_folder, replace(recipe, loss=Cispo(eps_max=1.5)), GROUPS)
    model, _ = load_model(random_model_folder)
    total = torch.zeros(())
    # Rewards are +1 and -1, centred in their group they are the same, and their deviation is 1 (+ 1e-6).
    for graded, advantages, tokens in ((GROUPS[0], (1, -1), 9), (GROUPS[1], (-1, 1), 5)):
        for response, advantage in zip(graded.rollouts, advantages, strict=True):
            packed = pack([graded.prompt], [response.tokens], "cpu")
            logp, _ = response_logprobs(model, packed, temperature=1.0, dtype="float32", head_dtype="float32")
            for position, forced in enumerate(response.forced):
                if not forced:
                    ratio = (logp[0, position].detach() - response.logprobs[position]).exp().clamp(max=1.5)
                    total = total - advantage * ratio * logp[0, position] / (2 * tokens)
    total.backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert torch.allclose(caught, expected, rtol=1e-3, atol=1e-5 * float(expected.abs().max()))
    assert metrics["train/loss"] == pytest.approx(total.item(), rel=1e-4)
    assert metrics["train/lag_max"] == 3 and metrics["train/lag_mean"] == pytest.approx((3 * 12 + 2 * 2) / 14)


def test_dropping_and_keeping_zero_variance_groups(recipe: Recipe) -> None:
    batch, seen = select(recipe, GROUPS)
    assert len(batch.rollouts) == 4 and seen["train/groups_trained"] == 2 and seen["train/groups_zero_variance"] == 1
    assert seen["train/pass_rate"] == pytest.approx(4 / 6) and seen["train/reward"] == pytest.approx(2 / 6)
    kept, seen = select(replace(recipe, curriculum=Curriculum(zero_variance="keep")), GROUPS)
    assert len(kept.rollouts) == 6 and seen["train/groups_trained"] == 3
    # P is 3 instead of 2 and the deviation over six rollouts is smaller: both change what the others contribute.
    assert kept.weight[0] == pytest.approx(float(batch.weight[0]) * 2 / 3)
    assert kept.advantage[0] == pytest.approx((6 / 4) ** 0.5, abs=1e-5) and kept.advantage[4] == 0


def test_a_batch_without_variance_changes_nothing(random_model_folder: str, recipe: Recipe) -> None:
    caught, metrics, batch = gradient(random_model_folder, recipe, GROUPS[2:])
    assert not batch.rollouts and len(caught) == 0 and metrics["train/loss"] == 0


@pytest.mark.parametrize("loss", [Dapo(), Gspo(eps_low=0.05, eps_high=0.07)])
def test_losses_reach_the_gradient(random_model_folder: str, recipe: Recipe, loss: Any) -> None:
    cispo, _, _ = gradient(random_model_folder, recipe, GROUPS)
    other, _, _ = gradient(random_model_folder, replace(recipe, loss=loss), GROUPS)
    assert not torch.allclose(cispo, other, rtol=1e-2)


def test_a_gradient_that_is_not_finite_is_divergence(random_model_folder: str, recipe: Recipe) -> None:
    huge = replace(recipe, loss=Dapo(), reward=Reward(correct=1e38, wrong=-1e38), normalization="none")
    with pytest.raises(Diverged, match="step 4"):
        gradient(random_model_folder, huge, GROUPS)


def test_rollouts_of_a_broken_policy_are_divergence(recipe: Recipe) -> None:
    bad = replace(GROUPS[2].rollouts[0], logprobs=(-1.0, float("nan"), -1.0))
    with pytest.raises(Diverged, match="not finite"):
        select(recipe, [replace(GROUPS[2], rollouts=(bad, GROUPS[2].rollouts[1])), *GROUPS[:2]])


def test_the_rate_warms_up_and_stays(recipe: Recipe) -> None:
    warm = replace(recipe, optimizer=replace(recipe.optimizer, lr=1.0, warmup_steps=4))
    assert [learning_rate(warm, version) for version in (0, 1, 3, 4, 400)] == [0.25, 0.5, 1, 1, 1]
    assert learning_rate(replace(recipe, optimizer=replace(recipe.optimizer, warmup_steps=0, lr=2.0)), 0) == 2.0

"""What an update computes once for several rollouts: their prompt, and all of it where rollouts are equal."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from rlsweep.model.load import load_model
from rlsweep.recipe.curriculum import Curriculum
from rlsweep.recipe.loss import Cispo, Dapo, Gspo
from rlsweep.recipe.schema import Recipe
from rlsweep.rollout.protocol import Rollout
from rlsweep.train import update
from rlsweep.train.intake import Graded
from rlsweep.train.update import TrainingBatch, micro_batches, select, shares_prompts

LONG, SHORT = (6, 29, 24, 39, 3, 3), (8, 9)


def rollout(*tokens: int, behaviour: float = -3.5, forced: tuple[int, ...] = ()) -> Rollout:
    mask = tuple(place in forced for place in range(len(tokens)))
    logprobs = tuple(0.0 if is_forced else behaviour - 0.1 * place for place, is_forced in enumerate(mask))
    return Rollout(tokens, logprobs, mask, ((0, 0, len(tokens)),), "stop")


# Equal texts with other log-probabilities, outcomes or forced tokens. Another prompt's response is another text.
GROUPS = [
    Graded(
        0,
        LONG,
        (
            rollout(10, 11, 1),
            rollout(12, 13, 14, 1),
            rollout(10, 11, 1, behaviour=-2.5),
            rollout(10, 11, 1, forced=(1,)),
        ),
        ("correct", "wrong", "correct", "wrong"),
    ),
    Graded(1, SHORT, (rollout(10, 11, 1), rollout(7, 1), rollout(10, 11, 1)), ("wrong", "correct", "wrong")),
    Graded(
        2,
        LONG,
        (
            rollout(12, 13, 14, 1),
            rollout(
                5,
            ),
        ),
        ("wrong", "correct"),
    ),
]
DISTINCT = 5


@pytest.fixture()
def recipe(small_recipe: Recipe) -> Recipe:
    return replace(
        small_recipe,
        curriculum=Curriculum(no_positive_resampling=None),
        optimizer=replace(small_recipe.optimizer, grad_clip=1e9),
    )


def learn(folder: str, recipe: Recipe, batch: TrainingBatch, microbatch: int) -> tuple[torch.Tensor, dict[str, float]]:
    model, _ = load_model(folder)
    caught: list[torch.Tensor] = []

    class Catch(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            caught.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).clone())

    accelerator = Accelerator(cpu=True)
    prepared, optimizer = accelerator.prepare(model, Catch(model.parameters(), lr=0.0))
    recipe = replace(recipe, execution=replace(recipe.execution, microbatch_tokens=microbatch))
    measured = update.update(recipe, prepared, optimizer, accelerator, batch, 0)
    return caught[0], measured


@pytest.mark.parametrize("loss", [Cispo(eps_max=1.2), Dapo(), Gspo(eps_low=0.05, eps_high=0.07)], ids=str)
@pytest.mark.parametrize(("microbatch", "shared", "parts"), [(1, False, 5), (24, True, 2), (10_000, True, 1)])
def test_equal_rollouts_are_computed_once_and_count_each(
    random_model_folder: str,
    recipe: Recipe,
    monkeypatch: pytest.MonkeyPatch,
    loss: Any,
    microbatch: int,
    shared: bool,
    parts: int,
) -> None:
    """The gradient is the sum of those of each rollout alone; each distinct text is computed in one micro-batch."""
    recipe = replace(recipe, loss=loss)
    batch, _ = select(recipe, GROUPS)
    alone = [
        learn(
            random_model_folder,
            recipe,
            TrainingBatch([prompt], [response], batch.advantage[row : row + 1], batch.weight[row : row + 1]),
            10_000,
        )
        for row, (prompt, response) in enumerate(zip(batch.prompts, batch.rollouts, strict=True))
    ]
    expected = torch.stack([each for each, _ in alone]).sum(0)
    computed: list[tuple[int, bool]] = []
    original = update.response_logprobs

    def counted(model: Any, packed: Any, **options: Any) -> Any:
        computed.append((len(packed.targets), options["begun"] is not None))
        return original(model, packed, **options)

    monkeypatch.setattr(update, "response_logprobs", counted)
    found, measured = learn(random_model_folder, recipe, batch, microbatch)
    assert sum(rows for rows, _ in computed) == DISTINCT and len(computed) == parts
    assert {begun for _, begun in computed} == {shared}
    assert (found - expected).norm() < 1e-5 * expected.norm() and expected.norm() > 0
    assert measured["train/loss"] == pytest.approx(sum(each["train/loss"] for _, each in alone), rel=1e-4, abs=1e-6)


def test_the_order_within_a_micro_batch_is_immaterial(
    random_model_folder: str, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal rows need not stand side by side."""
    batch, _ = select(recipe, GROUPS)
    expected, _ = learn(random_model_folder, recipe, batch, 10_000)
    monkeypatch.setattr(update, "micro_batches", lambda batch, most: [list(range(len(batch.rollouts)))])
    found, _ = learn(random_model_folder, recipe, batch, 10_000)
    assert (found - expected).norm() < 1e-5 * expected.norm()


def test_micro_batches_hold_each_rollout_once_and_equal_ones_together(recipe: Recipe) -> None:
    """Lengths of the five texts: 10 (rows 1, 7), 9 (0, 2, 3), 7 (8), 5 (4, 6) and 4 (5)."""
    batch, _ = select(recipe, GROUPS)
    assert micro_batches(batch, 10_000) == [[1, 7, 0, 2, 3, 8, 4, 6, 5]]
    assert micro_batches(batch, 20) == [[1, 7, 0, 2, 3], [8, 4, 6], [5]]
    assert micro_batches(batch, 1) == [[1, 7], [0, 2, 3], [8], [4, 6], [5]]


def test_prompts_are_shared_where_it_saves_enough_and_they_fit(recipe: Recipe) -> None:
    """LONG stands six times and SHORT three times: 42 tokens, of which 34 repeat what is there, and 26 of responses."""
    batch, _ = select(recipe, GROUPS)
    assert batch.tokens == 42 + 26
    assert shares_prompts(batch, 12) and not shares_prompts(batch, 11)  # two prompts, padded to 6
    for tokens, shares in ((170, True), (171, False)):  # a fifth of 170 is 34
        answer = rollout(*[7] * (tokens - 68 + 3))
        longer = replace(batch, rollouts=[answer, *batch.rollouts[1:]])
        assert longer.tokens == tokens and shares_prompts(longer, 10_000) == shares

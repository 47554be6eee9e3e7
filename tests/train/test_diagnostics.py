"""What the journal tells of a step, computed by hand from a model whose every next token is drawn alike."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from transformers import Qwen3ForCausalLM

from rlsweep.model.embedded import new_config
from rlsweep.model.load import load_model
from rlsweep.recipe.curriculum import Curriculum
from rlsweep.recipe.loss import Cispo
from rlsweep.recipe.model import Embedded
from rlsweep.recipe.reward import Reward
from rlsweep.recipe.schema import Recipe
from rlsweep.rollout.local import LocalEngine
from rlsweep.rollout.protocol import Group, Request, Rollout, RolloutEngine
from rlsweep.store import attempts
from rlsweep.store.journal import read_rows
from rlsweep.store.layout import Root
from rlsweep.store.metrics import METRICS
from rlsweep.tasks.protocol import Outcome, Prompt
from rlsweep.tasks.registers import RegisterTask
from rlsweep.train import loop, state
from rlsweep.train.intake import Graded
from rlsweep.train.update import select, update

SHARES = (0.5, 0.25, 0.125, 0.125)
"""Probabilities of tokens 0 to 3 after any text; no other token ever comes."""
WIDTH = 64
VERSION = 7


def alike() -> Qwen3ForCausalLM:
    """Every hidden state is all ones, whatever was read: logits are the row sums of the head, all that is trained."""
    model = Qwen3ForCausalLM(new_config(replace(Embedded(), layers=1, width=WIDTH), 8))
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(torch.full((8, WIDTH), -100.0 / WIDTH))
    with torch.no_grad():
        for token, share in enumerate(SHARES):
            model.lm_head.weight[token] = math.log(share) / WIDTH
        for name, parameter in model.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                parameter.zero_()
            elif "embed_tokens" in name:
                parameter.fill_(1.0)
            parameter.requires_grad_(name == "lm_head.weight")
    return model.eval()


def rollout(
    tokens: tuple[int, ...], ratios: tuple[float, ...], spans: Any, forced: int = 0, end: Any = "stop"
) -> Rollout:
    """Sampled tokens whose ratios of new to old probability are `ratios`, then so many forced ones."""
    logprobs = tuple(math.log(SHARES[t] / r) for t, r in zip(tokens, ratios, strict=True))
    return Rollout(
        (*tokens, *[6] * forced), (*logprobs, *[0.0] * forced), (*[False] * len(tokens), *[True] * forced), spans, end
    )


def group(outcomes: tuple[Outcome, ...], *rollouts: Rollout, errors: int = 0) -> Graded:
    return Graded(0, (4, 5), rollouts, outcomes, errors)


MIXED = [
    group(
        ("correct", "wrong"),
        rollout((0, 1), (1.0, 2.0), ((VERSION, 0, 1), (5, 1, 2))),
        rollout((2,), (4.0,), ((4, 0, 1),)),
    ),
    group(
        ("unparseable", "correct"),
        rollout((3,), (0.5,), ((VERSION, 0, 1),)),
        rollout((0,), (1.0,), ((6, 0, 1), (1, 1, 3)), forced=2),
        errors=1,
    ),
]
FLAT = [
    group(("correct", "correct"), rollout((0, 0, 0), (9.0,) * 3, ((0, 0, 3),)), rollout((1,), (9.0,), ((0, 0, 1),))),
    group(
        ("truncated", "wrong"),
        rollout((1,) * 6, (9.0,) * 6, ((0, 0, 8),), forced=2, end="length"),
        rollout((1, 1), (9.0,) * 2, ((0, 0, 2),)),
        errors=2,
    ),
]
SELECTED = {
    "train/reward",
    "train/pass_rate",
    "train/groups_generated",
    "train/groups_trained",
    "train/groups_zero_variance",
    "train/response_tokens",
    "train/truncated",
    "train/interrupted",
    "train/verifier_errors",
}
UPDATED = {
    "train/loss",
    "train/lr",
    "train/grad_norm",
    "train/entropy",
    "train/clip_fraction",
    "train/mismatch_mean",
    "train/mismatch_max",
    "train/effective_sample_size",
    "train/lag_mean",
    "train/lag_max",
}


def measured(recipe: Recipe, groups: Sequence[Graded]) -> dict[str, float]:
    model = alike()
    accelerator = Accelerator(cpu=True)
    prepared, optimizer = accelerator.prepare(model, torch.optim.SGD([model.lm_head.weight], lr=0.0))
    batch, seen = select(recipe, groups)
    learned = update(recipe, prepared, optimizer, accelerator, batch, VERSION)
    assert not seen.keys() & learned.keys()
    return seen | learned


@pytest.fixture()
def recipe(small_recipe: Recipe) -> Recipe:
    return replace(
        small_recipe,
        loss=Cispo(eps_max=3.0),
        aggregation="prompt",
        normalization="none",
        reward=Reward(correct=1.0, wrong=-1.0, truncated=-2.0, unparseable=-3.0),
        curriculum=Curriculum(zero_variance="drop", no_positive_resampling=None),
    )


def test_every_metric_of_a_step_by_hand(recipe: Recipe) -> None:
    found = measured(recipe, [MIXED[0], FLAT[0], MIXED[1], FLAT[1]])
    assert found.keys() == SELECTED | UPDATED
    # What arrived, before any filter: 8 rollouts of 2, 1, 3, 1, 1, 3, 8 and 2 tokens.
    assert found["train/groups_generated"] == 4
    assert found["train/groups_zero_variance"] == 2 == found["train/groups_generated"] - found["train/groups_trained"]
    assert found["train/pass_rate"] == 4 / 8
    assert found["train/reward"] == pytest.approx((4 * 1 + 2 * -1 - 2 - 3) / 8)
    assert found["train/response_tokens"] == 21 / 8
    assert found["train/truncated"] == 1 / 8 and found["train/interrupted"] == 2 / 8
    assert found["train/verifier_errors"] == 3
    # The five tokens that are trained on: ratios 1, 2, 4 | 1/2, 1.
    assert found["train/entropy"] == pytest.approx(1.75 * math.log(2), rel=1e-5)
    assert found["train/clip_fraction"] == 1 / 5
    assert found["train/mismatch_mean"] == pytest.approx((0 + 1 + 2 + 1 + 0) * math.log(2) / 5, rel=1e-5)
    assert found["train/mismatch_max"] == pytest.approx(2 * math.log(2), rel=1e-5)
    assert found["train/effective_sample_size"] == pytest.approx(8.5**2 / (5 * 22.25), rel=1e-5)
    # Ages 0, 2, 3 | 0, 1: the forced tokens, 6 versions old, are not trained on.
    assert found["train/lag_mean"] == pytest.approx(6 / 5) and found["train/lag_max"] == 3
    # -A min(r, 3) of each token, over 2 prompts and the 3 and 2 tokens of theirs. Advantages: 1, -1 | -2, 2.
    factors = {0: -1 / 6 - 2 / 4, 1: -2 / 6, 2: 3 / 6, 3: 2 * 0.5 / 4}
    assert found["train/loss"] == pytest.approx(sum(f * math.log(SHARES[t]) for t, f in factors.items()), rel=1e-4)
    # d log p_t / d logit_v = [v = t] - p_v, and each logit is a sum of WIDTH weights.
    slopes = [factors[v] - share * sum(factors.values()) for v, share in enumerate(SHARES)]
    assert found["train/grad_norm"] == pytest.approx(math.sqrt(WIDTH * sum(s * s for s in slopes)), rel=1e-4)


def test_the_temperature_is_part_of_entropy_and_ratios(recipe: Recipe) -> None:
    """At temperature 1/2 the shares are squared: 16, 4, 1 and 1 of 22."""
    sharp = replace(recipe, sampling=replace(recipe.sampling, temperature=0.5))
    found = measured(sharp, MIXED)
    shares = [16 / 22, 4 / 22, 1 / 22, 1 / 22]
    assert found["train/entropy"] == pytest.approx(-sum(p * math.log(p) for p in shares), rel=1e-5)
    change = [shares[t] / SHARES[t] * r for t, r in ((0, 1), (1, 2), (2, 4), (3, 0.5), (0, 1))]
    assert found["train/mismatch_max"] == pytest.approx(max(abs(math.log(r)) for r in change), rel=1e-5)


def test_a_step_without_anything_to_train_on_tells_what_is_defined(recipe: Recipe) -> None:
    found = measured(recipe, FLAT)
    assert found.keys() == SELECTED | {"train/loss", "train/lr"}
    assert (found["train/groups_generated"], found["train/groups_trained"], found["train/groups_zero_variance"]) == (
        2,
        0,
        2,
    )
    assert (found["train/truncated"], found["train/interrupted"], found["train/verifier_errors"]) == (1 / 4, 1 / 4, 2)
    assert found["train/pass_rate"] == 2 / 4 and found["train/response_tokens"] == 14 / 4 and found["train/loss"] == 0


def test_kept_groups_are_counted_but_not_dropped(recipe: Recipe) -> None:
    keep = replace(recipe, curriculum=Curriculum(zero_variance="keep", no_positive_resampling=None))
    found = measured(keep, [*MIXED, *FLAT])
    assert (found["train/groups_zero_variance"], found["train/groups_trained"]) == (2, 4)
    assert found["train/lag_max"] == VERSION
    assert found["train/lag_mean"] == pytest.approx((6 + VERSION * 12) / 17)


@dataclass
class Wall:
    """A clock that moves when it is told to."""

    now: float = 100.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1.0


def test_the_local_engine_is_busy_while_it_samples(random_model_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = load_model(random_model_folder)
    engine = LocalEngine(model, eos=tokenizer.eos_token_id, dtype="float32", head_dtype="float32")
    wall, sample = Wall(), engine._sample

    def slow(requests: list[Request]) -> list[Group]:
        wall.now += 5
        return sample(requests)

    monkeypatch.setattr("rlsweep.rollout.local.time", wall)
    monkeypatch.setattr(engine, "_sample", slow)
    assert engine.busy() == 0
    for temperature in (1.0, 0.5):  # two blocks
        engine.submit([Request(0, (4, 5), 2, 1, temperature, 3)])
        wall.now += 1000  # the trainer is at work
    engine.publish(1, model)
    engine.collect(wait=True)
    assert engine.busy() == 10 and engine.busy() == 0


@dataclass
class Elsewhere:
    """An engine in other processes: the trainer waits for it, and it says itself how long it was busy."""

    engine: RolloutEngine
    wall: Wall
    busy_s: float = 0.0

    def submit(self, requests: Sequence[Request]) -> None:
        self.engine.submit(requests)

    def collect(self, *, wait: bool) -> list[Group]:
        self.wall.now += 100
        return self.engine.collect(wait=wait)

    def publish(self, version: int, model: Any) -> None:
        self.wall.now += 10
        self.engine.publish(version, model)

    def busy(self) -> float:
        self.busy_s += 1
        return self.busy_s

    def close(self) -> None:
        self.engine.close()


def rows(
    recipe: Recipe, tmp_path: Path, folder: str, change: Callable[[state.State], None] = lambda built: None
) -> list[dict[str, Any]]:
    run = Root(tmp_path).run("0123456789ab")
    run.path.mkdir(parents=True)
    built = state.build(recipe, run, attempts.claim(run), lambda: (folder, None), time.monotonic())
    change(built)
    assert loop.train(built, lambda text: None).state == "finished"
    return read_rows(run.journal)


def test_waiting_is_not_busy(
    small_recipe: Recipe, tmp_path: Path, model_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = Wall()

    def slow(*arguments: Any) -> dict[str, float]:
        wall.now += 3
        return update(*arguments)

    def elsewhere(built: state.State) -> None:
        built.engine = Elsewhere(built.engine, wall)

    monkeypatch.setattr(loop, "time", wall)
    monkeypatch.setattr(loop, "update", slow)
    found = rows(
        replace(small_recipe, execution=replace(small_recipe.execution, checkpoint_minutes=None)),
        tmp_path,
        model_folder,
        elsewhere,
    )
    names = {"step": "time/generation_busy_s", "evaluation": "time/evaluation_busy_s"}
    assert [row["metrics"][names[row["kind"]]] for row in found] == list(range(1, len(found) + 1))
    steps = [row["metrics"] for row in found if row["kind"] == "step"]
    assert {row["time/training_busy_s"] for row in steps} == {3}
    assert {row["time/training_s"] for row in steps} == {13}
    assert all(row["time/generation_s"] >= 100 for row in steps)


def test_the_schema_is_what_runs_write(small_recipe: Recipe, tmp_path: Path, model_folder: str) -> None:
    found = rows(small_recipe, tmp_path, model_folder)
    assert {name for row in found for name in row["metrics"]} == set(METRICS)
    steps = [row["metrics"] for row in found if row["kind"] == "step"]
    trained = [row for row in steps if row["train/groups_trained"]]
    assert trained and all(row.keys() == trained[0].keys() for row in trained)
    assert all(0 < row["time/training_busy_s"] <= row["time/training_s"] for row in trained)
    assert all(0 < row["time/generation_busy_s"] <= row["time/generation_s"] for row in steps)


def test_a_run_without_variance_tells_what_is_defined_at_every_step(
    small_recipe: Recipe, tmp_path: Path, model_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hopeless(RegisterTask):
        def grade(self, prompt: Prompt, response: str, *, stopped: bool) -> Outcome:
            return "wrong" if stopped else "truncated"

    monkeypatch.setattr(state, "make_task", Hopeless)
    steps = [row["metrics"] for row in rows(small_recipe, tmp_path, model_folder) if row["kind"] == "step"]
    expected = set(METRICS) - (UPDATED - {"train/loss", "train/lr"})
    for row in steps:
        assert row.keys() == {name for name in expected if not name.startswith("evaluation/")} - {
            "time/evaluation_busy_s"
        }
        assert (
            row["train/groups_zero_variance"] == row["train/groups_generated"] == 4 and row["train/groups_trained"] == 0
        )
        assert row["train/pass_rate"] == 0 and row["train/response_tokens"] > 0 and row["train/loss"] == 0

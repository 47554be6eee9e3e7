"""Rollouts on their way: lag by admission, evaluation beside training, and a checkpoint that loses none of them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rlsweep.model.load import load_model
from rlsweep.recipe.off_policy import Pipeline, Ppo
from rlsweep.recipe.schema import Recipe
from rlsweep.rollout.protocol import Group, Request, Rollout
from rlsweep.tasks.make import make_task
from rlsweep.train.admission import finish_before_training, must_publish
from rlsweep.train.curriculum import PromptStream
from rlsweep.train.evaluate import evaluate
from rlsweep.train.grading import Failures
from rlsweep.train.intake import Intake, Tokens


class Labels:
    """An engine that samples nothing but writes its version down, and hands groups over one by one, last first."""

    def __init__(self) -> None:
        self.version = 0
        self.waiting: list[Group] = []
        self.seen: list[Request] = []

    def submit(self, requests: Sequence[Request]) -> None:
        self.seen += requests
        for request in requests:
            answer = Rollout((5, 1), (-0.25, -0.5), (False, False), ((self.version, 0, 2),), "stop")
            self.waiting.append(Group(request.id, (answer,) * request.count))

    def collect(self, *, wait: bool) -> list[Group]:
        return [self.waiting.pop()] if self.waiting and wait else []

    def publish(self, version: int, model: Any) -> None:
        self.version = version

    def close(self) -> None:
        self.waiting.clear()


class Counts:
    """What the clock was told."""

    def __init__(self) -> None:
        self.samples = self.prompt_tokens = self.response_tokens = 0

    def __call__(self, samples: int, prompt_tokens: int, response_tokens: int) -> None:
        self.samples += samples
        self.prompt_tokens += prompt_tokens
        self.response_tokens += response_tokens


def intake(recipe: Recipe, folder: str) -> tuple[Intake, Counts, Tokens]:
    task = make_task(recipe.task)
    tokens = Tokens(load_model(folder)[1], task)
    counts = Counts()
    stream = PromptStream(recipe.curriculum, task.size, recipe.seed)
    return Intake(recipe, task, stream, tokens, counts), counts, tokens


@pytest.mark.parametrize(
    ("scheme", "lags"),
    [
        (Pipeline(k=0), [0, 0, 0, 0, 0, 0]),
        (Pipeline(k=2), [0, 1, 2, 2, 2, 2]),
        (Ppo(k=1), [0, 0, 0, 0, 0, 0]),
        (Ppo(k=3), [0, 1, 2, 0, 1, 2]),
    ],
)
def test_the_lag_of_each_batch(small_recipe: Recipe, random_model_folder: str, scheme: Any, lags: list[int]) -> None:
    recipe = replace(small_recipe, off_policy=scheme)
    way, counts, _ = intake(recipe, random_model_folder)
    engine = Labels()
    measured = []
    for version in range(6):
        way.admit(engine, version)
        groups = way.take(engine, finish_before_training(scheme, version), version)
        assert [g.prompt_index for g in groups] and len(groups) == recipe.batch.prompts
        versions = {r.versions[0][0] for g in groups for r in g.rollouts}
        assert len(versions) == 1
        measured.append(version - versions.pop())
        if must_publish(scheme, version + 1):
            engine.publish(version + 1, torch.nn.Identity())
    assert measured == lags
    collected = counts.samples // recipe.batch.rollouts
    assert counts.prompt_tokens == 8 * counts.samples and counts.response_tokens == 2 * counts.samples
    assert collected + len(engine.waiting) == len(engine.seen)


def test_requests_are_reproducible_and_distinct(small_recipe: Recipe, random_model_folder: str) -> None:
    def seen(recipe: Recipe) -> list[Request]:
        way, _, _ = intake(recipe, random_model_folder)
        engine = Labels()
        way.admit(engine, 1)
        return engine.seen

    first = seen(small_recipe)
    assert first == seen(small_recipe)
    assert len({r.seed for r in first}) == len(first) == len({r.id for r in first})
    assert all(6 <= at <= 8 for r in first for at in r.interrupt_at)
    other = seen(replace(small_recipe, seed=1))
    assert not {r.seed for r in first} & {r.seed for r in other}
    assert [r.prompt for r in first] != [r.prompt for r in other]


def test_saved_and_loaded_nothing_is_lost_or_asked_twice(
    small_recipe: Recipe, random_model_folder: str, tmp_path: Path
) -> None:
    """Finished groups come back as they were, of batches that are half finished too; the rest is submitted again."""
    engine = Labels()
    way, _, _ = intake(small_recipe, random_model_folder)
    way.admit(engine, 0)
    taken = way.take(engine, range(1), 0)
    way.save(tmp_path / "rollouts.npz")
    missing = {group.id for group in engine.waiting}

    again = Labels()
    resumed, _, _ = intake(small_recipe, random_model_folder)
    resumed.load(tmp_path / "rollouts.npz", again)
    assert {request.id for request in again.seen} == missing
    assert {r.id: r for r in again.seen}.items() <= {r.id: r for r in engine.seen}.items()
    for batch in (1, 2):
        assert way.take(engine, range(batch, batch + 1), batch) == resumed.take(again, range(batch, batch + 1), batch)
    assert taken


def test_an_evaluation_keeps_training_groups_apart(small_recipe: Recipe, random_model_folder: str) -> None:
    """Groups for training that arrive during an evaluation are neither lost nor counted in it."""
    engine = Labels()
    way, _, tokens = intake(small_recipe, random_model_folder)
    way.admit(engine, 0)
    task = make_task(small_recipe.task)
    row, _ = evaluate(small_recipe, task, tokens, way, engine, 0)
    assert len(row["counts"]) == small_recipe.evaluation.prompts and row["samples"] == 2
    assert all(request.count == 2 for request in engine.seen if request.id < 0)
    for batch in range(3):
        assert len(way.take(engine, range(batch, batch + 1), batch)) == small_recipe.batch.prompts


def test_grading_reads_the_text_without_its_end(small_recipe: Recipe, random_model_folder: str) -> None:
    _, _, tokens = intake(small_recipe, random_model_folder)
    prompt = make_task(small_recipe.task).prompt(0)
    answer = tokens.encode("12#" + prompt.answer)
    stopped = Rollout((*answer, tokens.eos), (), (), (), "stop")
    assert tokens.grade(prompt, stopped, Failures("step", 1)) == "correct"
    cut = replace(stopped, tokens=answer, finish="length")
    assert tokens.grade(prompt, cut, Failures("step", 1)) == "truncated"

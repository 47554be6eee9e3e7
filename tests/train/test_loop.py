"""The loop in this process: how it ends, and what is refused before anything large is loaded."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rlsweep.errors import RecipeError, RlsweepError
from rlsweep.recipe.batch import Batch
from rlsweep.recipe.budget import Budget
from rlsweep.recipe.compute import disk, embedded_parameters
from rlsweep.recipe.execution import Execution
from rlsweep.recipe.length import Interrupt
from rlsweep.recipe.model import Pretrained
from rlsweep.recipe.off_policy import Pipeline
from rlsweep.recipe.resolved import dump
from rlsweep.recipe.schema import Recipe
from rlsweep.recipe.task import Math
from rlsweep.store import attempts, checkpoints, garbage, outcome
from rlsweep.store.files import write_json
from rlsweep.store.garbage import size_of
from rlsweep.store.layout import Root
from rlsweep.store.outcome import Outcome
from rlsweep.train.loop import train
from rlsweep.train.state import State, build


def run_once(recipe: Recipe, tmp_path: Path, source: Any) -> Outcome:
    run = Root(tmp_path).run("0123456789ab")
    run.path.mkdir(parents=True, exist_ok=True)
    state = build(recipe, run, attempts.claim(run), source, time.monotonic())
    return train(state, lambda text: None)


def test_asked_to_stop_after_the_last_step_it_is_finished(
    small_recipe: Recipe, tmp_path: Path, model_folder: str, after_each_step: Any
) -> None:
    def ends(steps: int) -> Outcome:
        recipe = replace(small_recipe, budget=Budget(steps=steps))
        with after_each_step(lambda: True):
            return run_once(recipe, tmp_path, lambda: (model_folder, None))

    first = ends(2)
    assert (first.state, first.step) == ("interrupted", 1)
    second = ends(2)
    assert (second.state, second.step) == ("finished", 2)
    newest = checkpoints.newest(Root(tmp_path).run("0123456789ab"))
    assert newest is not None and newest.step == 2
    written = newest.path.stat().st_ctime_ns
    assert ends(2).state == "finished" and newest.path.stat().st_ctime_ns == written  # nothing to do, nothing rewritten


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": Pretrained(path="some/model"), "task": Math(dataset="some/data")}, "valid here: registers"),
        ({"execution": Execution(engine="vllm", device="cpu")}, "valid: local"),
    ],
)
def test_what_cant_be_trained_is_refused_before_a_model_is_loaded(
    small_recipe: Recipe, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    def load() -> Any:
        raise AssertionError("the model was asked for")

    with pytest.raises(RecipeError, match=message):
        run_once(replace(small_recipe, **change), tmp_path, load)


def test_a_phrase_that_leaves_no_room_for_an_answer_is_refused(
    small_recipe: Recipe, tmp_path: Path, model_folder: str
) -> None:
    length = Interrupt(earliest=8, latest=10, phrase="so#", end="#")
    with pytest.raises(RecipeError, match=r"10 and the 3 tokens .* no room"):
        run_once(replace(small_recipe, length=length), tmp_path, lambda: (model_folder, None))


FILES = ["resume/optimizer.pt", "resume/rollouts.npz", "state.json", "manifest.json", "model/model.safetensors"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["cut", "flipped", "removed"])
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_it_taken(
    small_recipe: Recipe, tmp_path: Path, model_folder: str, after_each_step: Any, name: str, how: str
) -> None:
    run = Root(tmp_path).run("0123456789ab")
    run.path.mkdir(parents=True)

    def started(steps: int, said: list[str]) -> State:
        recipe = replace(small_recipe, budget=Budget(steps=steps))
        return build(
            recipe, run, attempts.claim(run), lambda: (model_folder, None), time.monotonic(), lambda t: said.append(t)
        )

    state = started(7, [])
    with after_each_step(lambda: state.step == 6):
        train(state, lambda text: None)  # leaves checkpoints of steps 3 and 6
    assert [each.step for each in checkpoints.every(run)] == [3, 6]
    damaged = checkpoints.every(run)[-1].path / name
    content = damaged.read_bytes()
    if how == "removed":
        damaged.unlink()
    else:
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        damaged.write_bytes(content[:-40] if how == "cut" else flipped)
    said: list[str] = []
    state = started(7, said)
    assert state.step == 3
    assert len(said) == 1 and "step-000006 can't be used" in said[0] and "going on from step 3" in said[0]
    (aside,) = checkpoints.damaged(run)
    assert [each.step for each in checkpoints.every(run)] == [3]
    assert (aside / name).exists() is (how != "removed")  # nothing is thrown away


def test_where_the_journal_was_cut_the_checkpoint_that_it_still_covers_is_taken(
    small_recipe: Recipe, tmp_path: Path, model_folder: str, after_each_step: Any
) -> None:
    run = Root(tmp_path).run("0123456789ab")
    run.path.mkdir(parents=True)

    def started(said: list[str]) -> State:
        return build(
            replace(small_recipe, budget=Budget(steps=7)),
            run,
            attempts.claim(run),
            lambda: (model_folder, None),
            time.monotonic(),
            said.append,
        )

    state = started([])
    with after_each_step(lambda: state.step == 6):
        train(state, lambda text: None)  # leaves checkpoints of steps 3 and 6
    run.journal.write_bytes(run.journal.read_bytes()[:-5])
    said: list[str] = []
    state = started(said)
    assert state.step == 3 and "step-000006 can't be used (metrics.jsonl lacks rows that it covers)" in said[0]
    assert train(state, lambda text: None).state == "finished"
    # Where there is no other, a whole run is not begun again unasked.
    run.journal.write_bytes(run.journal.read_bytes()[:-5])
    state = started([])
    with pytest.raises(RlsweepError, match=r"no row that ends at byte .* Put it back, or remove"):
        train(state, lambda text: None)


def test_checkpoints_come_by_steps_by_minutes_and_where_weights_are_kept(
    small_recipe: Recipe, tmp_path: Path, model_folder: str, after_each_step: Any
) -> None:
    """Every 5 steps, each multiple of 4 for good, and once 2 minutes have passed since the last."""
    execution = replace(small_recipe.execution, checkpoint_every=5, keep_every=4, checkpoint_minutes=2.0)
    recipe = replace(small_recipe, execution=execution, budget=Budget(steps=11))
    run = Root(tmp_path).run("0123456789ab")
    run.path.mkdir(parents=True)
    state = build(recipe, run, attempts.claim(run), lambda: (model_folder, None), time.monotonic())
    seen = {}

    def look() -> None:
        seen[state.step] = [(each.step, each.resumable) for each in checkpoints.every(run)]
        if state.step == 5:
            state.saved -= 119.0  # as if so much time had passed: due with the next second, not before
        if state.step == 6:
            state.saved -= 1.0

    with after_each_step(look):
        train(state, lambda text: None)
    assert seen[3] == []
    assert seen[4] == [(4, True)]
    assert seen[5] == seen[6] == [(4, True), (5, True)]
    assert seen[7] == [(4, False), (5, True), (7, True)]
    assert seen[8] == [(4, False), (7, True), (8, True)]
    assert seen[10] == [(4, False), (8, True), (10, True)]
    assert [(each.step, each.resumable) for each in checkpoints.every(run)] == [(4, False), (8, False), (11, True)]


@pytest.mark.parametrize("last", [3, 4])
def test_weights_that_are_not_finite_are_no_checkpoint(
    small_recipe: Recipe, tmp_path: Path, model_folder: str, last: int
) -> None:
    """Neither on the way nor at the end: the good one before it stays."""
    execution = replace(small_recipe.execution, checkpoint_every=1)
    recipe = replace(small_recipe, execution=execution, budget=Budget(steps=4))
    run = Root(tmp_path).run("0123456789ab")
    run.path.mkdir(parents=True)
    state = build(recipe, run, attempts.claim(run), lambda: (model_folder, None), time.monotonic())
    step = state.optimizer.step

    def spoil(*_: Any) -> None:
        step()
        if state.step == last - 1:
            with torch.no_grad():
                next(state.model.parameters()).view(-1)[-1] = float("inf")

    state.optimizer.step = spoil
    ended = train(state, lambda text: None)
    assert (ended.state, ended.step) == ("diverged", last) and "not finite" in ended.reason
    newest = checkpoints.resumable(run)
    assert newest is not None and newest.step == last - 1


def test_the_plans_disk_is_a_bound_of_what_a_run_takes(
    small_recipe: Recipe, tmp_path: Path, model_folder: str, after_each_step: Any
) -> None:
    execution = replace(small_recipe.execution, keep_every=2)
    recipe = replace(small_recipe, execution=execution, off_policy=Pipeline(k=4), batch=Batch(prompts=8, rollouts=32))
    run = Root(tmp_path).run("0123456789ab")
    run.path.mkdir(parents=True)
    run.recipe.write_text(dump(recipe))
    state = build(recipe, run, attempts.claim(run), lambda: (model_folder, None), time.monotonic())
    most = 0

    def look() -> None:
        nonlocal most
        most = max(most, size_of(run.path))

    with after_each_step(look):
        ended = train(state, lambda text: None)
    write_json(state.attempt.process, {**attempts.identity(1), "start_ticks": 1})  # its process is gone
    outcome.write(run, ended)
    bound = disk(recipe)
    assert bound is not None
    beside = size_of(checkpoints.every(run)[-1].path)  # `look` never sees the checkpoint that is being written
    assert 0.4 * bound.running < most + beside <= bound.running
    assert 0.4 * bound.finished < size_of(run.path) <= bound.finished
    for each in garbage.find(run, {}):
        garbage.free(each)
    assert 0.3 * bound.collected < size_of(run.path) <= bound.collected
    assert bound.finished - bound.collected > 8 * embedded_parameters(recipe.model)

"""The loop in this process: how it ends, and what is refused before anything large is loaded."""

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlsweep.errors import RecipeError, RlsweepError
from rlsweep.recipe.budget import Budget
from rlsweep.recipe.execution import Execution
from rlsweep.recipe.length import Interrupt
from rlsweep.recipe.model import Pretrained
from rlsweep.recipe.schema import Recipe
from rlsweep.recipe.task import Math
from rlsweep.store import attempts, checkpoints
from rlsweep.store.layout import Root
from rlsweep.store.outcome import Outcome
from rlsweep.train.loop import train
from rlsweep.train.state import build


def run_once(recipe: Recipe, tmp_path: Path, source: Any, *, stop: bool) -> Outcome:
    run = Root(tmp_path).run("0123456789ab")
    run.path.mkdir(parents=True, exist_ok=True)
    state, length = build(recipe, run, attempts.claim(run), source, time.monotonic())
    return train(state, length, lambda: stop, lambda text: None)


def test_asked_to_stop_after_the_last_step_it_is_finished(
    small_recipe: Recipe, tmp_path: Path, model_folder: str
) -> None:
    def ends(steps: int) -> Outcome:
        recipe = replace(small_recipe, budget=Budget(steps=steps))
        return run_once(recipe, tmp_path, lambda: (model_folder, None), stop=True)

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
        run_once(replace(small_recipe, **change), tmp_path, load, stop=False)


def test_a_phrase_that_leaves_no_room_for_an_answer_is_refused(
    small_recipe: Recipe, tmp_path: Path, model_folder: str
) -> None:
    length = Interrupt(earliest=8, latest=10, phrase="so#", end="#")
    with pytest.raises(RecipeError, match=r"10 and the 3 tokens .* no room"):
        run_once(replace(small_recipe, length=length), tmp_path, lambda: (model_folder, None), stop=False)


@pytest.mark.parametrize("name", ["optimizer.pt", "state.json", "rollouts.npz", "model/model.safetensors"])
def test_a_damaged_checkpoint_is_named_with_the_way_out(
    small_recipe: Recipe, tmp_path: Path, model_folder: str, name: str
) -> None:
    """Once it is removed the run goes on from the one before it."""

    def ends(steps: int) -> Outcome:
        recipe = replace(small_recipe, budget=Budget(steps=steps))
        return run_once(recipe, tmp_path, lambda: (model_folder, None), stop=False)

    ends(5)  # leaves checkpoints of steps 3 and 5
    newest = checkpoints.newest(Root(tmp_path).run("0123456789ab"))
    assert newest is not None
    damaged = newest.path / name
    damaged.write_bytes(damaged.read_bytes()[:-40])
    with pytest.raises(RlsweepError, match=r"step-000005 is damaged .* remove it to go on from step 3"):
        ends(6)
    shutil.rmtree(newest.path)
    assert ends(6).step == 6

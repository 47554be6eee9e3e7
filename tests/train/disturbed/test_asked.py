"""A run that is asked to stop gives up what is under way, keeps its last finished step, and goes on bit for bit."""

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlsweep.recipe.budget import Budget
from rlsweep.recipe.off_policy import Ppo
from rlsweep.recipe.resolved import dump
from rlsweep.recipe.schema import Recipe
from rlsweep.store import attempts, checkpoints, outcome
from rlsweep.store.files import read_json
from rlsweep.store.journal import read_rows
from rlsweep.store.layout import RunFolder

MOMENTS = [
    ("loading", 1),
    *[("generation", times) for times in (3, 60, 80, 120)],
    *[("grading", times) for times in (17, 33, 80)],
    ("prompt", 6),
    *[("filters", times) for times in (1, 4)],
    *[("forward", times) for times in (1, 7)],
    *[("micro-batch", times) for times in (2, 9)],
    *[("clipping", times) for times in (1, 6)],
    *[("optimizer", times) for times in (1, 5)],  # from here on the step is finished
    ("updated", 4),
    ("publish", 6),
    ("row", 6),
    ("written row", 9),
    ("weights", 1),  # a checkpoint is being written
    ("rename", 2),
    ("pruned", 2),
]


def interrupted(run: RunFolder, said: str) -> int:
    """The step at which a run was interrupted, with all that must be so then."""
    ended, saved = outcome.read(run), checkpoints.resumable(run)
    assert ended is not None and ended.state == "interrupted" and ended.reason.startswith("asked to stop"), said
    assert ended.step == (saved.step if saved else 0) and "Traceback" not in said
    assert checkpoints.leftovers(run) == []
    if saved is not None:
        # What stands in the journal is what the checkpoint covers: nothing will be taken back.
        assert read_json(saved.path / "state.json")["journal_length"] == run.journal.stat().st_size
        assert [row for row in read_rows(run.journal) if row["kind"] == "step"][-1]["step"] == ended.step
    return ended.step


@pytest.mark.parametrize(("moment", "times"), MOMENTS)
def test_asked_at_any_moment_it_keeps_its_last_finished_step_and_ends_the_same(
    forge: Any,
    recipe: Recipe,
    folder: Any,
    undisturbed: dict[str, Any],
    ending: Any,
    same: Any,
    moment: str,
    times: int,
) -> None:
    run = folder(recipe)
    code, said = forge.train(run, moment, times, how="SIGTERM")
    step = forge.steps
    assert code == 75 and interrupted(run, said) == step, said
    code, said = forge.train(run)
    assert code == 0 and (step == 0 or f"from step {step}" in said), said
    found = ending(run)
    for part, expected in undisturbed.items():
        assert same(found[part], expected), part
    assert {row["step"] for row in read_rows(attempts.Attempt(run, 2).discarded)} <= {0}


@pytest.mark.parametrize(("moment", "times"), [("evaluation", 2), ("grading", 16 + 4 * 16 + 3)])
def test_an_evaluation_is_given_up_and_made_first_when_the_run_goes_on(
    forge: Any,
    recipe: Recipe,
    folder: Any,
    undisturbed: dict[str, Any],
    ending: Any,
    same: Any,
    moment: str,
    times: int,
) -> None:
    """That of step 4. Once made it stays: an attempt that comes to nothing more has not made it in vain."""
    run = folder(recipe)
    code, said = forge.train(run, moment, times, how="SIGTERM")
    assert code == 75 and interrupted(run, said) == 4
    saved = checkpoints.resumable(run)
    assert saved is not None and not read_json(saved.path / "state.json")["evaluated"]
    assert [row["kind"] for row in read_rows(run.journal) if row["step"] == 4] == ["step"]
    code, said = forge.train(run, "filters", 1, how="SIGTERM")  # in step 5
    assert code == 75 and "step 4/8: pass rate" in said
    assert [row["kind"] for row in read_rows(run.journal) if row["step"] == 4] == ["step", "evaluation"]
    code, said = forge.train(run)
    assert code == 0 and "step 4/8: pass rate" not in said
    assert same(ending(run), undisturbed)
    assert not any(read_rows(each.discarded) for each in attempts.every(run))


def test_the_evaluation_after_the_last_step_is_made_when_the_run_goes_on(
    forge: Any, recipe: Recipe, folder: Any, undisturbed: dict[str, Any], ending: Any, same: Any, tmp_path: Path
) -> None:
    """Off the schedule, at the end of a budget of 7; raised to 8 afterwards, nothing of it is taken back."""
    shorter = replace(recipe, budget=Budget(steps=7))
    run = folder(shorter)
    assert forge.train(run)[0] == 0
    expected = ending(run)
    assert expected["rows"][-1]["off_schedule"] and expected["rows"][-1]["step"] == 7
    run.path.rename(tmp_path / "undisturbed")
    run = folder(shorter)
    code, said = forge.train(run, "evaluation", 3, how="SIGTERM")
    assert code == 75 and interrupted(run, said) == 7
    code, said = forge.train(run)
    assert code == 0 and "from step 7" in said
    assert same(ending(run), expected)
    code, said = forge.train(folder(recipe))
    assert code == 0 and "from step 7" in said
    found = ending(run)
    assert [row for row in found["rows"] if not row.get("off_schedule")] == undisturbed["rows"]
    assert same({**found, "rows": 0, "samples": 0}, {**undisturbed, "rows": 0, "samples": 0})
    assert not any(read_rows(each.discarded) for each in attempts.every(run))


def test_an_evaluation_that_a_raised_budget_no_longer_wants_is_not_made(
    forge: Any, recipe: Recipe, folder: Any, undisturbed: dict[str, Any], ending: Any, same: Any
) -> None:
    run = folder(replace(recipe, budget=Budget(steps=7)))
    assert forge.train(run, "evaluation", 3, how="SIGTERM")[0] == 75
    assert forge.train(folder(recipe))[0] == 0
    assert same(ending(run), undisturbed)


@pytest.mark.parametrize("then", ["weights", "moments", "sync", "renamed", "outcome"])
@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT"])
def test_asked_again_while_it_saves_it_saves(
    forge: Any, recipe: Recipe, folder: Any, undisturbed: dict[str, Any], ending: Any, same: Any, how: str, then: str
) -> None:
    run = folder(recipe)
    code, said = forge.train(run, "forward", 4, how=how, then=then)
    assert code == 75 and interrupted(run, said) == 1
    assert forge.train(run)[0] == 0
    assert same(ending(run), undisturbed)


def test_what_is_given_up_is_in_no_clock(forge: Any, recipe: Recipe, folder: Any) -> None:
    """Neither in the counters nor in time."""
    run = folder(recipe)
    assert forge.train(run, "clipping", 6, how="SIGTERM")[0] == 75
    saved = checkpoints.resumable(run)
    assert saved is not None and saved.step == 5  # no checkpoint is due there: it was written when it was asked
    clock = read_json(saved.path / "state.json")["clock"]
    row = read_rows(run.journal)[-1]
    assert (row["kind"], row["step"]) == ("step", 5)
    for name in ("samples", "tokens", "flops"):
        assert clock[name] == row["metrics"][f"clock/{name}"]
    hours = {name: spent / 3600 for name, spent in clock["device_seconds"].items()}
    # From the row to the end of the step it took no time to speak of; step 6 was made but for the optimizer's step.
    assert hours["training"] == pytest.approx(row["metrics"]["clock/device_hours"], abs=0.005 / 3600)
    assert hours["saving"] > row["metrics"]["clock/saving_hours"]


def test_asked_and_killed_at_random_moments_until_it_is_done_it_ends_the_same(
    forge: Any, recipe: Recipe, folder: Any, tmp_path: Path, ending: Any, same: Any
) -> None:
    """`ppo` with its whole phases in flight; an attempt keeps what it finished where it was asked."""
    recipe = replace(recipe, off_policy=Ppo(k=3), budget=Budget(steps=14))
    run = folder(recipe)
    assert forge.train(run)[0] == 0
    expected = ending(run)
    run.path.rename(tmp_path / "undisturbed")
    run = folder(recipe)
    rng = random.Random(3)
    moments = ["generation", "grading", "forward", "micro-batch", "clipping", "optimizer", "evaluation", "weights"]
    ends = []
    while True:
        how = rng.choice(["SIGTERM", "SIGTERM", "SIGTERM", "SIGKILL"])
        code, said = forge.train(run, rng.choice(moments), rng.randint(1, 5), how=how)
        assert code in (0, 75, -9), said
        ends.append(code)
        if code == 0:
            break
    assert ends.count(75) >= 5 and ends.count(-9) >= 2
    assert same(ending(run), expected)


@pytest.mark.parametrize("seconds", [0.0, 0.3, 1.0, 2.0])
def test_asked_while_it_loads_it_ends_at_once(
    recipe: Recipe, folder: Any, undisturbed: dict[str, Any], ending: Any, same: Any, seconds: float
) -> None:
    """A real process, so many seconds after it has named itself: libraries are being loaded for longer than that."""
    run = folder(recipe)
    attempt = attempts.claim(run)
    process = subprocess.Popen(
        [sys.executable, "-m", "rlsweep.train", str(run.path), "--attempt", "1"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    while not attempt.process.exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.005)
    time.sleep(seconds)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=100)
    assert process.returncode == 75 and "Traceback" not in said, said
    ended = outcome.read(run)
    assert ended is not None and (ended.state, ended.step, ended.attempt) == ("interrupted", 0, 1)
    assert "before its first step" in ended.reason and checkpoints.every(run) == []


def test_asked_while_its_model_is_made_it_leaves_nothing_half_made(recipe: Recipe, tmp_path: Path) -> None:
    """And `models` is as it was: the next attempt, or another run, makes it."""
    run = RunFolder(tmp_path / "runs" / "0123456789ab")
    run.path.mkdir(parents=True)
    longer = replace(recipe, model=replace(recipe.model, warm_start_steps=100_000))
    run.recipe.write_text(dump(longer))
    process = subprocess.Popen(
        [sys.executable, "-m", "rlsweep.train", str(run.path)], stdout=subprocess.PIPE, text=True
    )
    while not run.provenance.exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    time.sleep(3.0)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=100) == 75
    assert list(tmp_path.glob("models/*")) == [] and outcome.read(run) is not None

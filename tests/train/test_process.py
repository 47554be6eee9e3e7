"""Real trainer processes on a run folder: to the end, killed and resumed, asked to stop, superseded, misled."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rlsweep.recipe.budget import Budget
from rlsweep.recipe.curriculum import Curriculum
from rlsweep.recipe.key import run_key
from rlsweep.recipe.off_policy import Ppo
from rlsweep.recipe.resolved import dump
from rlsweep.recipe.reward import Reward
from rlsweep.recipe.schema import Recipe
from rlsweep.recipe.task import Registers
from rlsweep.store import attempts, checkpoints, outcome, samples
from rlsweep.store.journal import read_rows
from rlsweep.store.layout import Root, RunFolder
from rlsweep.train.__main__ import _threads


@pytest.fixture()
def root(tmp_path: Path, models: Path, model_folder: str) -> Root:
    """A root whose embedded model is made already."""
    (tmp_path / "models").symlink_to(models)
    return Root(tmp_path)


def folder(root: Root, recipe: Recipe) -> RunFolder:
    run = root.run(run_key(recipe))
    run.path.mkdir(parents=True, exist_ok=True)
    run.recipe.write_text(dump(recipe))
    return run


def start(run: RunFolder, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rlsweep.train", str(run.path), *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = process.communicate(timeout=300)
    return process.returncode, said


def wait_for(condition: Any, process: subprocess.Popen[str]) -> None:
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)


def rows(run: RunFolder) -> list[dict[str, Any]]:
    """The journal without what depends on the wall clock."""
    found = read_rows(run.journal)
    for row in found:
        del row["time"]
        row["metrics"] = {k: v for k, v in row["metrics"].items() if not k.startswith("time/") and "hours" not in k}
    return found


def weights(run: RunFolder) -> dict[str, torch.Tensor]:
    newest = checkpoints.newest(run)
    assert newest is not None
    return load_file(newest.path / "model" / "model.safetensors")


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, models: Path, model_folder: str, small_recipe: Recipe
) -> RunFolder:
    """The small run from beginning to end in one attempt."""
    base = tmp_path_factory.mktemp("undisturbed")
    (base / "models").symlink_to(models)
    run = folder(Root(base), small_recipe)
    code, said = finish(start(run))
    assert code == 0, said
    return run


def test_a_run_leaves_what_was_promised(undisturbed: RunFolder, small_recipe: Recipe) -> None:
    found = read_rows(undisturbed.journal)
    assert [row["step"] for row in found if row["kind"] == "step"] == list(range(1, 9))
    evaluations = [row for row in found if row["kind"] == "evaluation"]
    assert [row["step"] for row in evaluations] == [0, 4, 8]
    for row in evaluations:
        assert len(row["counts"]) == 8 and max(row["counts"]) <= row["samples"] == 2
        assert row["metrics"]["evaluation/pass_rate"] == pytest.approx(sum(row["counts"]) / 16)
    assert evaluations[0]["metrics"]["clock/flops"] == 0
    ended = outcome.read(undisturbed)
    assert ended is not None and (ended.state, ended.step, ended.attempt) == ("finished", 8, 1)
    provenance = json.loads(undisturbed.provenance.read_text())
    assert provenance["threads"] == 1 and provenance["devices"]["kind"] == "cpu"
    last = [row for row in found if row["kind"] == "step"][-1]["metrics"]
    # Batches 0..9 were admitted by version 7 (lag 2), 16 rollouts each.
    assert last["clock/samples"] == 10 * 16
    assert {row["metrics"].get("train/lag_max") for row in found} <= {None, 0, 1, 2}
    assert last["clock/startup_hours"] > 0 and last["clock/device_hours"] > 0
    hours = [row["metrics"]["clock/device_hours"] for row in found if row["kind"] == "step"]
    assert hours == sorted(hours)


def test_flops_by_the_stated_formula(undisturbed: RunFolder) -> None:
    """2 N a generated token and 6 N a trained one, prompts included: recomputed from the other clocks by hand."""
    parameters = sum(t.numel() for name, t in weights(undisturbed).items() if name != "lm_head.weight")
    found = [row["metrics"] for row in read_rows(undisturbed.journal) if row["kind"] == "step"]
    generated = found[-1]["clock/tokens"] + 8 * found[-1]["clock/samples"]
    trained = found[-1]["clock/flops"] - 2 * parameters * generated
    assert trained >= 0 and trained % (6 * parameters) == 0
    least = sum(row["train/groups_trained"] * 4 * 9 for row in found)
    most = sum(row["train/groups_trained"] * 4 * 20 for row in found)
    assert least <= trained // (6 * parameters) <= most


@pytest.mark.parametrize("at_step", [1, 4, 7])
def test_killed_and_started_again_it_ends_the_same(
    root: Root, small_recipe: Recipe, undisturbed: RunFolder, at_step: int
) -> None:
    run = folder(root, small_recipe)
    process = start(run)
    wait_for(lambda: any(r["kind"] == "step" and r["step"] >= at_step for r in read_rows(run.journal)), process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert outcome.read(run) is None or at_step == 7
    with run.journal.open("ab") as journal:
        journal.write(b'{"kind": "step", "st')  # a torn last line, as a crash may leave it
    code, said = finish(start(run))
    assert code == 0, said
    assert rows(run) == rows(undisturbed)
    for name, tensor in weights(undisturbed).items():
        assert torch.equal(tensor, weights(run)[name]), name
    kept_samples = [[file.path.read_bytes() for file in samples.every(each)] for each in (run, undisturbed)]
    assert kept_samples[0] == kept_samples[1] and len(kept_samples[0]) == 3  # three evaluations
    discarded = attempts.Attempt(run, 2).discarded
    kept = {(r["kind"], r["step"]) for r in rows(run)}
    assert all((r["kind"], r["step"]) in kept for r in read_rows(discarded))


@pytest.mark.parametrize("steps", [4, 5])
def test_a_raised_budget_continues_the_run(
    root: Root, small_recipe: Recipe, undisturbed: RunFolder, steps: int
) -> None:
    """5 is off the schedule of evaluations: its row stays, and says that the longer run would not have it."""
    run = folder(root, replace(small_recipe, budget=Budget(steps=steps)))
    assert finish(start(run))[0] == 0
    assert folder(root, small_recipe) == run  # the key knows no budget
    code, said = finish(start(run))
    assert code == 0 and f"from step {steps}" in said
    extra = [row["step"] for row in rows(run) if row.get("off_schedule")]
    assert extra == ([5] if steps == 5 else [])
    assert [row for row in rows(run) if not row.get("off_schedule")] == rows(undisturbed)
    assert all(torch.equal(tensor, weights(run)[name]) for name, tensor in weights(undisturbed).items())


def test_ppo_with_a_small_pool_and_exclusions_resumes_the_same(root: Root, small_recipe: Recipe) -> None:
    """Two killed attempts in the middle of a generation phase, epochs of a pool from which prompts are excluded."""
    recipe = replace(
        small_recipe,
        off_policy=Ppo(k=3),
        task=Registers(prompts=10),
        curriculum=Curriculum(zero_variance="keep", no_positive_resampling=0.2),
        budget=Budget(steps=14),
    )
    run = folder(root, recipe)
    code, said = finish(start(run))
    assert code == 0, said
    expected, tensors = rows(run), weights(run)
    assert max(row["metrics"].get("curriculum/excluded_prompts", 0) for row in expected) > 0
    shutil.rmtree(run.path)
    folder(root, recipe)
    for steps in (5, 10):
        process = start(run)
        while process.poll() is None and len([row for row in read_rows(run.journal) if row["kind"] == "step"]) < steps:
            time.sleep(0.02)
        process.kill()
        process.wait()
    code, said = finish(start(run))
    assert code == 0, said
    assert attempts.newest(run) == attempts.Attempt(run, 3)
    assert rows(run) == expected
    assert all(torch.equal(tensor, weights(run)[name]) for name, tensor in tensors.items())


@pytest.mark.parametrize("content", ["", "[]", '{"threads": "many"}', "{}"])
def test_the_runs_thread_count_survives_a_damaged_provenance(
    root: Root, small_recipe: Recipe, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder(root, small_recipe)
    first = attempts.claim(run)
    first.provenance.write_text('{"threads": 3}')
    run.provenance.write_text(content)
    assert _threads(small_recipe, run) == 3 and "provenance.json is damaged" in capsys.readouterr().out
    first.provenance.unlink()
    run.provenance.unlink()
    assert _threads(small_recipe, run) == 1 and not capsys.readouterr().out


def test_asked_to_stop_it_saves_and_says_so(root: Root, small_recipe: Recipe, undisturbed: RunFolder) -> None:
    run = folder(root, small_recipe)
    process = start(run)
    wait_for(lambda: len(read_rows(run.journal)) >= 3, process)
    process.terminate()
    code, said = finish(process)
    assert code == 75, said
    ended, saved = outcome.read(run), checkpoints.newest(run)
    assert ended is not None and saved is not None
    assert ended.state == "interrupted" and ended.step == saved.step >= 2
    code, said = finish(start(run))
    assert code == 0 and f"from step {saved.step}" in said
    assert rows(run) == rows(undisturbed)


def test_an_attempt_that_was_superseded_writes_nothing_more(root: Root, small_recipe: Recipe) -> None:
    run = folder(root, replace(small_recipe, budget=Budget(steps=10_000)))
    process = start(run)
    wait_for(lambda: len(read_rows(run.journal)) >= 3, process)
    attempts.claim(run)
    code, said = finish(process)
    assert code == 1 and "no longer owns the run" in said
    assert "Traceback" not in said and outcome.read(run) is None


def test_a_run_that_diverges_says_so(root: Root, small_recipe: Recipe) -> None:
    wild = replace(small_recipe, reward=Reward(correct=3e38, wrong=-3e38), normalization="none")
    run = folder(root, replace(wild, off_policy=Ppo(k=1), budget=Budget(steps=200)))
    code, said = finish(start(run))
    ended = outcome.read(run)
    assert code == 76, said
    assert ended is not None and ended.state == "diverged" and "Traceback" not in said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("engine: local", "engine: vllm"), "valid: local"),
        (("type: cispo", "type: cipso"), "cispo"),
    ],
)
def test_a_recipe_that_cant_be_trained_is_one_sentence(
    root: Root, small_recipe: Recipe, change: tuple[str, str], message: str
) -> None:
    run = folder(root, small_recipe)
    run.recipe.write_text(run.recipe.read_text().replace(*change))
    code, said = finish(start(run))
    assert code == 2 and message in said and "Traceback" not in said

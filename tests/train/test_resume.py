"""A run that is killed with SIGKILL at any moment, and started again, ends as the undisturbed one, bit for bit."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
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
from rlsweep.store import attempts, checkpoints, outcome
from rlsweep.store.journal import read_rows
from rlsweep.store.layout import Root, RunFolder

FORGE = Path(__file__).with_name("forge.py")

KILLS = [
    *[("prompt", times) for times in (1, 2, 7)],
    *[("generation", times) for times in (1, 60, 120)],
    ("filters", 4),
    ("forward", 3),
    *[("optimizer", times) for times in (1, 5)],
    ("updated", 5),
    ("publish", 4),
    *[("evaluation", times) for times in (1, 2, 3)],
    *[("evaluated", times) for times in (1, 3)],
    *[("row", times) for times in (1, 6, 10)],
    *[("written row", times) for times in (4, 9)],
    ("weights", 2),
    ("moments", 2),
    ("rollouts", 1),
    *[("sync", times) for times in (1, 2)],
    *[("rename", times) for times in (1, 3, 4)],
    *[("renamed", times) for times in (1, 3)],
    ("removal", 1),
    ("pruned", 2),
    ("outcome", 1),
]


class Forge:
    """Trainers from one warm process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(FORGE)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def train(self, run: RunFolder, moment: str | None = None, times: int = 1) -> tuple[int, str]:
        """Exit code of one attempt, and what it printed."""
        self.begin(run, moment, times)
        return self.end()

    def begin(self, run: RunFolder, moment: str | None = None, times: int = 1, *, wait: bool = False) -> int:
        """Start an attempt; its process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        command = {"run": str(run.path), "moment": moment, "times": times, "wait": wait}
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def end(self) -> tuple[int, str]:
        assert self._process.stdout is not None
        code, said = json.loads(self._process.stdout.readline())
        return code, said

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(timeout=60) == 0


@pytest.fixture(scope="module")
def forge() -> Iterator[Forge]:
    made = Forge()
    yield made
    made.close()


@pytest.fixture(scope="module")
def zombies() -> Iterator[Forge]:
    """Where attempts sleep while others go on."""
    made = Forge()
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path: Path, models: Path, model_folder: str) -> Any:
    (tmp_path / "models").symlink_to(models)

    def make(recipe: Recipe) -> RunFolder:
        run = Root(tmp_path).run(run_key(recipe))
        run.path.mkdir(parents=True, exist_ok=True)
        run.recipe.write_text(dump(recipe))
        return run

    return make


@pytest.fixture(scope="module")
def recipe(small_recipe: Recipe) -> Recipe:
    """Checkpoints at steps 3, 6 and 8, the weights of step 4, evaluations at 0, 4 and 8.

    The small model is seldom right: rewards tell its kinds of failure apart, so that every step learns something.
    """
    return replace(
        small_recipe,
        execution=replace(small_recipe.execution, keep_every=4),
        curriculum=Curriculum(zero_variance="keep"),
        reward=Reward(correct=1.0, wrong=0.0, truncated=-1.0, unparseable=-0.5),
    )


def ending(run: RunFolder) -> dict[str, Any]:
    """All that a run leaves and that must not depend on what befell it."""
    rows = read_rows(run.journal)
    for row in rows:
        del row["time"]
        row["metrics"] = {k: v for k, v in row["metrics"].items() if not k.startswith("time/") and "hours" not in k}
    ended = outcome.read(run)
    return {
        "rows": rows,
        "weights": {each.step: load_file(each.model / "model.safetensors") for each in checkpoints.every(run)},
        "resumable": [each.step for each in checkpoints.every(run) if each.resumable],
        "rollouts": [(each.resume / "rollouts.npz").read_bytes() for each in checkpoints.every(run) if each.resumable],
        "moments": [
            torch.load(each.resume / "optimizer.pt", weights_only=True)
            for each in checkpoints.every(run)
            if each.resumable
        ],
        "samples": {path.name: path.read_text() for path in sorted(run.samples.glob("*"))},
        "ended": None if ended is None else (ended.state, ended.step),
        "left": [path.name for path in checkpoints.leftovers(run)],
    }


def same(found: Any, expected: Any) -> bool:
    """Equality to the last bit, tensors included."""
    if isinstance(expected, torch.Tensor):
        return torch.equal(found, expected)
    if isinstance(expected, dict):
        return list(found) == list(expected) and all(same(found[key], expected[key]) for key in expected)
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(same, found, expected))
    return bool(found == expected)


@pytest.fixture(scope="module")
def undisturbed(
    forge: Forge, recipe: Recipe, tmp_path_factory: pytest.TempPathFactory, models: Path, model_folder: str
) -> dict[str, Any]:
    base = tmp_path_factory.mktemp("undisturbed")
    (base / "models").symlink_to(models)
    run = Root(base).run(run_key(recipe))
    run.path.mkdir(parents=True)
    run.recipe.write_text(dump(recipe))
    code, said = forge.train(run)
    assert code == 0, said
    found = ending(run)
    assert sum(row["metrics"].get("train/grad_norm", 0) > 0 for row in found["rows"]) >= 6
    assert list(found["weights"]) == [4, 8] and found["resumable"] == [8] and found["left"] == []
    return found


@pytest.mark.parametrize(("moment", "times"), KILLS)
def test_killed_at_any_moment_it_ends_the_same(
    forge: Forge, recipe: Recipe, folder: Any, undisturbed: dict[str, Any], moment: str, times: int
) -> None:
    run = folder(recipe)
    code, said = forge.train(run, moment, times)
    assert code == -9, f"it never came to {moment} for the {times}. time: {code}, {said}"
    code, said = forge.train(run)
    assert code == 0, said
    found = ending(run)
    for part, expected in undisturbed.items():
        assert same(found[part], expected), part
    for row in read_rows(attempts.Attempt(run, 2).discarded):  # what was taken back stands once more
        assert (row["kind"], row["step"]) in {(each["kind"], each["step"]) for each in found["rows"]}


@pytest.mark.parametrize("moment", ["rewind", "rewound", "generation", "renamed"])
def test_killed_again_while_it_resumes_it_ends_the_same(
    forge: Forge, recipe: Recipe, folder: Any, undisturbed: dict[str, Any], moment: str
) -> None:
    run = folder(recipe)
    assert forge.train(run, "written row", 9)[0] == -9  # step 7's row: 4 to 6 are covered by the checkpoint of 6
    assert forge.train(run, moment, 1)[0] == -9
    code, said = forge.train(run)
    assert code == 0, said
    assert same(ending(run), undisturbed)


def test_killed_at_random_moments_until_it_is_done_it_ends_the_same(
    forge: Forge, recipe: Recipe, folder: Any, tmp_path: Path
) -> None:
    """`ppo` with its whole phases in flight; each attempt gets a little further, if it can."""
    recipe = replace(recipe, off_policy=Ppo(k=3), budget=Budget(steps=14))
    run = folder(recipe)
    assert forge.train(run)[0] == 0
    expected = ending(run)
    run.path.rename(tmp_path / "undisturbed")
    run = folder(recipe)
    rng = random.Random(5)
    moments = ["generation", "forward", "optimizer", "row", "written row", "moments", "rename", "renamed", "evaluated"]
    killed = 0
    for _ in range(10):
        code, said = forge.train(run, rng.choice(moments), rng.randint(1, 4))
        killed += code == -9
        assert code in (0, -9), said
    code, said = forge.train(run)
    assert code == 0 and killed >= 5, (said, killed)
    assert same(ending(run), expected)


@pytest.mark.parametrize(
    "moment", ["generation", "forward", "row", "written row", "sync", "rename", "renamed", "pruned"]
)
def test_a_zombie_that_wakes_up_writes_nothing_more(
    forge: Forge, zombies: Forge, recipe: Recipe, folder: Any, undisturbed: dict[str, Any], moment: str
) -> None:
    """An attempt stands still for long at some moment, its successor takes over and ends; then it goes on."""
    run = folder(recipe)
    zombies.begin(run, moment, 60 if moment == "generation" else 2, wait=True)
    while not (run.path / "asleep").exists():
        time.sleep(0.01)
    code, said = forge.train(run)
    before = ending(run)
    (run.path / "wake").touch()
    assert code == 0, said
    code, said = zombies.end()
    assert code == 1 and "no longer owns the run" in said and "Traceback" not in said
    found = ending(run)
    assert same(found, before)
    for part, expected in undisturbed.items():
        assert same(found[part], expected), part

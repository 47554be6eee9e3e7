"""Trainers that are disturbed at any moment, and all that a run leaves, to be held against the undisturbed one."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rlsweep.recipe.curriculum import Curriculum
from rlsweep.recipe.key import run_key
from rlsweep.recipe.resolved import dump
from rlsweep.recipe.reward import Reward
from rlsweep.recipe.schema import Recipe
from rlsweep.store import checkpoints, outcome
from rlsweep.store.journal import read_rows
from rlsweep.store.layout import Root, RunFolder

FORGE = Path(__file__).with_name("forge.py")


class Forge:
    """Trainers from one warm process."""

    steps: int
    """Optimizer steps that had begun when the last attempt was disturbed."""
    wrote: list[str]
    """What the last attempt wrote under the run folder, where it was not rank 0."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(FORGE)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def train(self, run: RunFolder, moment: str | None = None, times: int = 1, **how: Any) -> tuple[int, str]:
        """Exit code of one attempt, and what it printed."""
        self.begin(run, moment, times, **how)
        return self.end()

    def begin(
        self,
        run: RunFolder,
        moment: str | None = None,
        times: int = 1,
        *,
        how: str = "SIGKILL",
        then: str | None = None,
        words: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Start an attempt; its process. forge.py says what befalls it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        command = {
            "run": str(run.path),
            "moment": moment,
            "times": times,
            "how": how,
            "then": then,
            "words": list(words),
            "environment": dict(environment or {}),
            "timeout_s": timeout_s,
        }
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def end(self) -> tuple[int, str]:
        assert self._process.stdout is not None
        told = json.loads(self._process.stdout.readline())
        self.steps, self.wrote = told.get("steps", 0), told.get("wrote", [])
        return told["code"], told["said"]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(timeout=60) == 0


@pytest.fixture(scope="session")
def forge() -> Iterator[Forge]:
    made = Forge()
    yield made
    made.close()


@pytest.fixture(scope="session")
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


@pytest.fixture(scope="session")
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


@pytest.fixture(scope="session")
def ending() -> Callable[[RunFolder], dict[str, Any]]:
    """All that a run leaves and that must not depend on what befell it."""
    return _ending


@pytest.fixture(scope="session")
def same() -> Callable[[Any, Any], bool]:
    """Equality to the last bit, tensors included."""
    return _same


def _ending(run: RunFolder) -> dict[str, Any]:
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


def _same(found: Any, expected: Any) -> bool:
    if isinstance(expected, torch.Tensor):
        return torch.equal(found, expected)
    if isinstance(expected, dict):
        return list(found) == list(expected) and all(_same(found[key], expected[key]) for key in expected)
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(_same, found, expected))
    return bool(found == expected)


@pytest.fixture(scope="session")
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
    found = _ending(run)
    assert sum(row["metrics"].get("train/grad_norm", 0) > 0 for row in found["rows"]) >= 6
    assert list(found["weights"]) == [4, 8] and found["resumable"] == [8] and found["left"] == []
    return found

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import rlsweep.track
from rlsweep.cli import main
from rlsweep.launch import local
from rlsweep.recipe.resolved import dump
from rlsweep.recipe.schema import Recipe
from rlsweep.store import checkpoints
from rlsweep.store.journal import read_rows
from rlsweep.store.layout import Root, RunFolder
from rlsweep.sweep.expand import expand

FAKE = Path(__file__).parent.parent / "launch" / "fake_trainer.py"
Call = Callable[..., Result]
UNTRACKED = "import rlsweep.track\nrlsweep.track.sync = lambda *given, **named: None\n"
MAIN = "from rlsweep.cli import main\nmain(prog_name='rlsweep')\n"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root, not made, whose runs are trained by the fake trainer and go to no MLflow."""
    path = tmp_path / "dossier à moi"
    monkeypatch.setenv("RLSWEEP_ROOT", str(path))
    monkeypatch.setattr(local, "TRAINER", (sys.executable, str(FAKE)))
    monkeypatch.setattr(local, "_FOLLOW_S", 0.1)
    monkeypatch.setattr(rlsweep.track, "sync", lambda root, name, say: say(f"synced {name}"))
    return path


@pytest.fixture
def call() -> Call:
    """Call rlsweep in this process; stdout is no terminal."""

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, arguments)

    return run


@pytest.fixture
def behave(root: Path) -> Callable[[str], None]:
    """Tell the fake trainer how to behave."""

    def tell(text: str) -> None:
        root.mkdir(parents=True, exist_ok=True)
        (root / "behaviour").write_text(text)

    return tell


@pytest.fixture(scope="session")
def command() -> Callable[..., list[str]]:
    """The command line of the real command with real trainers, whose runs go to no MLflow.

    `first` is code to run before it.
    """

    def line(*arguments: str, first: str = "") -> list[str]:
        return [sys.executable, "-c", UNTRACKED + first + MAIN, *arguments]

    return line


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """For processes of the real command: no root but the one that is named, and no changes of this repository, whose
    size nobody knows, in what runs say of their making."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RLSWEEP", "MLFLOW"))}
    return {**kept, "OMP_NUM_THREADS": "1", "GIT_DIR": os.devnull}


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory, small_recipe: Recipe) -> str:
    """The small recipe as a file: 8 steps, evaluations at 0, 4 and 8, checkpoints at 3, 6 and 8."""
    path = tmp_path_factory.mktemp("recipe") / "small.yaml"
    path.write_text(dump(small_recipe))
    return str(path)


@pytest.fixture(scope="session")
def keys(small: str) -> list[str]:
    """Keys of the small recipe with the seeds 0 to 3."""
    return [run.key for run in expand(small, seeds="4").runs]


@pytest.fixture(scope="session")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory,
    models: Path,
    model_folder: str,
    small: str,
    command: Callable[..., list[str]],
    environment: dict[str, str],
) -> Root:
    """A root in which the small recipe was trained with the seeds 0 to 3, and nothing came in between."""
    root = Root(tmp_path_factory.mktemp("undisturbed"))
    root.models.symlink_to(models)
    line = command("ablate", small, "--seeds", "4", "--root", str(root.path))
    done = subprocess.run(line, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return root


@pytest.fixture(scope="session")
def ends_as(undisturbed: Root) -> Callable[[RunFolder], bool]:
    """Whether a run ended with the weights, bit for bit, and the journal (wall times aside) of the undisturbed one."""
    from safetensors.torch import load_file

    def rows(run: RunFolder) -> list[dict[str, Any]]:
        found = read_rows(run.journal)
        for row in found:
            del row["time"]
            row["metrics"] = {k: v for k, v in row["metrics"].items() if not k.startswith("time/") and "hours" not in k}
        return found

    def weights(run: RunFolder) -> dict[str, Any]:
        newest = checkpoints.newest(run)
        assert newest is not None
        return load_file(newest.path / "model" / "model.safetensors")

    def compare(run: RunFolder) -> bool:
        expected = undisturbed.run(run.key)
        found, wanted = weights(run), weights(expected)
        same = found.keys() == wanted.keys() and all(bool((found[name] == wanted[name]).all()) for name in wanted)
        return same and rows(run) == rows(expected)

    return compare

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import rlsweep.track
from rlsweep.cli import main
from rlsweep.launch import local, scheduler
from rlsweep.launch.status import RunStatus
from rlsweep.recipe.resolved import dump
from rlsweep.recipe.schema import Recipe
from rlsweep.store import attempts, checkpoints, ledger, outcome
from rlsweep.store.attempts import Attempt
from rlsweep.store.files import read_json, write_json
from rlsweep.store.jobs import AttemptJob, Submission, write_attempt_job, write_submission
from rlsweep.store.journal import Journal, read_rows
from rlsweep.store.layout import Root, RunFolder
from rlsweep.store.outcome import Outcome
from rlsweep.sweep.expand import expand

FAKE = Path(__file__).parent.parent / "launch" / "fake_trainer.py"
Call = Callable[..., Result]
UNTRACKED = "import rlsweep.track\nrlsweep.track.sync = lambda *given, **named: None\n"
TOKEN = "0123456789"
"""Of every submission that is written by hand."""
MAIN = "from rlsweep.cli import main\nmain(prog_name='rlsweep')\n"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root, not made, whose runs are trained by the fake trainer and go to no MLflow."""
    path = tmp_path / "dossier à moi"
    monkeypatch.setenv("RLSWEEP_ROOT", str(path))
    monkeypatch.setattr(local, "TRAINER", (sys.executable, str(FAKE)))
    monkeypatch.setattr(local, "_FOLLOW_S", 0.1)
    monkeypatch.setattr(rlsweep.track, "sync", lambda root, name, say, look: say(f"synced {name}"))
    return path


@dataclass(frozen=True)
class Place:
    """A root whose folders are written by hand."""

    root: Root

    def want(self, sweep: str, *keys: str, steps: int = 10) -> None:
        """Runs in a ledger: variant base, seeds 0, 1, ..."""
        row = {"kind": "intent", "time": 1.0, "variant": "base", "variant_key": "V", "difference": {}, "steps": steps}
        rows = [{**row, "run_key": key, "seed": seed} for seed, key in enumerate(keys)]
        ledger.append(self.root.sweep(sweep), rows)

    def attempt(self, key: str, alive: bool, state: Any = None, step: int = 0, rate: float = 0.5) -> Attempt:
        """An attempt that wrote two rows, and ended or not."""
        run = self.root.run(key)
        owner = attempts.claim(run)
        attempts.record_process(owner)
        with Journal(run, owner) as journal:
            journal.append({"kind": "evaluation", "step": 0, "time": 1.0, "metrics": {"evaluation/pass_rate": rate}})
            journal.append({"kind": "step", "step": 3, "time": 2.0, "metrics": {}})
        if not alive:
            write_json(owner.process, {**read_json(owner.process), "start_ticks": 1})
        if state:
            outcome.write(run, Outcome(state, step, f"because {state}"))
        return owner

    def hand(self, key: str, job: str, attempt: Attempt | None = None) -> RunFolder:
        """Hand a run of sweep s to a job, which `attempt` is one of."""
        run = self.root.run(key)
        run.path.mkdir(parents=True, exist_ok=True)
        write_submission(run, Submission(TOKEN, "s", "c", job, time.time(), 1, 1, 60, 20, "none", 120))
        if attempt is not None:
            write_attempt_job(attempt, AttemptJob(TOKEN, job, 0, ["n1"], 1, "n1", 1, time.time()))
        return run


@pytest.fixture
def place(root: Path) -> Place:
    return Place(Root(root))


@pytest.fixture
def running() -> RunStatus:
    """A run at work on two nodes."""
    return RunStatus(
        variant="loss=cispo,optimizer.lr=0.0003",
        seed=0,
        run_key="0123456789ab",
        state="running",
        step=123,
        total=2000,
        pass_rate=0.5,
        attempt=2,
        host="n1",
        reason="attempt 2 is at work",
        job="7_0",
        nodes="n[1-2]",
        eta_s=11_400.0,
    )


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let stdout pass for a terminal without colours, of so many columns."""

    def make(width: int) -> None:
        for module in ("output", "status"):
            monkeypatch.setattr(f"rlsweep.cli.{module}.on_terminal", lambda: True)
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setenv("COLUMNS", str(width))

    return make


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


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Put a shell script under the name of a command first on the path; the file that gets a line for each call."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(scheduler, "_WAITS_S", ())

    def make(name: str, text: str) -> Path:
        calls = tmp_path / "calls.txt"
        calls.touch()
        (folder / name).write_text(f"#!/bin/bash\necho {name} \"$@\" >> '{calls}'\n{text}\n")
        (folder / name).chmod(0o755)
        return calls

    return make


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

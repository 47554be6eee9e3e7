"""The real Slurm that these tests run on, runs small enough to be disturbed there, and one that nothing disturbed.

A cluster of four nodes on this machine is started for the session, with accounting, in a folder with a short name.
While developing, name the folder of one that is up in RLSWEEP_TEST_CLUSTER; it is left up.
"""

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rlsweep.recipe.batch import Batch
from rlsweep.recipe.budget import Budget
from rlsweep.recipe.evaluation import Evaluation
from rlsweep.recipe.key import run_key
from rlsweep.recipe.resolved import dump
from rlsweep.recipe.schema import Recipe
from rlsweep.store import attempts, checkpoints, outcome
from rlsweep.store.attempts import Attempt
from rlsweep.store.files import read_json
from rlsweep.store.jobs import AttemptJob, Submission, read_attempt_job, read_submission
from rlsweep.store.journal import read_rows
from rlsweep.store.layout import Root, RunFolder
from rlsweep.store.outcome import Outcome

STEPS = 60
_UNTRACKED = """
import rlsweep.track
rlsweep.track.sync = lambda *given, **named: None
from rlsweep.cli import main
main(prog_name="rlsweep")
"""
_POLL_S = 0.2


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The soak is for those who name it, not for all who ask for tests of the scheduler."""
    if "soak" not in config.getoption("markexpr"):
        soaks = [item for item in items if item.get_closest_marker("soak")]
        config.hook.pytest_deselected(items=soaks)
        items[:] = [item for item in items if item not in soaks]


@pytest.fixture(scope="session", autouse=True)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The cluster (`Cluster` of slurm/one_machine.py), which commands in this process and its children find."""
    one_machine = _one_machine()
    named = os.environ.get("RLSWEEP_TEST_CLUSTER")
    folder = Path(named) if named else Path(tempfile.mkdtemp(prefix="rlsweep-", dir="/tmp"))
    up = one_machine.up(folder)
    patch = pytest.MonkeyPatch()
    for name, value in up.environment.items():
        patch.setenv(name, value)
    yield up
    patch.undo()
    if not named:
        up.down()
        if request.session.testsfailed:
            shutil.copytree(folder / "log", tmp_path_factory.mktemp("slurm") / "log")
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def recipe(small_recipe: Recipe) -> Recipe:
    """Some seconds of training, with a checkpoint every ten steps."""
    return replace(
        small_recipe,
        batch=Batch(prompts=4, rollouts=4),
        evaluation=Evaluation(every=10, prompts=8, samples=2),
        budget=Budget(steps=STEPS),
        execution=replace(small_recipe.execution, checkpoint_every=10),
    )


@dataclass
class Stage:
    """A root with one run in it (of seed 0), and what is done to it."""

    root: Root
    recipe: Path
    key: str
    environment: dict[str, str]
    slurm: Any
    """The cluster."""
    said: list[str] = field(default_factory=list)
    """Commands, and what they answered."""

    @property
    def run(self) -> RunFolder:
        return self.root.run(self.key)

    # -- commands

    def rlsweep(self, *arguments: str, code: int = 0) -> str:
        """What the command said, with no MLflow; it must end with that code."""
        line = [sys.executable, "-c", _UNTRACKED, *arguments, "--root", str(self.root.path)]
        done = subprocess.run(line, env=self.environment, capture_output=True, text=True)
        self.said += [shlex.join(arguments), done.stdout, done.stderr]
        assert done.returncode == code, self.said
        return done.stdout + done.stderr

    def ablate(self, *arguments: str, code: int = 0, **profile: object) -> str:
        """Submit, with these keys of the profile changed."""
        changed = [
            part for key, value in profile.items() for part in ("--cluster-set", f"{key.replace('__', '.')}={value}")
        ]
        return self.rlsweep("ablate", str(self.recipe), "--cluster", "test", *changed, *arguments, code=code)

    # -- what is there to see

    @property
    def submission(self) -> Submission:
        found = read_submission(self.run)
        assert found is not None
        return found

    def state(self, job: str | None = None) -> str:
        """What squeue says of the job, those that are over included."""
        job = job or self.submission.job
        return str(self.slurm.run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T")).strip()

    def attempt(self, number: int) -> Attempt:
        return Attempt(self.run, number)

    def count(self) -> int:
        """How many attempts there are."""
        newest = attempts.newest(self.run)
        return newest.number if newest else 0

    def job(self, number: int) -> AttemptJob:
        found = read_attempt_job(self.attempt(number))
        assert found is not None
        return found

    def outcome(self) -> Outcome | None:
        return outcome.read(self.run)

    def step(self) -> int:
        rows = read_rows(self.run.journal) if self.run.journal.exists() else []
        return max((row["step"] for row in rows), default=0)

    def saved(self) -> int:
        newest = checkpoints.resumable(self.run)
        return newest.step if newest else 0

    def printed(self) -> str:
        """What submitit and Slurm wrote of all jobs in this root."""
        logs = sorted(self.root.path.glob("sweeps/*/jobs/*/*_log.*"))
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')}" for path in logs)

    # -- waiting

    def until(self, what: str, done: Callable[[], object], seconds: float = 600) -> None:
        """Wait until it is so; the whole story where it isn't in time."""
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {seconds} s\n{self.told()}")
            time.sleep(_POLL_S)

    def told(self) -> str:
        """All that helps to see what went wrong."""
        logs = [path.read_text(errors="replace") for path in sorted(self.run.path.glob("attempts/*/*.txt"))]
        queue = self.slurm.run("squeue", "--states=all")
        return "\n".join([*self.said, queue, self.printed(), *logs, str(self.outcome())])

    def until_at_work(self, number: int = 1, step: int = 15) -> None:
        """Until the trainer of an attempt has come to a step, 5 steps after a checkpoint."""
        log = self.attempt(number).log
        self.until(f"attempt {number} trains", lambda: log.exists() and "from step" in log.read_text())
        self.until(f"step {step} of attempt {number}", lambda: self.step() >= step or self.outcome())

    def until_finished(self, number: int | None = None) -> None:
        """Until the run is finished, in an attempt of that number, and its job over."""
        self.until("finished", lambda: (ended := self.outcome()) and ended.state == "finished")
        self.until("its job is over", lambda: self.state() == "COMPLETED")
        assert number is None or self.count() == number, self.told()

    def until_settled(self, state: str, number: int) -> str:
        """Until that attempt has ended so; why."""

        def ended() -> bool:
            found = self.outcome()
            return found is not None and (found.state, found.attempt) == (state, number)

        self.until(f"attempt {number} {state}", ended)
        found = self.outcome()
        assert found is not None
        return found.reason

    # -- disturbing

    def trainer(self, number: int) -> int:
        """Process of an attempt's trainer. Until it is there the task's own stands in its place."""
        process = self.attempt(number).process
        self.until("there is a trainer", lambda: process.exists() and read_json(process)["pid"] != self.task(number))
        return int(read_json(process)["pid"])

    def task(self, number: int) -> int:
        """Process that submitit runs, the trainer's parent."""
        return int(read_json(self.attempt(number).launcher)["pid"])


@pytest.fixture(scope="session")
def make_stage(
    tmp_path_factory: pytest.TempPathFactory, cluster: Any, recipe: Recipe, models: Path, model_folder: str
) -> Callable[..., Stage]:
    """A root of its own, whose path has spaces and accents, with the initial model in it."""
    folder = tmp_path_factory.mktemp("banc d'essai à Évry")
    file = folder / "recipe.yaml"
    file.write_text(dump(recipe))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RLSWEEP", "MLFLOW"))}
    # The changes of this repository, of whatever size, are not written into every run.
    environment = {**kept, "OMP_NUM_THREADS": "1", "GIT_DIR": os.devnull}

    def make(name: str, **changes: Any) -> Stage:
        path = folder / name
        path.mkdir()
        (path / "models").symlink_to(models)
        changed = replace(recipe, **changes)
        source = file
        if changes:
            source = path / "recipe.yaml"
            source.write_text(dump(changed))
        return Stage(Root(path), source, run_key(changed), environment, cluster)

    return make


@pytest.fixture(scope="session")
def undisturbed(make_stage: Callable[..., Stage]) -> Stage:
    """Trained on this machine alone, without a scheduler, and left alone."""
    stage = make_stage("undisturbed")
    stage.rlsweep("ablate", str(stage.recipe))
    ended = stage.outcome()
    assert ended is not None and (ended.state, ended.step) == ("finished", STEPS)
    return stage


@pytest.fixture(scope="session")
def alike() -> Callable[[Stage, Stage], bool]:
    """Whether two runs ended with the same weights, bit for bit, and the same journal, times aside."""
    from safetensors.torch import load_file

    def rows(stage: Stage) -> list[dict[str, Any]]:
        found = read_rows(stage.run.journal)
        for row in found:
            del row["time"]
            row["metrics"] = {k: v for k, v in row["metrics"].items() if not k.startswith("time/") and "hours" not in k}
        return found

    def weights(stage: Stage) -> dict[str, Any]:
        newest = checkpoints.newest(stage.run)
        assert newest is not None
        return load_file(newest.path / "model" / "model.safetensors")

    def compare(one: Stage, other: Stage) -> bool:
        found, expected = weights(one), weights(other)
        same = found.keys() == expected.keys() and all(bool((found[name] == expected[name]).all()) for name in expected)
        return same and rows(one) == rows(other)

    return compare


@pytest.fixture(scope="session")
def require_same(undisturbed: Stage, alike: Callable[[Stage, Stage], bool]) -> Callable[[Stage], None]:
    """That a run ended as the undisturbed one."""

    def require(stage: Stage) -> None:
        assert stage.step() == STEPS and alike(stage, undisturbed), stage.told()

    return require


def _one_machine() -> ModuleType:
    """The script that starts clusters; it is no part of the package."""
    path = Path(__file__).parents[2] / "slurm" / "one_machine.py"
    spec = importlib.util.spec_from_file_location("one_machine", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["one_machine"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module

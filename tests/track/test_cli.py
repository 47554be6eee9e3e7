"""`rlsweep sync` as it is called."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from mlflow import MlflowClient

from rlsweep.cli import main
from rlsweep.errors import SchedulerError
from rlsweep.launch.queue import Job
from rlsweep.store.jobs import AttemptJob, Submission, write_attempt_job, write_submission
from rlsweep.track.where import locate


def _call(*words: str) -> Result:
    return CliRunner().invoke(main, ["sync", *words])


def test_the_newest_sweep_is_meant(world: Any) -> None:
    world.begin().steps(2).end("finished")
    result = _call("--root", str(world.root.path), "--json")
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert (answer["sweep"], answer["points"], answer["runs"], answer["skipped"]) == ("tiny-loss", 6, 1, False)
    assert answer["store"] == f"sqlite:///{world.root.path}/mlflow.db"


def test_no_sweep_and_an_unknown_one_are_usage_errors(world: Any) -> None:
    assert _call("--root", str(world.root.path)).exit_code == 2
    world.want()
    result = _call("nope", "--root", str(world.root.path))
    assert result.exit_code == 2
    assert "nope" in result.stderr


def test_a_store_out_of_order_is_one_line_and_exit_code_1(world: Any) -> None:
    world.begin().steps(2).end("finished")
    (world.root.path / "mlflow.db").write_bytes(b"junk" * 2000)
    result = _call("--root", str(world.root.path))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("rlsweep: MLflow store sqlite:///")
    assert len(result.stderr.splitlines()) == 1


def test_runs_that_cannot_be_read_are_an_error_after_the_others_were_sent(world: Any) -> None:
    bad = world.begin().steps(2).end("finished")
    world.begin("loss=dapo").steps(2).end("finished")
    bad.run.recipe.write_text("name: [")
    result = _call("--root", str(world.root.path), "--json")
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert answer["points"] == 6
    assert bad.run.key in answer["problems"][0]


def test_where_the_scheduler_is_out_of_reach_runs_handed_to_it_stay_open(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the exit code is 4; once it answers that the job is gone, they are closed."""
    trainer = world.begin().steps(2).save().end("interrupted", "asked to stop; saved")
    time_ = time.time() - 60
    write_submission(trainer.run, Submission("aa", world.sweep, "c", "7", time_, 1, 1, 60, 20, "none", 120))
    write_attempt_job(trainer.attempt, AttemptJob("aa", "7", 0, ["n1"], 1, "n1", 1, time_))

    def state() -> str:
        client = MlflowClient(tracking_uri=locate(world.root.path, {}).uri)
        (run,) = client.search_runs(["1"], "tags.`rlsweep.kind` = 'run'")
        return str(run.info.status)

    def unreachable(runs: object) -> dict[str, Job]:
        raise SchedulerError("the scheduler can't be reached: no answer")

    monkeypatch.setattr("rlsweep.launch.seen.jobs_of", unreachable)
    result = _call("--root", str(world.root.path), "--json")
    assert (result.exit_code, result.stderr) == (4, "rlsweep: the scheduler can't be reached: no answer\n")
    assert json.loads(result.stdout)["points"] == 6 and state() == "RUNNING"
    monkeypatch.setattr("rlsweep.launch.seen.jobs_of", lambda runs: {})
    assert _call("--root", str(world.root.path)).exit_code == 0 and state() == "KILLED"
    waits = Job("7", f"rlsweep:{world.sweep}:aa", "PENDING", "BeginTime", "", held=False)
    monkeypatch.setattr("rlsweep.launch.seen.jobs_of", lambda runs: {"7": waits})
    assert _call("--root", str(world.root.path)).exit_code == 0 and state() == "RUNNING"


_NO_NETWORK = """
import socket, sys
def refuse(self, address):
    assert self.family == socket.AF_UNIX, f"connects to {address}"
socket.socket.connect = socket.socket.connect_ex = refuse
def lookup(*args, **named):
    raise AssertionError(f"looks up {args}")
socket.getaddrinfo = lookup
sys.argv = ["rlsweep", "sync"]
from rlsweep.cli import main
main()
"""


def test_a_first_sync_makes_the_store_in_silence_and_without_network(world: Any, tmp_path: Path) -> None:
    for file in world.root.path.glob("mlflow.db*"):
        file.unlink()
    world.begin().steps(1).evaluate().end("finished")
    here = tmp_path / "here"
    here.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW", "DO_NOT"))}
    environment |= {"RLSWEEP_ROOT": str(world.root.path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", _NO_NETWORK], cwd=here, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"tiny-loss: 4 points sent, 1 runs in sqlite:///{world.root.path}/mlflow.db\n"
    assert list(here.iterdir()) == []
    assert sorted(path.name for path in world.root.path.iterdir()) == ["mlartifacts", "mlflow.db", "runs", "sweeps"]


@pytest.mark.parametrize("module", ["rlsweep.cli", "rlsweep.cli.sync", "rlsweep.track", "rlsweep.curves.mlflow"])
def test_mlflow_is_only_loaded_to_sync(module: str) -> None:
    code = f"import {module}, sys; print(sorted({{'mlflow', 'sqlalchemy', 'torch'}} & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

"""Ctrl-C in each phase: what can be saved is, one line says how to go on, and the same command then ends as if nothing
had been."""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from rlsweep.store import attempts, checkpoints, outcome
from rlsweep.store.layout import Root
from rlsweep.store.rows import read_rows

Call = Callable[..., Result]
Command = Callable[..., list[str]]
HERE = Path(__file__).parent
FAKE = HERE.parent / "launch" / "fake_trainer.py"
TINY = ("scalerl", "--scale", "tiny", "--set", "budget.steps=4")
GO_ON = "interrupted: run the same command again to go on from where each run saved"


@pytest.fixture(autouse=True)
def keyboard() -> Iterator[None]:
    """SIGINT as a terminal's processes have it: in the background of a shell it would be ignored, by children too."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def trained_by(script: Path, *words: str) -> str:
    """Code that has runs trained by a script."""
    return f"from rlsweep.launch import local\nlocal.TRAINER = {(sys.executable, str(script), *words)!r}\n"


def no_traceback(process: "subprocess.CompletedProcess[str]", root: Root) -> bool:
    """Neither printed nor in the log of any trainer."""
    return "Traceback" not in process.stderr and not any(
        b"Traceback" in path.read_bytes() for path in root.path.glob("runs/*/attempts/*/log.txt")
    )


def press_in(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Ctrl-C at the end of the first call of a function."""
    module, _, function = name.rpartition(".")
    real = getattr(sys.modules[module], function)

    def wrapped(*given: Any, **named: Any) -> Any:
        result = real(*given, **named)
        monkeypatch.setattr(f"{module}.{function}", real)
        signal.raise_signal(signal.SIGINT)
        return result

    monkeypatch.setattr(f"{module}.{function}", wrapped)


@pytest.mark.parametrize("where", ["rlsweep.sweep.expand.expand", "rlsweep.launch.plan.survey"])
def test_while_planning_nothing_is_written(root: Path, call: Call, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    press_in(monkeypatch, where)
    result = call("ablate", *TINY)
    assert isinstance(result.exception, SystemExit) and (result.exit_code, result.output) == (130, "")
    assert not root.exists()


@pytest.mark.parametrize("where", ["rlsweep.store.ledger.append", "rlsweep.launch.submit.freeze"])
def test_while_submitting_the_sweep_is_let_go(
    root: Path, call: Call, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    press_in(monkeypatch, where)
    result = call("ablate", *TINY, "--name", "s")
    assert isinstance(result.exception, SystemExit) and result.exit_code == 130
    assert result.stderr.splitlines()[-1] == "interrupted: run the same command again to go on"
    assert not list(root.rglob(".*")) and not (root / "sweeps" / "s" / "submitter").exists()
    result = call("ablate", *TINY, "--name", "s")
    assert result.exit_code == 0 and "sweep s: 1 finished" in result.stderr


@pytest.mark.parametrize(
    ("phase", "step", "reason"),
    [
        ("loading", 0, "asked to stop before its first step"),
        ("generation", 1, "asked to stop; saved"),
        ("update", 1, "asked to stop; saved"),
        ("evaluation", 4, "asked to stop; saved"),
        ("checkpoint", 3, "asked to stop; saved"),
    ],
)
def test_while_a_run_is_trained_it_saves_and_later_ends_as_if_nothing_had_been(
    tmp_path: Path,
    models: Path,
    model_folder: str,
    small: str,
    keys: list[str],
    command: Command,
    environment: dict[str, str],
    ends_as: Callable[..., bool],
    phase: str,
    step: int,
    reason: str,
) -> None:
    root = Root(tmp_path / "out")
    root.path.mkdir()
    root.models.symlink_to(models)
    arguments = ("ablate", small, "--name", "s", "--root", str(root.path))
    line = command(*arguments, first=trained_by(HERE / "interrupting_trainer.py", phase))
    done = subprocess.run(line, env=environment, capture_output=True, text=True)
    assert done.returncode == 130 and no_traceback(done, root)
    assert done.stderr.splitlines()[-1] == GO_ON
    assert "stopping: waiting up to 30 s for 1 run(s) to save; again to kill them" in done.stderr
    assert f"base seed 0: stopped at step {step}: {reason}" in done.stderr
    run = root.run(keys[0])
    ended, saved = outcome.read(run), checkpoints.resumable(run)
    assert ended is not None and (ended.state, ended.step) == ("interrupted", step)
    assert (saved.step if saved else 0) == step
    done = subprocess.run(line, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and no_traceback(done, root)
    assert [each.number for each in attempts.every(run)] == [1, 2] and ends_as(run)


def test_a_second_one_ends_at_once_and_says_where_the_run_goes_on(
    tmp_path: Path,
    models: Path,
    model_folder: str,
    small: str,
    keys: list[str],
    command: Command,
    environment: dict[str, str],
    ends_as: Callable[..., bool],
) -> None:
    """In the evaluation of step 4, after the checkpoint of step 3."""
    root = Root(tmp_path / "out")
    root.path.mkdir()
    root.models.symlink_to(models)
    arguments = ("ablate", small, "--name", "s", "--root", str(root.path))
    line = command(*arguments, first=trained_by(HERE / "interrupting_trainer.py", "twice"))
    done = subprocess.run(line, env=environment, capture_output=True, text=True)
    assert done.returncode == 130 and no_traceback(done, root)
    assert "base seed 0: stopped at step 4: killed, as asked again; goes on from step 3" in done.stderr
    assert done.stderr.splitlines()[-1] == GO_ON
    run = root.run(keys[0])
    ended, owner = outcome.read(run), attempts.newest(run)
    assert ended is not None and (ended.state, ended.step) == ("interrupted", 4)
    assert owner is not None and attempts.is_alive(owner) is False
    done = subprocess.run(line, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and ends_as(run)


def test_while_the_model_is_made_nothing_is_left_of_it(
    tmp_path: Path, small: str, keys: list[str], command: Command, environment: dict[str, str]
) -> None:
    root = Root(tmp_path / "out")
    line = command("ablate", small, "--name", "s", "--root", str(root.path))
    first = trained_by(HERE / "interrupting_trainer.py", "making the model")
    done = subprocess.run(command(*line[3:], first=first), env=environment, capture_output=True, text=True)
    assert done.returncode == 130 and no_traceback(done, root)
    assert "making the embedded model (once)" in done.stderr and done.stderr.splitlines()[-1] == GO_ON
    assert "sweep s: 1 waiting" in done.stderr and attempts.every(root.run(keys[0])) == []
    assert not root.models.exists() or list(root.models.iterdir()) == []
    assert not [path for path in root.path.rglob("*") if path.name.startswith(".")]


def wait_for(condition: Callable[[], object], process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.02)


def start(line: list[str], environment: dict[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(line, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def at_step(root: Root, step: int) -> Callable[[], bool]:
    """Whether the one run under a root has trained so many steps."""
    return lambda: any(row["step"] >= step for path in root.runs.glob("*/metrics.jsonl") for row in read_rows(path))


def test_a_run_that_does_not_save_in_time_is_killed_and_says_where_it_goes_on(
    tmp_path: Path, command: Command, environment: dict[str, str]
) -> None:
    root = Root(tmp_path / "out")
    root.path.mkdir()
    (root.path / "behaviour").write_text("* slow\n* deaf")
    first = trained_by(FAKE) + "local._GRACE_S = 1.0\n"
    line = command("ablate", *TINY, "--name", "s", "--root", str(root.path), first=first)
    process = start(line, environment)
    wait_for(at_step(root, 2), process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130 and "Traceback" not in said
    assert "base seed 0: stopped at step 2: killed after 1 s; goes on from step 2" in said
    (root.path / "behaviour").write_text("")
    assert subprocess.run(line, env=environment, capture_output=True).returncode == 0


def test_runs_that_another_command_started_go_on_and_this_is_said(
    tmp_path: Path, command: Command, environment: dict[str, str]
) -> None:
    root = Root(tmp_path / "out")
    root.path.mkdir()
    (root.path / "behaviour").write_text("* slow")

    def ablate(name: str) -> "subprocess.Popen[str]":
        line = command("ablate", *TINY, "--name", name, "--root", str(root.path), first=trained_by(FAKE))
        return start(line, environment)

    owner = ablate("s")
    wait_for(at_step(root, 2), owner)
    watcher = ablate("t")
    assert watcher.stderr is not None
    while "found at work" not in watcher.stderr.readline():
        assert watcher.poll() is None
    watcher.send_signal(signal.SIGINT)
    _, said = watcher.communicate()
    assert watcher.returncode == 130 and "stopping" not in said
    assert said.splitlines()[-1] == (
        "interrupted: 1 of the runs belong to another command and go on; run the same command again to wait for them"
    )
    (run,) = root.runs.iterdir()
    (run / "go").touch()
    _, said = owner.communicate()
    assert owner.returncode == 0 and "sweep s: 1 finished" in said


def test_while_mlflow_is_updated_the_runs_are_whole(root: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlsweep.track.sync", lambda *given, **named: signal.raise_signal(signal.SIGINT))
    result = call("ablate", *TINY, "--name", "s")
    assert isinstance(result.exception, SystemExit) and result.exit_code == 130
    assert "sweep s: 1 finished" in result.stderr
    assert result.stderr.splitlines()[-1] == (
        "interrupted while MLflow was updated. The runs are whole; to try again: rlsweep sync s"
    )


PRESS_AT_FSYNC = """
import os, signal
fsync = os.fsync
os.fsync = lambda file: (signal.raise_signal(signal.SIGINT), fsync(file))
"""


def test_while_the_report_is_written_no_half_of_it_is_left(
    tmp_path: Path, undisturbed: Root, command: Command, environment: dict[str, str]
) -> None:
    root = Root(tmp_path / "out")
    shutil.copytree(undisturbed.path, root.path, symlinks=True)
    line = command("report", "--root", str(root.path), first=PRESS_AT_FSYNC)
    done = subprocess.run(line, env=environment, capture_output=True, text=True)
    assert done.returncode == 130 and "Traceback" not in done.stderr
    assert not [path for path in root.sweeps.rglob("reports/*") if path.is_file()]
    line = command("report", "--root", str(root.path))
    assert subprocess.run(line, env=environment, capture_output=True).returncode == 0
    assert list(root.sweeps.glob("*/reports/report.html"))

"""Jobs ended on a person's word: which, in which order, and what is said; squeue and scancel are small scripts here."""

import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rlsweep.errors import SchedulerError
from rlsweep.launch import cancel as module
from rlsweep.launch import scheduler
from rlsweep.launch.cancel import cancel
from rlsweep.store import attempts, checkpoints
from rlsweep.store.attempts import Attempt
from rlsweep.store.files import read_json, write_json
from rlsweep.store.jobs import AttemptJob, Submission, write_attempt_job, write_submission
from rlsweep.store.layout import Root, RunFolder

Script = Callable[[str, str], Path]
TOKEN = "0123456789"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_WAITS_S", (0.01, 0.01))
    monkeypatch.setattr(module, "_ASKS_S", (0.01, 0.02, 0.03))


def handed(root: Root, key: str, job: str, token: str = TOKEN) -> RunFolder:
    """A run of sweep s that was handed to a job."""
    run = root.run(key)
    run.path.mkdir(parents=True)
    write_submission(run, Submission(token, "s", "c", job, time.time(), 1, 1, 60, 20, "none", 120))
    return run


def at_work(run: RunFolder, job: str, token: str = TOKEN, step: int = 0) -> Attempt:
    """An attempt on another host, with a checkpoint of a step."""
    attempt = attempts.claim(run)
    attempts.record_process(attempt)
    write_json(attempt.process, {**read_json(attempt.process), "host": "n1"})
    write_attempt_job(attempt, AttemptJob(token, job, 0, ["n1"], 1, "n1", 1, time.time()))
    if step:
        with checkpoints.writing(run, attempt, step) as folder:
            (folder / "resume").mkdir()
    return attempt


@pytest.fixture
def queue(script: Script, tmp_path: Path) -> Callable[..., Path]:
    """A queue that holds these `id|state` until scancel is called; the file with a line for each call."""

    def make(*jobs: str, token: str = TOKEN, scancel: str = "") -> Path:
        folder = shlex.quote(str(tmp_path))
        lines = [f"{job}|None||N/A|rlsweep:s:{token}" if job.count("|") == 1 else job for job in jobs]
        (tmp_path / "queue").write_text("".join(f"{line}\n" for line in lines))
        script("squeue", f"cat {folder}/queue")
        return script("scancel", scancel or f": > {folder}/queue")

    return make


def calls(file: Path, name: str) -> list[str]:
    return [line for line in file.read_text().splitlines() if line.split()[0] == name]


def test_jobs_that_wait_and_that_work_are_ended_with_one_call(root: Root, queue: Callable[..., Path]) -> None:
    runs = [handed(root, key, job) for key, job in (("a" * 12, "7_0"), ("b" * 12, "7_1"), ("c" * 12, "7_2"))]
    working = at_work(runs[1], "7_1", step=40)
    between = at_work(runs[2], "7_2")
    file = queue("7_0|PENDING", "7_1|RUNNING", "7_2|REQUEUE_HOLD", "8|RUNNING")
    assert cancel(runs, 30) == [
        (runs[0], True, "was waiting (job 7_0): taken out of the queue; begins at the start when asked for again"),
        (runs[1], True, "was running (job 7_1): ended; goes on from step 40 when asked for again"),
        (runs[2], True, "was waiting (job 7_2): taken out of the queue; begins at the start when asked for again"),
    ]
    assert calls(file, "scancel") == ["scancel 7_0 7_1 7_2"] and len(calls(file, "squeue")) == 2
    assert working.cancelled.exists() and between.cancelled.exists()


def test_the_mark_stands_before_the_signal(root: Root, queue: Callable[..., Path]) -> None:
    """Else the task would take it for a fault and have the job queued again."""
    run = handed(root, "a" * 12, "7")
    attempt = at_work(run, "7")
    there = shlex.quote(str(attempt.cancelled))
    queue("7|RUNNING", scancel=f"[ -e {there} ] && echo marked >> {there}.seen")
    cancel([run], 30)
    assert attempt.cancelled.with_name("cancelled.json.seen").read_text() == "marked\n"


def test_a_job_that_saves_for_long_is_said_to_be_there_still(root: Root, queue: Callable[..., Path]) -> None:
    run = handed(root, "a" * 12, "7")
    at_work(run, "7")
    file = queue("7|RUNNING", scancel="echo 'scancel: error: not now' >&2; exit 1")
    assert cancel([run], 30) == [
        (run, False, "job 7 was asked to end and is not gone yet; scancel said: scancel: error: not now")
    ]
    assert len(calls(file, "squeue")) == 4
    queue("7|RUNNING", scancel=":")
    assert cancel([run], 0) == [(run, False, "job 7 was asked to end and is not gone yet")]


def test_an_id_that_is_somebody_elses_by_now_is_left_alone(root: Root, queue: Callable[..., Path]) -> None:
    run, again = handed(root, "a" * 12, "7"), handed(root, "b" * 12, "9", token="another")
    file = queue("7|RUNNING|None|n1|N/A|their training", "9|RUNNING")
    assert cancel([run, again], 30) == [
        (run, True, "is not running (lost)"),
        (again, True, "is not running (lost)"),
    ]
    assert calls(file, "scancel") == []


def test_an_attempt_of_an_earlier_job_is_not_marked(root: Root, queue: Callable[..., Path]) -> None:
    run = handed(root, "a" * 12, "7")
    earlier = at_work(run, "3", token="earlier", step=10)
    queue("7|PENDING")
    assert cancel([run], 30)[0][1:] == (
        True,
        "was waiting (job 7): taken out of the queue; goes on from step 10 when asked for again",
    )
    assert not earlier.cancelled.exists()


DOWN = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"


def test_where_the_scheduler_is_out_of_reach_nothing_is_ended_or_marked(
    root: Root, queue: Callable[..., Path], script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    signalled: list[int] = []
    monkeypatch.setattr("os.kill", lambda pid, number: signalled.append(pid))
    run, here = handed(root, "a" * 12, "7"), root.run("b" * 12)
    attempt, local = at_work(run, "7"), attempts.claim(here)
    attempts.record_process(local)
    file = queue("7|RUNNING")
    script("squeue", DOWN)
    with pytest.raises(SchedulerError):
        cancel([here, run], 30)
    assert calls(file, "scancel") == [] and signalled == []
    assert not attempt.cancelled.exists() and not local.cancelled.exists()
    queue("7|RUNNING", scancel=DOWN)  # it goes away between the two
    with pytest.raises(SchedulerError):
        cancel([here, run], 30)
    assert signalled == [] and not attempt.cancelled.exists() and not local.cancelled.exists()


def test_where_it_goes_away_after_that_the_jobs_are_said_to_have_been_asked(
    root: Root, queue: Callable[..., Path], tmp_path: Path
) -> None:
    run = handed(root, "a" * 12, "7")
    attempt = at_work(run, "7")
    squeue = shlex.quote(str(tmp_path / "bin" / "squeue"))
    queue("7|RUNNING", scancel=f"echo {shlex.quote(DOWN)} > {squeue}")
    assert cancel([run], 30) == [(run, False, "job 7 was asked to end and is not gone yet")]
    assert attempt.cancelled.exists()


def test_many_jobs_go_over_several_command_lines(
    root: Root, queue: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", 2)
    runs = [handed(root, f"{number:012x}", f"7_{number}") for number in range(5)]
    file = queue(*(f"7_{number}|PENDING" for number in range(5)), scancel=":")
    answers = cancel(runs, 0)
    assert calls(file, "scancel") == ["scancel 7_0 7_1", "scancel 7_2 7_3", "scancel 7_4"]
    assert [at_rest for _, at_rest, _ in answers] == [False] * 5


def test_runs_here_and_jobs_are_ended_together(
    root: Root, queue: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    signalled: list[int] = []
    monkeypatch.setattr("os.kill", lambda pid, number: signalled.append(pid))
    here, run, damaged = root.run("a" * 12), handed(root, "b" * 12, "7"), handed(root, "c" * 12, "8")
    local = attempts.claim(here)
    attempts.record_process(local)
    damaged.submission.write_text("{}")
    queue("7|PENDING")
    answers = cancel([damaged, here, run], 0.1)
    assert [at_rest for _, at_rest, _ in answers] == [False, False, True]
    assert "submission.json: not a submission" in answers[0][2]
    assert answers[1][2] == "was asked to end (attempt 1) and is still saving"
    assert "was waiting (job 7): taken out of the queue" in answers[2][2]
    assert len(signalled) == 1 and local.cancelled.exists()

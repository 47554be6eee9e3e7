"""States of runs whose jobs a real scheduler holds, runs, requeues, ends and forgets."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rlsweep.launch.queue import own_jobs, read_jobs
from rlsweep.launch.seen import jobs_of, look
from rlsweep.store import attempts, outcome
from rlsweep.store.files import read_json, write_json
from rlsweep.store.jobs import Accounting, AttemptJob, Submission, job_name, write_attempt_job, write_submission
from rlsweep.store.layout import Root, RunFolder
from rlsweep.store.outcome import Outcome
from rlsweep.store.state import Seen

pytestmark = pytest.mark.slurm

SWEEP = "balayage à |moi"


@dataclass
class Jobs:
    """A root whose runs are handed to jobs that sleep, fail or end, but train nothing."""

    slurm: Any
    root: Root
    sweep: str = SWEEP
    accounting: Accounting = "slurmdbd"
    handed: list[Submission] = field(default_factory=list)

    def submit(self, command: str, *options: str, elements: int = 0) -> list[RunFolder]:
        """Hand new runs to a job, or to the elements of an array."""
        token = f"{len(self.handed):010x}"
        logs = self.root.sweep(self.sweep).jobs / token
        logs.mkdir(parents=True)
        script = logs / "job.sh"
        script.write_text(f"#!/bin/bash\n{command}\n")
        name = logs / ("%A_%a" if elements else "%j")
        job = self.slurm.run(
            *("sbatch", "--parsable", f"--job-name={job_name(self.sweep, token)}", "--chdir=/"),
            *(f"--output={name}_0_log.out", f"--error={name}_0_log.err", *options, str(script)),
        ).strip()
        runs = []
        for id in [f"{job}_{number}" for number in range(elements)] or [job]:
            run = self.root.run(f"{len(self.handed):012x}")
            run.path.mkdir(parents=True)
            handed = Submission(token, self.sweep, "test", id, time.time(), 1, 1, 10, 20, self.accounting, 120)
            write_submission(run, handed)
            self.handed.append(handed)
            runs.append(run)
        return runs

    def id(self, run: RunFolder) -> str:
        return str(read_json(run.submission)["job"])

    def seen(self, run: RunFolder) -> Seen:
        return look(run, jobs_of([run]))

    def until(self, run: RunFolder, state: str, words: str = "", seconds: float = 120) -> Seen:
        """Wait until the run is in that state and the reason has these words."""
        deadline = time.monotonic() + seconds
        while True:
            seen = self.seen(run)
            if seen.state == state and words in seen.reason:
                return seen
            assert time.monotonic() < deadline, (state, words, seen, self.slurm.run("squeue", "--states=all"))
            time.sleep(0.3)

    def restore(self, node: str) -> None:
        """Have a node used again that was said to be down: by itself, or told to once its job is cleaned up."""
        deadline = time.monotonic() + 60
        while "down" in self.slurm.run("sinfo", "--noheader", f"--nodes={node}", "--format=%T"):
            assert time.monotonic() < deadline, self.slurm.run("sinfo", "--long")
            with suppress(subprocess.CalledProcessError):
                self.slurm.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
            time.sleep(0.3)

    def began(self, run: RunFolder) -> None:
        """What the job's first process would write: an attempt on its node, whose process nobody here can ask."""
        attempt = attempts.claim(run)
        attempts.record_process(attempt)
        node = {"host": "node.elsewhere", "start_ticks": 1}
        write_json(attempt.process, {**read_json(attempt.process), **node})
        token = read_json(run.submission)["token"]
        write_attempt_job(attempt, AttemptJob(token, self.id(run), 0, ["n1"], 1, "n1", 1, time.time()))


@pytest.fixture(scope="module")
def jobs(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    made = Jobs(cluster, Root(tmp_path_factory.mktemp("états")))
    yield made
    left = {submission.job.partition("_")[0] for submission in made.handed}
    cluster.run("scancel", *sorted(left))


def test_waiting_and_held_jobs_say_why_and_what_releases_them(jobs: Jobs) -> None:
    (later,) = jobs.submit("true", "--begin=now+1hour")
    assert (jobs.seen(later).state, jobs.seen(later).release) == ("pending", None)
    assert jobs.seen(later).reason.endswith("[BeginTime]")
    held, other = jobs.submit("sleep 600", "--hold", "--array=0-1%1", elements=2)
    seen = jobs.seen(held)
    assert seen.state == "pending" and seen.reason.startswith("held by its owner [JobHeldUser]; to release it: ")
    assert seen.release is not None and seen.job == jobs.id(held)
    jobs.slurm.run(*seen.release.split())
    assert jobs.until(held, "running", "starting on n").nodes.startswith("n")
    jobs.slurm.run("scontrol", "release", jobs.id(other))
    jobs.until(other, "pending", "[JobArrayTaskLimit]")
    assert {job.id: job.held for job in own_jobs()}[jobs.id(other)] is False


def test_from_the_start_to_the_requeue(jobs: Jobs) -> None:
    (run,) = jobs.submit("sleep 600", "--requeue")
    jobs.until(run, "running", "starting on n")
    jobs.began(run)
    assert jobs.seen(run).reason == "attempt 1 is at work"
    outcome.write(run, Outcome("interrupted", 40, "saved"))
    assert jobs.seen(run).state == "running"  # nobody can tell yet whether the job goes on
    jobs.slurm.run("scontrol", "requeue", jobs.id(run))
    assert jobs.until(run, "pending", "; attempt 1 ended at step 40").step == 40
    jobs.until(run, "running")
    jobs.slurm.run("scancel", jobs.id(run))
    assert jobs.until(run, "interrupted").reason == f"its job {jobs.id(run)} was cancelled; saved"


def test_a_node_that_fails_queues_its_job_again_or_loses_it(jobs: Jobs) -> None:
    again, lost = (jobs.submit("sleep 600", option)[0] for option in ("--requeue", "--no-requeue"))
    for run in (again, lost):
        node = jobs.until(run, "running").nodes
        jobs.began(run)
        jobs.slurm.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
        jobs.until(run, "pending" if run is again else "lost")
        jobs.restore(node)
    assert jobs.seen(lost).reason == f"its job {jobs.id(lost)} lost its node, attempt 1 left no outcome"
    jobs.until(again, "running")  # a second record of the same job: the newest one counts
    jobs.slurm.run("scancel", jobs.id(again))
    jobs.until(again, "interrupted", "was cancelled, attempt 1 left no outcome")


def test_what_was_cancelled_before_it_started(jobs: Jobs) -> None:
    (alone,) = jobs.submit("true", "--begin=now+1hour")
    first, second, third = jobs.submit("sleep 600", "--array=0-2%1", elements=3)
    jobs.until(first, "running")
    jobs.slurm.run("scancel", jobs.id(alone), jobs.id(second))
    for run in (alone, second):  # the element leaves no record of its own anywhere
        words = f"its job {jobs.id(run)} was cancelled before it started"
        assert jobs.until(run, "interrupted").reason == words
    assert jobs.seen(third).state == "pending"
    jobs.slurm.run("scancel", jobs.id(first))
    jobs.until(first, "interrupted", "was cancelled before an attempt began")
    jobs.until(third, "running")


def test_a_job_that_fails_or_ends_without_training_is_told_by_its_log(jobs: Jobs) -> None:
    (failed,) = jobs.submit("echo 'setup line 1 failed: é' >&2; exit 3")
    (ended,) = jobs.submit("echo 'no GPU-hours are left' >&2")
    jobs.until(failed, "failed", "before an attempt began: setup line 1 failed: é")
    jobs.until(ended, "interrupted", "ended without training: no GPU-hours are left")


def test_the_accounting_tells_what_squeue_has_forgotten(
    jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every job of the tests above that is over, by squeue and by sacct alone; in another zone than the cluster's."""
    assert len(jobs.handed) > 10
    by_queue = read_jobs(jobs.handed)
    over = [
        each for each in jobs.handed if each.job in by_queue and by_queue[each.job].state not in ("PENDING", "RUNNING")
    ]
    assert {by_queue[each.job].state for each in over} == {"CANCELLED", "NODE_FAIL", "FAILED", "COMPLETED"}
    (tmp_path / "squeue").write_text("#!/bin/sh\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    by_sacct: dict[str, str] = {}
    deadline = time.monotonic() + 60  # the database hears of an end a little later
    while time.monotonic() < deadline and by_sacct != {each.job: by_queue[each.job].state for each in over}:
        by_sacct = {id: job.state for id, job in read_jobs(over).items()}
        time.sleep(1)
    assert by_sacct == {each.job: by_queue[each.job].state for each in over}


@pytest.fixture(scope="module")
def bare(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A cluster without accounting that forgets what is over within a minute or so."""
    one_machine = sys.modules["one_machine"]
    folder = tmp_path_factory.mktemp("bare")
    up = one_machine.up(folder, accounting=False)
    patch = pytest.MonkeyPatch()
    try:
        for name, value in up.environment.items():
            patch.setenv(name, value)
        up.set_parameter("MinJobAge", "2")
        yield up
    finally:
        patch.undo()
        up.down()
        shutil.rmtree(folder)


def test_without_accounting_squeue_and_the_folder_are_all_there_is(bare: Any, tmp_path: Path) -> None:
    """And the record of jobcomp, where a site keeps one: it knows the states of plain jobs with plain names."""
    jobs = Jobs(bare, Root(tmp_path / "none"), accounting="none")
    kept = Jobs(bare, Root(tmp_path / "jobcomp"), sweep="s", accounting="jobcomp")
    wrong = Jobs(bare, Root(tmp_path / "wrong"), accounting="slurmdbd")
    failed, finished, vanished = (jobs.submit("exit 3")[0] for _ in range(3))
    (noted,), (mistaken,) = kept.submit("exit 3"), wrong.submit("exit 3")
    for run in (finished, vanished):
        jobs.began(run)
    outcome.write(finished, Outcome("finished", 60, "all done"))
    assert jobs.seen(finished).state == "finished"
    jobs.until(failed, "failed", "(NonZeroExitCode) before an attempt began")
    jobs.until(vanished, "failed", "attempt 1 left no outcome")
    jobs.until(failed, "lost", "is gone: not in the queue, and this cluster keeps no accounting", seconds=200)
    jobs.until(vanished, "lost", "; attempt 1 left no outcome")
    assert jobs.seen(finished).reason == "all done"
    kept.until(noted, "failed", "failed (exit 3:0) before an attempt began")
    # A profile that is wrong about the site: sacct says that there is nothing, and the run has a state all the same.
    wrong.until(mistaken, "lost", "the accounting can't be asked")

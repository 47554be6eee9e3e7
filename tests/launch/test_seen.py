"""The state of a run from folder, process and scheduler: a table of what is there and what has to be said of it."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from rlsweep.launch.pending import why
from rlsweep.launch.queue import UNKNOWN, UNSTARTED, Job
from rlsweep.launch.seen import jobs_of, look
from rlsweep.store import attempts, outcome
from rlsweep.store.attempts import Attempt
from rlsweep.store.files import read_json, write_json
from rlsweep.store.jobs import Accounting, AttemptJob, Submission, write_attempt_job, write_submission
from rlsweep.store.layout import Root, RunFolder
from rlsweep.store.outcome import Outcome

NOW = time.time()
HANDED = NOW - 3000
TOKEN = "0123456789"


@dataclass
class Case:
    run: RunFolder

    def handed(self, token: str = TOKEN, accounting: Accounting = "slurmdbd", at: float = HANDED) -> None:
        write_submission(self.run, Submission(token, "é x", "c", "12_4", at, 1, 1, 60, 20, accounting, 120))

    def attempt(self, token: str | None = TOKEN, began: float = NOW - 2000, here: bool = False) -> Attempt:
        """One more attempt: of a job on a node, of another job, or (token None) of no job. It says nothing any more."""
        attempt = attempts.claim(self.run)
        attempts.record_process(attempt)
        where = {} if here else {"host": "n1.elsewhere", "start_ticks": 1}
        write_json(attempt.process, {**read_json(attempt.process), **where, "started": began})
        if token is not None:
            write_attempt_job(attempt, AttemptJob(token, "12_4", 0, ["n1"], 1, "n1", 1, began))
        return attempt

    def ended(self, state: outcome.State, step: int = 40, reason: str = "stopped") -> None:
        outcome.write(self.run, Outcome(state, step, reason))

    def log(self, text: str) -> None:
        folder = Root(self.run.path.parents[1]).sweep("é x").jobs / TOKEN
        folder.mkdir(parents=True)
        (folder / "12_4_0_log.err").write_text(text)

    def seen(self, job: Job | None) -> tuple[str, str]:
        found = look(self.run, {} if job is None else {"12_4": job})
        assert found.job == "12_4"
        return found.state, found.reason


@pytest.fixture
def case(tmp_path: Path) -> Case:
    run = Root(tmp_path).run("0123456789ab")
    run.path.mkdir(parents=True)
    return Case(run)


def job(state: str, reason: str = "", nodes: str = "", held: bool = False, start: float | None = None) -> Job:
    return Job("12_4", f"rlsweep:é x:{TOKEN}", state, reason, nodes, held, start)


WAITS = job("PENDING", "Resources")
RUNS = job("RUNNING", nodes="n3", start=NOW - 2010)
WAITING = "waits for nodes to become free [Resources]"


def test_without_a_submission_it_is_what_the_folder_says(case: Case) -> None:
    for jobs in ({}, None):
        assert (look(case.run, jobs).state, look(case.run, jobs).job) == ("waiting", None)
    case.attempt(None, here=True)
    assert look(case.run, {}).state == "running"


def test_a_new_job_waits_and_says_why(case: Case) -> None:
    case.handed()
    assert case.seen(WAITS) == ("pending", WAITING)
    assert look(case.run, {"12_4": WAITS}).release is None


def test_a_held_job_comes_with_the_command_that_releases_it(case: Case) -> None:
    case.handed()
    held = job("PENDING", "JobHeldUser", held=True)
    seen = look(case.run, {"12_4": held})
    assert (seen.state, seen.release) == ("pending", "scontrol release 12_4")
    assert seen.reason == "held by its owner [JobHeldUser]; to release it: scontrol release 12_4"


@pytest.mark.parametrize("state", ["PENDING", "REQUEUED", "REQUEUE_HOLD"])
def test_a_requeued_job_waits_whatever_its_attempt_left(case: Case, state: str) -> None:
    case.handed()
    case.attempt()
    assert case.seen(job(state, "BeginTime"))[0] == "pending"
    case.ended("interrupted", 40)
    found, reason = case.seen(job(state, "BeginTime"))
    assert found == "pending" and "[BeginTime]; attempt 1 ended at step 40" in reason
    assert look(case.run, {"12_4": job(state)}).step == 40


def test_a_job_that_runs_is_starting_until_its_attempt_is_there(case: Case) -> None:
    case.handed()
    assert case.seen(RUNS) == ("running", "starting on n3")
    assert case.seen(job("CONFIGURING", nodes="n3")) == ("running", "starting on n3: the nodes are being prepared")
    case.attempt()
    assert case.seen(RUNS) == ("running", "attempt 1 is at work")
    seen = look(case.run, {"12_4": RUNS})
    assert (seen.host, seen.nodes) == ("n1.elsewhere", "n3")
    assert case.seen(job("SUSPENDED", nodes="n3")) == ("running", "suspended by the scheduler on n3")


def test_after_a_requeue_the_attempt_before_is_not_taken_for_the_one_to_come(case: Case) -> None:
    case.handed()
    case.attempt(began=NOW - 2000)
    again = job("RUNNING", nodes="n4", start=NOW - 100)
    assert case.seen(again) == ("running", "starting on n4")
    case.ended("interrupted", 40)
    assert case.seen(again) == ("running", "starting on n4, attempt 1 reached step 40")
    assert look(case.run, {"12_4": again}).host is None


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING"])
def test_a_job_whose_attempt_has_just_ended_may_be_queued_again_and_is_left(case: Case, state: str) -> None:
    case.handed()
    case.attempt()
    assert case.seen(job(state, nodes="n3"))[0] == "running"
    for ended in ("interrupted", "failed"):
        case.ended(ended, reason="because")
        expected = ("running", "attempt 1 has ended (because), its job is about to")
        assert case.seen(job(state, nodes="n3")) == expected
    case.ended("finished", reason="all done")
    assert case.seen(job(state, nodes="n3")) == ("finished", "all done")


ENDS = {
    "COMPLETED": ("lost", "its job 12_4 ended, attempt 1 left no outcome"),
    "FAILED": ("failed", "its job 12_4 failed (exit 1:0), attempt 1 left no outcome"),
    "CANCELLED": ("interrupted", "its job 12_4 was cancelled, attempt 1 left no outcome"),
    "TIMEOUT": ("lost", "its job 12_4 ran into its time limit, attempt 1 left no outcome"),
    "NODE_FAIL": ("lost", "its job 12_4 lost its node, attempt 1 left no outcome"),
    "PREEMPTED": ("lost", "its job 12_4 was preempted and not queued again, attempt 1 left no outcome"),
    "BOOT_FAIL": ("lost", "its job 12_4 got a node that did not boot, attempt 1 left no outcome"),
    "OUT_OF_MEMORY": ("failed", "its job 12_4 ran out of memory, attempt 1 left no outcome"),
}


@pytest.mark.parametrize("state", ENDS)
def test_the_end_of_a_job_ends_an_attempt_on_another_host_that_said_nothing(case: Case, state: str) -> None:
    """Its files are a moment old: by the folder alone it would pass for running for half an hour."""
    case.handed()
    case.attempt(began=NOW)
    assert case.seen(job(state, "exit 1:0")) == ENDS[state]


@pytest.mark.parametrize("state", ENDS)
@pytest.mark.parametrize("ended", ["finished", "diverged", "failed"])
def test_what_the_attempt_of_the_job_said_last_counts_more_than_how_the_job_ended(
    case: Case, state: str, ended: str
) -> None:
    case.handed()
    case.attempt()
    case.ended(ended, reason="because")
    assert case.seen(job(state, "exit 1:0")) == (ended, "because")
    assert look(case.run, {"12_4": job(state)}).step == 40


def test_a_saved_run_whose_job_was_not_queued_again_is_interrupted(case: Case) -> None:
    case.handed()
    case.attempt()
    case.ended("interrupted", reason="saved")
    case.log("12 of 12 retries are used up\nsrun: error: n1: task 0\nslurmstepd-n4: error: *** JOB 9 CANCELLED\n")
    expected = {
        "CANCELLED": "its job 12_4 was cancelled; saved",
        "TIMEOUT": "its job 12_4 ran into its time limit; saved",
        "COMPLETED": "its job 12_4 ended: 12 of 12 retries are used up; saved",
    }
    for state, reason in expected.items():
        assert case.seen(job(state)) == ("interrupted", reason)


def test_a_setup_line_that_fails_after_a_requeue_is_what_the_run_failed_of(case: Case) -> None:
    case.handed()
    case.attempt()
    case.ended("interrupted")
    case.log("rlsweep: setup line 2 failed: module load cuda\n")
    failed = ("failed", "its job 12_4 failed (exit 1:0): rlsweep: setup line 2 failed: module load cuda")
    assert case.seen(job("FAILED", "exit 1:0")) == failed


def test_a_job_that_ended_before_any_attempt_is_told_by_its_own_log(case: Case) -> None:
    case.handed()
    assert case.seen(job("FAILED", "exit 1:0")) == (
        "failed",
        "its job 12_4 failed (exit 1:0) before an attempt began",
    )
    assert case.seen(job("CANCELLED", UNSTARTED)) == ("interrupted", "its job 12_4 was cancelled before it started")
    assert case.seen(job("COMPLETED"))[0] == "lost"
    case.log("rlsweep: setup line 1 failed: module load é\n\nsrun: error: n1: task 0: Exited with exit code 1\n\n")
    words = "its job 12_4 failed (exit 1:0) before an attempt began: rlsweep: setup line 1 failed: module load é"
    assert case.seen(job("FAILED", "exit 1:0")) == ("failed", words)
    assert case.seen(job("NODE_FAIL")) == ("lost", "its job 12_4 lost its node before an attempt began")
    # A job that has nothing to do, or may do nothing, says why and ends well.
    assert case.seen(job("COMPLETED"))[0] == "interrupted"
    assert case.seen(job("COMPLETED"))[1].startswith("its job 12_4 ended without training: rlsweep: setup")


@pytest.mark.parametrize("ended", ["finished", "diverged", "failed", "interrupted"])
def test_the_outcome_of_an_older_attempt_is_not_the_new_jobs(case: Case, ended: str) -> None:
    """Of an attempt before the run was handed to this job: of another job, or of none."""
    for token in ("another", None):
        case.attempt(token, began=HANDED - 500)
        case.ended(ended, reason="because")
        case.handed()
        assert case.seen(WAITS) == ("pending", WAITING)
        assert case.seen(RUNS) == ("running", "starting on n3")
        assert case.seen(job("FAILED"))[0] == "failed" and "because" not in case.seen(job("FAILED"))[1]
        assert case.seen(None)[0] == "lost"


def test_the_outcome_of_an_older_attempt_of_the_same_job_is_not_the_newest_ones(case: Case) -> None:
    case.handed()
    case.attempt()
    case.ended("finished")
    case.attempt()
    assert case.seen(job("NODE_FAIL")) == ("lost", "its job 12_4 lost its node, attempt 2 left no outcome")


def test_a_job_that_found_the_run_finished_leaves_it_finished(case: Case) -> None:
    case.attempt("another", began=HANDED - 500)
    case.ended("finished", reason="all done")
    case.handed()
    assert case.seen(job("COMPLETED", "exit 0:0")) == ("finished", "all done")


GONE = {
    "slurmdbd": "job 12_4 is gone: neither in the queue nor in the accounting",
    "none": "job 12_4 is gone: not in the queue, and this cluster keeps no accounting",
}


@pytest.mark.parametrize("accounting", ["slurmdbd", "none"])
def test_of_a_job_that_nobody_knows_the_folder_says_what_it_can(case: Case, accounting: Accounting) -> None:
    case.handed(accounting=accounting)
    assert case.seen(None) == ("lost", GONE[accounting])
    attempt = case.attempt(began=NOW)
    assert case.seen(None) == ("lost", f"{GONE[accounting]}; attempt 1 left no outcome")
    case.log("Killed\n")
    assert case.seen(None)[1].endswith("left no outcome: Killed")
    write_json(attempt.cancelled, {})
    assert case.seen(None) == ("interrupted", f"cancelled; {GONE[accounting]}")
    case.ended("interrupted", reason="saved")
    assert case.seen(None) == ("interrupted", f"saved; {GONE[accounting]}")
    case.ended("failed", reason="because")
    assert case.seen(None) == ("failed", "because")


def test_accounting_that_could_not_be_asked_is_said(case: Case) -> None:
    case.handed()
    unknown = job(UNKNOWN, "the accounting can't be asked (refused)")
    assert case.seen(unknown) == (
        "lost",
        "job 12_4 is gone: not in the queue, and the accounting can't be asked (refused)",
    )
    case.attempt()
    case.ended("finished", reason="all done")
    assert case.seen(unknown) == ("finished", "all done")


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "CANCELLED", "COMPLETED"])
def test_a_process_at_work_on_this_host_wins(case: Case, state: str) -> None:
    case.handed()
    case.attempt(here=True)
    assert case.seen(job(state))[0] == "running" and case.seen(None)[0] == "running"


def test_a_run_that_was_trained_without_its_job_after_all(case: Case) -> None:
    """Finished: nothing is left for the job. Broken off: the job does the rest, if it is still there."""
    case.handed()
    attempt = case.attempt(None, began=HANDED + 100)
    assert look(case.run, {"12_4": WAITS}).state == "running"  # on another host, heard of just now
    assert look(case.run, {"12_4": WAITS}).job is None
    for path in (attempt.process, attempt.path):
        os.utime(path, (HANDED, HANDED))
    assert case.seen(WAITS) == ("pending", WAITING)
    case.ended("interrupted", reason="stopped")
    assert case.seen(WAITS) == ("pending", WAITING)
    assert case.seen(None) == ("interrupted", f"stopped; {GONE['slurmdbd']}")
    case.ended("finished", reason="all done")
    for each in (WAITS, RUNS, None):
        seen = look(case.run, {} if each is None else {"12_4": each})
        assert (seen.state, seen.reason) == ("finished", "all done")


def test_where_nobody_could_be_asked_the_folder_speaks_and_the_doubt_is_said(case: Case) -> None:
    case.handed()
    seen = look(case.run, None)
    assert (seen.state, seen.reason) == ("pending", "handed to job 12_4, which could not be asked about")
    case.attempt()
    seen = look(case.run, None)
    assert seen.state == "running" and seen.reason.endswith("; its job 12_4 could not be asked about")
    case.ended("interrupted", reason="saved")
    assert look(case.run, None).state == "interrupted"
    case.ended("finished", reason="all done")
    assert (look(case.run, None).state, look(case.run, None).reason) == ("finished", "all done")


def test_a_submission_with_words_where_numbers_belong_is_damaged(case: Case) -> None:
    case.handed()
    write_json(case.run.submission, {**read_json(case.run.submission), "time": "yesterday", "job": 12})
    assert look(case.run, {}).state == "lost" and "submission.json" in look(case.run, {}).reason
    assert jobs_of([case.run]) == {}


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"token": 1}', "7"])
def test_damaged_files_are_told_and_end_nothing(case: Case, text: str) -> None:
    case.handed()
    attempt = case.attempt(began=HANDED + 500)
    attempt.job.write_text(text)
    assert case.seen(RUNS)[0] == "running" and case.seen(WAITS)[0] == "pending"
    state, reason = case.seen(job("FAILED", "exit 1:0"))
    assert state == "failed" and "job.json" in reason
    assert "job.json" in case.seen(None)[1]
    case.ended("interrupted", reason="saved")
    assert case.seen(job("CANCELLED")) == ("interrupted", "its job 12_4 was cancelled; saved")
    case.run.outcome.write_text(text)
    assert "outcome.json" in case.seen(job("NODE_FAIL"))[1]
    case.run.submission.write_text(text)
    seen = look(case.run, {})
    assert seen.state in ("running", "lost")
    os.utime(attempt.process, (1e9, 1e9))
    os.utime(attempt.path, (1e9, 1e9))
    assert look(case.run, {}).state == "lost" and "submission.json" in look(case.run, {}).reason
    assert jobs_of([case.run]) == {}


def test_only_runs_that_are_not_over_are_asked_about_with_one_call(
    tmp_path: Path, script: Callable[[str, str], Path]
) -> None:
    calls = script("squeue", f"echo '12_4|PENDING|Priority||N/A|rlsweep:é x:{TOKEN}'")
    script("sacct", "true")
    root, cases = Root(tmp_path / "root"), []
    for key in ("never", "damaged", "finished", "diverged", "by hand"):
        root.run(key).path.mkdir(parents=True)
        cases.append(Case(root.run(key)))
    _, damaged, finished, diverged, by_hand = cases
    damaged.run.submission.write_text("{")
    for each in (finished, diverged, by_hand):
        each.handed()
        each.attempt(None if each is by_hand else TOKEN)
        each.ended("diverged" if each is diverged else "finished")
    runs = [each.run for each in cases]
    assert jobs_of(runs) == {} and calls.read_text() == ""
    finished.handed(token="aa", at=NOW)  # its budget was raised; a run of long ago had a job of the same number
    jobs = jobs_of(runs)
    assert calls.read_text().count("\n") == 2 and jobs == {}
    script("squeue", "echo '12_4|PENDING|Priority||N/A|rlsweep:é x:aa'")
    root.run("failed").path.mkdir()
    failed = Case(root.run("failed"))
    failed.handed()
    failed.attempt()
    failed.ended("interrupted")
    jobs = jobs_of([failed.run, *runs, failed.run])
    assert [look(each, jobs).state for each in (finished.run, failed.run)] == ["pending", "interrupted"]
    assert "is gone" in look(failed.run, jobs).reason


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("Priority", "waits behind jobs of higher priority [Priority]"),
        ("JobArrayTaskLimit", "waits for others of its array: so many run at a time as asked for [JobArrayTaskLimit]"),
        ("ReqNodeNotAvail, UnavailableNodes:n[1-2]", "waits for nodes that are down, drained or reserved"),
        ("ReqNodeNotAvail(Unavailable:n1)", "waits for nodes that are down, drained or reserved"),
        (
            "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
            "waits for nodes",
        ),
        ("QOSMaxJobsPerUserLimit", "waits: its QOS has as many jobs as it may [QOSMaxJobsPerUserLimit]"),
        ("QOSMaxGRESPerUser", "waits: its QOS has as many GPUs as it may"),
        ("AssocGrpCpuLimit", "waits: its account has as many CPUs as it may"),
        ("AssocGrpMemLimit", "waits: its account has as much memory as it may"),
        ("AssocGrpCPUMinutesLimit", "waits: its account has as much time as it may"),
        ("QOSMinGRES", "never starts as it is: it asks for less than its QOS demands"),
        ("AssocGrpBillingLimit", "waits: its account has as much as it may"),
        ("QOSMaxWallDurationPerJobLimit", "never starts as it is: it asks for more than its QOS allows one job"),
        ("MaxNodePerAccount", "waits: its owner has as many nodes as it may"),
        ("PartitionTimeLimit", "never starts as it is: its time limit is over that of the partition"),
        ("launch failed requeued held", "held: it could not be launched on its node [launch failed requeued held]"),
        ("SomethingNew", "waits [SomethingNew]"),
        ("", "waits to be looked at by the scheduler"),
    ],
)
def test_pending_reasons_are_said_in_words_with_slurms_code(code: str, words: str) -> None:
    assert why(job("PENDING", code)).startswith(words)

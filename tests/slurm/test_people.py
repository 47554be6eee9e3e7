"""What people see of runs on the real scheduler, and what they do about them: status, logs, cancel.

Four stories, played at once: most of the time of each is waiting.
"""

import itertools
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from rlsweep.recipe.budget import Budget
from rlsweep.store import ledger
from rlsweep.store.jobs import job_name, read_submission, write_submission

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(900)]

Stage = Any
Story = Callable[[Callable[..., Stage]], None]
NEVER_DONE = Budget(steps=50_000)


def status(stage: Stage, code: int = 0) -> list[dict[str, Any]]:
    """What `rlsweep status` says of each run."""
    found = json.loads(stage.rlsweep("status", "--json", code=code))
    assert [run["index"] for run in found["runs"]] == list(range(len(found["runs"])))
    return list(found["runs"])


def command(stage: Stage, *arguments: str) -> "subprocess.Popen[str]":
    """A command that goes on."""
    line = [sys.executable, "-u", "-m", "rlsweep", *arguments, "--root", str(stage.root.path)]
    return subprocess.Popen(line, env=stage.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def an_array_is_cancelled_run_by_run(make_stage: Callable[..., Stage]) -> None:
    """Of four elements two run at a time: one that waits, one at work, then all that are left."""
    stage = make_stage("annulés un à un", budget=NEVER_DONE)
    try:
        stage.ablate("--seeds", "4", limits__parallel=2, exclude="n3,n4")
        array = stage.submission.job.partition("_")[0]

        def states() -> list[str]:
            return [stage.state(f"{array}_{number}") for number in range(4)]

        stage.until("two run", lambda: states() == ["RUNNING", "RUNNING", "PENDING", "PENDING"])
        runs = status(stage)
        assert [run["state"] for run in runs] == ["running", "running", "pending", "pending"]
        assert runs[2]["job"] == f"{array}_2" and "so many run at a time as asked for" in runs[2]["reason"]
        said = stage.rlsweep("cancel", "3")
        assert said.startswith(f"{runs[3]['run_key']} was waiting (job {array}_3): taken out of the queue; begins at ")
        assert states()[:3] == ["RUNNING", "RUNNING", "PENDING"] and states()[3] in ("CANCELLED", "")
        stage.until_at_work()
        said = stage.rlsweep("cancel", "seed=0")
        assert f"{stage.key} was running (job {array}_0): ended; goes on from step {stage.saved()} when" in said
        assert stage.saved() >= 15 and stage.count() == 1
        ended = stage.outcome()
        assert ended is not None and (ended.state, ended.attempt) == ("interrupted", 1)
        stage.until("the next one starts", lambda: states()[2] == "RUNNING")
        assert states()[0] == "CANCELLED"
        runs = status(stage)
        assert [run["state"] for run in runs[:3]] == ["interrupted", "running", "running"]
        assert stage.rlsweep("status", "--check", code=3)
        said = stage.rlsweep("cancel", "--sweep", stage.submission.sweep)
        assert said.count(" was running (job ") == 2 == said.count("ended; ") and said.count(" is not running (") == 2
        assert {"RUNNING", "PENDING"}.isdisjoint(states()) and stage.count() == 1
        assert {"running", "pending"}.isdisjoint(run["state"] for run in status(stage))
    finally:
        subprocess.run(["scancel", stage.submission.job.partition("_")[0]], env=stage.environment, check=False)


def a_held_job_is_released_as_told(make_stage: Callable[..., Stage]) -> None:
    """Meanwhile one person follows its log and another watches its status: both commands end when the run does."""
    stage = make_stage("retenu")
    stage.ablate(exclude="n1,n2")
    stage.until_at_work()
    following, watching = command(stage, "logs", "0", "--follow"), command(stage, "status", "--watch")
    try:
        job = stage.submission.job
        stage.slurm.run("scontrol", "requeuehold", job)
        stage.until_settled("interrupted", 1)
        stage.until("it is held", lambda: status(stage)[0]["release"] is not None)
        (run,) = status(stage)
        assert (run["state"], run["step"], run["attempt"]) == ("pending", stage.step(), 1)
        assert run["release"] == f"scontrol release {job}" and "held" in run["reason"]
        assert f"held jobs start after: {run['release']}" in stage.rlsweep("status")
        assert stage.rlsweep("status", "--check", code=1)
        subprocess.run(shlex.split(run["release"]), env=stage.environment, check=True)
        stage.until_finished(2)
        printed, notes = following.communicate(timeout=200)
        assert following.returncode == 0, notes
        assert printed.count("from step") == 2 and "attempt 2: " in notes
        rows, notes = watching.communicate(timeout=200)
        assert watching.returncode == 0, notes
        rounds = [line.split("\t") for line in rows.splitlines()]
        assert len(rounds) >= 2 and all(row[2] == stage.key for row in rounds)
        assert rounds[0][5] in ("running", "pending") and rounds[-1][5] == "finished"
        times = [datetime.fromisoformat(row[0]) for row in rounds]
        assert all((later - earlier).total_seconds() >= 29 for earlier, later in itertools.pairwise(times))
        assert stage.rlsweep("status", "--check")
        # Every step stands once on the screen of who followed: attempt 2 went on from where attempt 1 had saved.
        assert stage.rlsweep("logs", "0", "--attempt", "1") and stage.rlsweep("logs", "0").count("from step") == 1
    finally:
        for each in (following, watching):
            each.kill()
            each.wait()


def a_setup_line_fails_and_an_id_is_used_again(make_stage: Callable[..., Stage]) -> None:
    """`logs` shows what Slurm wrote; then the id that the run's folder names becomes somebody else's."""
    stage = make_stage("sans départ")
    setup = json.dumps(["echo 'module: no such thing: cuda/99' >&2; false"])
    stage.ablate(setup=setup, exclude="n1,n2")
    stage.until("it fails", lambda: stage.state() == "FAILED")
    (run,) = status(stage)
    assert run["state"] == "failed" and "setup line 1 failed" in run["reason"] and run["attempt"] is None
    said = stage.rlsweep("logs", "0")
    assert "module: no such thing: cuda/99\nrlsweep: setup line 1 failed: " in said
    assert f"job {stage.submission.job} has made no attempt; what Slurm wrote about it:" in said
    told = json.loads(stage.rlsweep("logs", "0", "--json"))
    assert told["attempt"] is None and told["lines"][0] == "module: no such thing: cuda/99"
    assert stage.rlsweep("status", "--check", code=3)

    line = ["sbatch", "--parsable", "--job-name=their training", "--output=/dev/null", "--wrap=sleep 600"]
    theirs = stage.slurm.run(*line, "--exclude=n1,n2").strip()
    try:
        stage.until("it runs", lambda: stage.state(theirs) == "RUNNING")
        submission = read_submission(stage.run)
        assert submission is not None
        write_submission(stage.run, replace(submission, job=theirs))
        assert stage.rlsweep("cancel", "0").startswith(f"{stage.key} is not running (")
        assert stage.state(theirs) == "RUNNING"
    finally:
        subprocess.run(["scancel", theirs], env=stage.environment, check=False)


def what_no_run_of_the_sweep_knows_of_is_seen_and_ended(make_stage: Callable[..., Stage]) -> None:
    """A run at work that another of its name replaces, and a held array that a submitter left which was killed."""
    stage = make_stage("remplacé", budget=NEVER_DONE)
    held = ""
    try:
        stage.ablate(exclude="n3,n4")
        submission = stage.submission
        stage.until("it runs", lambda: stage.state() == "RUNNING")
        stage.ablate("--set", "optimizer.lr=0.123", exclude="n3,n4")
        sweep, token = stage.root.sweep(submission.sweep), "c" * 10
        row = {"kind": "submitting", "time": 1.0, "token": token, "cluster": "test", "runs": [stage.key]}
        ledger.append(sweep, [row])
        name = job_name(sweep.name, token)
        line = ["sbatch", "--parsable", "--hold", "--array=0-1", f"--job-name={name}", "--output=/dev/null"]
        held = stage.slurm.run(*line, "--wrap=true").strip()
        found = json.loads(stage.rlsweep("status", "--json"))
        assert [run["index"] for run in found["runs"]] == [0, None] and found["cut_short"] == [held]
        new, old = found["runs"]
        assert (old["run_key"], old["state"], old["job"]) == (stage.key, "running", submission.job)
        assert f"a submission was cut short, 1 job on hold ({held}): " in stage.rlsweep("status")
        said = stage.rlsweep("cancel", "--sweep", sweep.name)
        assert "1 job of a submission that was cut short taken out of the queue" in said
        assert f"{stage.key} was running (job {submission.job}): ended" in said and new["run_key"] in said
        assert {stage.state(f"{held}_0"), stage.state(submission.job), stage.state(new["job"])} <= {"CANCELLED", ""}
        found = json.loads(stage.rlsweep("status", "--json"))
        assert [run["index"] for run in found["runs"]] == [0] and found["cut_short"] == []
    finally:
        stage.slurm._try("scancel", *filter(None, [held, stage.submission.job]))


STORIES: tuple[Story, ...] = (
    a_held_job_is_released_as_told,
    an_array_is_cancelled_run_by_run,
    a_setup_line_fails_and_an_id_is_used_again,
    what_no_run_of_the_sweep_knows_of_is_seen_and_ended,
)


@pytest.fixture(scope="module")
def played(make_stage: Callable[..., Stage]) -> Iterator[dict[str, "Future[None]"]]:
    """All stories, begun."""
    only = os.environ.get("RLSWEEP_TEST_STORIES")
    with ThreadPoolExecutor(len(STORIES)) as pool:
        yield {
            tell.__name__: pool.submit(tell, make_stage)
            for tell in STORIES
            if not only or tell.__name__ in only.split(",")
        }


@pytest.mark.parametrize("name", [tell.__name__ for tell in STORIES])
def test_people_see_and_do(played: dict[str, "Future[None]"], name: str) -> None:
    played[name].result()

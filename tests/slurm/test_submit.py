"""Submitting to the real scheduler: what it gets, what it refuses, and a submitter killed between any two steps."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlsweep.recipe.budget import Budget
from rlsweep.recipe.evaluation import Evaluation
from rlsweep.store import attempts, ledger, outcome
from rlsweep.store.jobs import Submission, read_submission
from rlsweep.store.layout import RunFolder

pytestmark = pytest.mark.slurm

Stage = Any

POINTS = {
    # Where the submitter is killed -> code that has it killed there, how many runs, of what array size, and whether the
    # runs are let train to the end: of the others it is enough that each has one job, which may start.
    "before anything is in the ledger": ("at(ledger, 'append', 0, kind('submitting'))", 1, 10, False),
    "before sbatch": ("at(ledger, 'append', 1, kind('submitting'))", 1, 10, False),
    "before sbatch has answered": ("at(scheduler, 'call', 1, sbatch)", 1, 10, True),
    "between two pickles": ("at(JobPaths, 'move_temporary_file', 1, nth(1))", 2, 10, False),
    "before the runs know their job": ("at(slurm, 'write_submission', 0, nth(1))", 1, 10, False),
    "between two runs": ("at(slurm, 'write_submission', 1, nth(1))", 2, 10, True),
    "before the job is in the ledger": ("at(ledger, 'append', 0, kind('submitted'))", 1, 10, False),
    "between two jobs": ("at(ledger, 'append', 1, kind('submitted'))", 2, 1, True),
    "with the second job unknown": ("at(scheduler, 'call', 1, nth(2, sbatch))", 2, 1, False),
    "before the release": ("at(scheduler, 'call', 0, lambda words, **_: words[1] == 'release')", 1, 10, True),
    "before the release is in the ledger": ("at(ledger, 'append', 0, kind('released'))", 1, 10, False),
}
KILLED = """
import os, signal
from itertools import count
from submitit.core.utils import JobPaths
from rlsweep.launch import scheduler, slurm
from rlsweep.store import ledger
from rlsweep.cli import main

def at(owner, name, when, wanted):
    real = getattr(owner, name)
    def call(*given, **named):
        hit = wanted(*given, **named)
        if hit and when == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = real(*given, **named)
        if hit:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer
    setattr(owner, name, call)

def sbatch(words, **_):
    return words[0] == "sbatch"

def kind(word):
    return lambda folder, rows: bool(rows) and rows[0]["kind"] == word

def nth(number, wanted=lambda *given, **named: True):
    numbers = count(1)
    return lambda *given, **named: wanted(*given, **named) and next(numbers) == number
"""
LINE = [sys.executable, "-c", "from rlsweep.cli import main\nmain(prog_name='rlsweep')"]


@pytest.fixture
def stage(make_stage: Callable[..., Stage], request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A root for runs of two steps. Its jobs are taken out of the queue at the end."""
    name = request.node.name.replace("[", " ").replace("]", "")
    made = make_stage(name, budget=Budget(steps=2), evaluation=Evaluation(every=2, prompts=4, samples=2))
    yield made
    ids = {each.job for folder in made.root.all_sweeps() for each in ledger.submissions(folder) if each.job}
    if ids:
        subprocess.run(["scancel", *ids], env=made.environment, check=False)


def ablate(stage: Stage, *arguments: str, code: int = 0, **variables: str) -> str:
    """Submit to the test cluster, with these environment variables."""
    line = [*LINE, "ablate", str(stage.recipe), "--cluster", "test", "--root", str(stage.root.path), *arguments]
    done = subprocess.run(line, env={**stage.environment, **variables}, capture_output=True, text=True)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stderr


def squeue(stage: Stage, form: str, *more: str) -> list[str]:
    return str(stage.slurm.run("squeue", "--noheader", "--array", f"--format={form}", *more)).splitlines()


def submission(run: RunFolder) -> Submission:
    found = read_submission(run)
    assert found is not None
    return found


def runs(stage: Stage, sweep: str) -> list[RunFolder]:
    return [stage.root.run(intent.run_key) for intent in ledger.wanted(stage.root.sweep(sweep))]


def test_a_submitter_killed_between_any_two_steps_neither_loses_nor_doubles_a_run(stage: Stage) -> None:
    commands = {}
    for place, (point, (code, number, array, _)) in enumerate(POINTS.items()):
        seeds = "".join(f"{10 * place + each}," for each in range(1, number + 1))
        commands[point] = (
            *("ablate", str(stage.recipe), "--cluster", "test", "--root", str(stage.root.path)),
            *("--name", f"p{place}", "--seeds", seeds, "--cluster-set", f"limits.array={array}"),
        )
        line = [sys.executable, "-c", f"{KILLED}{code}\nmain(prog_name='rlsweep')", *commands[point]]
        killed = subprocess.run(line, env=stage.environment, capture_output=True, text=True)
        assert killed.returncode == -signal.SIGKILL, (point, killed.returncode, killed.stdout, killed.stderr)
    for place, (point, (_, number, _, train)) in enumerate(POINTS.items()):
        again = subprocess.run([*LINE, *commands[point]], env=stage.environment, capture_output=True, text=True)
        assert again.returncode == 0, (point, again.stderr)
        found = runs(stage, f"p{place}")
        assert len(found) == number
        jobs = [line.split() for line in squeue(stage, "%i %T %r %j", "--states=all") if f"rlsweep:p{place}:" in line]
        live = {id for id, state, reason, _ in jobs if state != "CANCELLED" and "Held" not in reason}
        assert live == {submission(run).job for run in found}, (point, jobs)
        assert all(state == "CANCELLED" for id, state, _, _ in jobs if id not in live), (point, jobs)
        if not train:
            stage.slurm.run("scancel", *live)
    for place, (point, (_, _, _, train)) in enumerate(POINTS.items()):
        for run in runs(stage, f"p{place}") if train else []:
            stage.until(
                f"{point}: finished", lambda run=run: (ended := outcome.read(run)) and ended.state == "finished"
            )
            stage.until(f"{point}: over", lambda run=run: stage.state(submission(run).job) == "COMPLETED")
            assert [each.number for each in attempts.every(run)] == [1]
        if train:  # and there is nothing left to do
            idle = subprocess.run([*LINE, *commands[point]], env=stage.environment, capture_output=True, text=True)
            assert f"sweep p{place}: 0 submitted, " in idle.stderr, (point, idle.stderr)


def test_the_preview_is_what_sbatch_gets_byte_for_byte_in_chunks_under_max_array_size(
    stage: Stage, tmp_path: Path
) -> None:
    asked = ("--name", "s", "--seeds", "11", "--cluster-set", "limits.parallel=3")
    emitted = tmp_path / "à voir"
    line = [*LINE, "plan", str(stage.recipe), "--cluster", "test", "--root", str(stage.root.path), *asked]
    done = subprocess.run([*line, "--emit", str(emitted)], env=stage.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not stage.root.sweeps.exists()
    told = ablate(stage, *asked)
    found = runs(stage, "s")
    jobs = [each.job for each in ledger.submissions(stage.root.sweep("s"))]
    assert len(jobs) == 2 and f"11 submitted as jobs {jobs[0]}, {jobs[1]}" in told and "next: rlsweep status s" in told
    assert sorted(submission(run).job for run in found) == sorted(
        [*(f"{jobs[0]}_{number}" for number in range(10)), str(jobs[1])]
    )
    names = set(squeue(stage, "%i", f"--jobs={','.join(map(str, jobs))}", "--states=all"))
    assert names == {submission(run).job for run in found}
    shown = [path.read_bytes() for path in sorted(emitted.iterdir())]
    taken = [next(stage.root.path.glob(f"sweeps/s/jobs/*/{job}_submission.sh")) for job in jobs]
    assert shown == [path.read_bytes() for path in taken]
    # What the scheduler keeps is what lies there.
    assert stage.slurm.run("scontrol", "write", "batch_script", str(jobs[1]), "-").strip() == shown[1].decode().strip()
    assert b"#SBATCH --array=0-9%2\n" in shown[0] and b"--array" not in shown[1]


def test_with_more_jobs_than_runs_at_a_time_jobs_follow_each_other(stage: Stage) -> None:
    ablate(
        stage, "--name", "s", "--seeds", "3", "--cluster-set", "limits.parallel=1", "--cluster-set", "limits.array=1"
    )
    jobs = [str(each.job) for each in ledger.submissions(stage.root.sweep("s"))]
    following = {each.split()[0]: each.split()[1] for each in squeue(stage, "%i %E", f"--jobs={','.join(jobs)}")}
    assert len(jobs) == 3
    assert following[jobs[1]].startswith(f"afterany:{jobs[0]}") and following[jobs[2]].startswith(f"afterany:{jobs[1]}")


def test_options_in_the_environment_and_a_job_around_the_command_do_not_win(stage: Stage) -> None:
    around = {"SBATCH_PARTITION": "nonsense", "SBATCH_QOS": "none", "SLURM_JOB_ID": "1", "SLURM_NTASKS": "7"}
    ablate(stage, "--name", "s", **around, SBATCH_TIMELIMIT="1", SUBMITIT_PREEMPT_SIGNAL="USR1", RANK="3")
    run = runs(stage, "s")[0]
    shown = squeue(stage, "%P %l", f"--jobs={submission(run).job}", "--states=all")
    assert [each.split() for each in shown] == [["main", "10:00"]]
    stage.until("finished", lambda: outcome.read(run))
    ended = outcome.read(run)
    assert ended is not None and ended.state == "finished"


def test_what_cannot_be_is_refused_in_one_message_and_leaves_nothing(stage: Stage) -> None:
    told = ablate(stage, "--name", "s", "--cluster-set", "partition=nowhere", code=2)
    assert "doesn't fit this site: partition: no partition nowhere; valid: main" in told
    assert not stage.root.sweeps.exists()
    told = ablate(stage, "--name", "s", "--cluster-set", "constraint=gold", code=2)
    assert "sbatch refused: " in told and "Invalid feature specification" in told
    assert "not submitted: 1 of 1 runs; mend the profile and run the same command again" in told
    assert list(stage.root.path.glob("sweeps/s/jobs/*")) == [] and squeue(stage, "%j", "--name=rlsweep:s") == []
    assert "1 submitted" in ablate(stage, "--name", "s")


def test_a_job_that_sbatch_gave_no_answer_about_is_submitted_once(stage: Stage, tmp_path: Path) -> None:
    """The real sbatch hands the job over; what it said is lost once."""
    fake = tmp_path / "sbatch"
    lost = "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2"
    real = shutil.which("sbatch")
    fake.write_text(
        f'#!/bin/sh\n[ -e "$0.used" ] && exec {real} "$@"\n{real} "$@" && : > "$0.used" && {lost}; exit 1\n'
    )
    fake.chmod(0o755)
    told = ablate(stage, "--name", "s", "--seeds", "2", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert "looking for it and trying once more" in told and "2 submitted as job " in told
    handed = ledger.submissions(stage.root.sweep("s"))
    assert [each.state for each in handed] == ["submitting", "released"]
    states = {
        each.split()[0]: each.split()[1] for each in squeue(stage, "%j %T", "--states=all") if "rlsweep:s:" in each
    }
    assert states[f"rlsweep:s:{handed[0].token}"] == "CANCELLED"
    assert states[f"rlsweep:s:{handed[1].token}"] in ("PENDING", "RUNNING", "CONFIGURING")
    assert {submission(run).token for run in runs(stage, "s")} == {handed[1].token}


def test_a_controller_that_cannot_be_reached_costs_nothing(stage: Stage, tmp_path: Path) -> None:
    """A configuration with a port on which nobody listens."""
    conf = Path(os.environ["SLURM_CONF"]).read_text()
    nowhere = [line for line in conf.splitlines() if not line.startswith(("SlurmctldPort", "MessageTimeout"))]
    (tmp_path / "slurm.conf").write_text("\n".join([*nowhere, "SlurmctldPort=1", "MessageTimeout=2"]))
    told = ablate(stage, "--name", "s", code=4, SLURM_CONF=str(tmp_path / "slurm.conf"))
    assert "the scheduler can't be reached: " in told and "run the same command again" in told
    assert not stage.root.sweeps.exists()


def test_a_dropped_run_is_cancelled_only_where_asked_for(stage: Stage) -> None:
    ablate(stage, "--name", "s", "--seeds", "1,2", "--set", "budget.steps=100000")
    first, second = runs(stage, "s")
    told = ablate(stage, "--name", "s", "--seeds", "1,", "--set", "budget.steps=100000")
    assert "no longer asked for, left as they are: " in told and "0 submitted, 1 left as they are" in told
    told = ablate(stage, "--name", "s", "--seeds", "1,", "--set", "budget.steps=100000", "--prune")
    assert "1 cancelled, no longer asked for" in told
    stage.until("cancelled", lambda: stage.state(submission(second).job) == "CANCELLED")
    assert stage.state(submission(first).job) in ("PENDING", "RUNNING")


def test_a_run_that_another_one_has_replaced_is_cancelled_where_asked_for(stage: Stage) -> None:
    asked = ("--name", "s", "--set", "budget.steps=100000")
    ablate(stage, *asked)
    before = runs(stage, "s")[0]
    told = ablate(stage, *asked, "--set", "optimizer.lr=0.003")
    assert f"no longer asked for, left as they are: {before.key} " in told and "1 submitted" in told
    assert stage.state(submission(before).job) in ("PENDING", "RUNNING")
    assert "1 cancelled, no longer asked for" in ablate(stage, *asked, "--set", "optimizer.lr=0.003", "--prune")
    stage.until("cancelled", lambda: stage.state(submission(before).job) == "CANCELLED")
    assert "no longer asked for" not in ablate(stage, *asked, "--set", "optimizer.lr=0.003")
    assert stage.state(submission(runs(stage, "s")[0]).job) in ("PENDING", "RUNNING")


def test_new_runs_follow_those_left_where_no_more_may_be_at_work(stage: Stage) -> None:
    asked = ("--name", "s", "--set", "budget.steps=100000", "--cluster-set", "limits.parallel=1")
    ablate(stage, *asked, "--seeds", "2")
    ablate(stage, *asked, "--seeds", "3")
    first, second = (str(each.job) for each in ledger.submissions(stage.root.sweep("s")))
    waits = squeue(stage, "%E", f"--jobs={second}")
    assert len(waits) == 1 and waits[0].startswith(f"afterany:{first}")
    stage.slurm.run("scancel", first)
    stage.until("its turn has come", lambda: squeue(stage, "%E", f"--jobs={second}") == ["(null)"])

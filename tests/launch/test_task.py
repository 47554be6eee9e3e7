"""What runs in a job: submitit's own process around `Train`, the fake trainer, and a scheduler that is a script."""

import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from submitit.core.utils import DelayedSubmission

from rlsweep.errors import RlsweepError
from rlsweep.launch import ranks, task
from rlsweep.launch.ranks import Place, find_lead, meeting_point
from rlsweep.launch.task import Train
from rlsweep.recipe.resolved import dump
from rlsweep.store import attempts, ledger, outcome
from rlsweep.store.attempts import Attempt
from rlsweep.store.files import read_json, write_json
from rlsweep.store.jobs import AttemptJob, Submission, read_attempt_job, write_attempt_job, write_submission
from rlsweep.store.layout import Root, RunFolder
from rlsweep.store.outcome import Outcome
from rlsweep.sweep.expand import expand

TOKEN = "0123456789"
FAKE = Path(__file__).with_name("fake_trainer.py")
RANK = str(Path(__file__).with_name("fake_rank.py"))
TASK = """
import os, sys
from rlsweep.launch import child, lead
child.TRAINER = (sys.executable, os.environ["FAKE_TRAINER"])
lead._BEAT_S = 0.5
from submitit.core.submission import submitit_main
submitit_main()
"""
SCHEDULER = """#!/bin/sh
echo "$(basename "$0") $*" >>"$FAKE_SLURM/calls"
[ -e "$FAKE_SLURM/silent" ] && [ "$(basename "$0")" = squeue ] && sleep 60
[ "$(basename "$0")" = squeue ] && { cat "$FAKE_SLURM/state"; exit 0; }
[ -e "$FAKE_SLURM/fails" ] && { rm "$FAKE_SLURM/fails"; echo "scontrol: error: $FAKE_WORDS" >&2; exit 1; }
exit 0
"""


class Job:
    """A job of a run with the key of the smallest sweep; `root` may hold words for the fake trainer."""

    def __init__(self, root: Root, slurm: Path, id: str = "12_3"):
        self.root = root
        self.slurm = slurm
        self.id = id
        self.folder = root.path / "jobs"
        recipe = expand("scalerl", scale="tiny", overrides=["budget.steps=6"], name="s").runs[0]
        self.run = root.run(recipe.key)
        self.run.path.mkdir(parents=True)
        self.run.recipe.write_text(dump(recipe.recipe))
        self.submit()

    def submit(self, token: str = TOKEN, retries: int = 20, notice_s: int = 40, minutes: int = 10) -> None:
        """Hand the run to this job."""
        submission = Submission(token, "s", "test", self.id, time.time(), 1, 1, minutes, retries, "none", notice_s)
        write_submission(self.run, submission)
        delayed = DelayedSubmission(Train(str(self.run.path), token))
        delayed.set_timeout(10, 10**6)
        self.folder.mkdir(exist_ok=True)
        delayed.dump(self.folder / f"{self.id}_submitted.pkl")

    def start(self, restart: int = 0, rank: int = 0, world: int = 1, **variables: str) -> subprocess.Popen[str]:
        """The process of a task."""
        main, _, element = self.id.partition("_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
        environment = {
            **kept,
            "FAKE_TRAINER": str(FAKE),
            "FAKE_SLURM": str(self.slurm),
            "FAKE_WORDS": "Job/step already completing or completed",
            "PATH": f"{self.slurm / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "SUBMITIT_EXECUTOR": "slurm",
            "SLURM_JOB_ID": "15",
            "SLURM_ARRAY_JOB_ID": main,
            "SLURM_ARRAY_TASK_ID": element,
            "SLURM_JOB_NODELIST": f"n[1-{world}]" if world > 1 else "n1",
            "SLURM_PROCID": str(rank),
            "SLURM_NTASKS": str(world),
            **({"SLURM_RESTART_COUNT": str(restart)} if restart else {}),
            **variables,
        }
        line = [sys.executable, "-c", TASK, str(self.folder)]
        return subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def play(self, restart: int = 0, **variables: str) -> tuple[int, str]:
        """Exit code of a task that nobody disturbs, and what it printed."""
        return finish(self.start(restart, **variables))

    def until_at_work(self, number: int = 1, step: int = 2) -> None:
        """Until the trainer of an attempt waits after a step, which it has saved."""
        until(lambda: f'"step": {step}' in read(self.run.journal) and self.attempt(number).launcher.exists())
        until(lambda: (self.run.checkpoints / f"step-{step:06d}").exists())
        until(lambda: f"attempt {number} of" in read(self.attempt(number).log))
        until(lambda: read_json(self.attempt(number).process)["pid"] != read_json(self.attempt(number).launcher)["pid"])

    def trainer(self, number: int = 1) -> int:
        return int(read_json(self.attempt(number).process)["pid"])

    def attempt(self, number: int) -> Attempt:
        return Attempt(self.run, number)

    def count(self) -> int:
        newest = attempts.newest(self.run)
        return newest.number if newest else 0

    def outcome(self) -> Outcome:
        found = outcome.read(self.run)
        assert found is not None
        return found

    def ended(self, number: int) -> bool:
        job = read_attempt_job(self.attempt(number))
        return job is not None and job.ended is not None

    def calls(self) -> list[str]:
        return read(self.slurm / "calls").splitlines()


@pytest.fixture
def slurm(tmp_path: Path) -> Path:
    """A scheduler for which the job runs, whose commands are noted in `calls`."""
    folder = tmp_path / "slurm"
    (folder / "bin").mkdir(parents=True)
    for name in ("squeue", "scontrol"):
        (folder / "bin" / name).write_text(SCHEDULER)
        (folder / "bin" / name).chmod(0o755)
    (folder / "state").write_text("RUNNING\n")
    return folder


@pytest.fixture
def job(tmp_path: Path, slurm: Path) -> Iterator[Job]:
    made = Job(Root(tmp_path / "dossier à moi"), slurm)
    yield made
    (made.run.path / "go").touch()  # whatever a failed test left waiting


@pytest.fixture
def behave(job: Job) -> Callable[[str], None]:
    """Tell the fake trainer how to behave."""
    return lambda text: (job.root.path / "behaviour").write_text(text) and None


REQUEUE = "scontrol requeue 12_3"
SQUEUE = "squeue --noheader --jobs=12_3 --format=%T"


# -- ends


def test_a_run_that_finishes_completes_its_job(job: Job) -> None:
    code, said = job.play()
    assert code == 0 and f"run {job.run.key} finished at step 6: budget reached" in said
    found = read_attempt_job(job.attempt(1))
    assert found is not None and found.ended is not None and found.ended > found.started
    assert (found.token, found.job, found.restart, found.nodes, found.devices) == (TOKEN, "12_3", 0, ["n1"], 1)
    result = pickle.loads((job.folder / "12_3_0_result.pkl").read_bytes())
    assert result[0] == "success" and job.calls() == []


def test_a_run_that_diverges_completes_its_job(job: Job, behave: Callable[[str], None]) -> None:
    behave("* diverges")
    code, said = job.play()
    assert code == 0 and "diverged at step 3: loss is not finite" in said and job.calls() == []
    code, said = job.play(restart=1)
    assert code == 0 and "would again" in said and job.count() == 1


def test_a_run_that_fails_fails_its_job_in_one_line(job: Job, behave: Callable[[str], None]) -> None:
    behave("* crash")
    code, said = job.play()
    assert code == 1 and "Traceback" not in said
    line = f"run {job.run.key} failed in attempt 1 at step 0: exit code 1: ValueError: no such thing; see: rlsweep logs"
    assert line in said
    assert job.outcome().state == "failed" and job.ended(1) and job.calls() == []


def test_a_failed_run_is_not_tried_again_by_its_job_but_by_another(job: Job, behave: Callable[[str], None]) -> None:
    behave("* crash 1")
    job.play()
    code, said = job.play(restart=1)
    assert code == 1 and "failed in attempt 1" in said and job.count() == 1
    job.submit(token="another000")
    code, _ = job.play()
    assert code == 0 and job.count() == 2 and job.outcome().state == "finished"


@pytest.mark.parametrize("given", ["another", "none"])
def test_a_job_that_the_run_is_not_handed_to_any_more_ends_at_once(job: Job, given: str) -> None:
    delayed = (job.folder / "12_3_submitted.pkl").read_bytes()
    job.submit(token="another000")
    (job.folder / "12_3_submitted.pkl").write_bytes(delayed)
    if given == "none":
        job.run.submission.unlink()
    code, said = job.play()
    assert code == 0 and "was handed to" in said and job.count() == 0


def test_a_finished_run_is_left_alone(job: Job) -> None:
    job.play()
    code, said = job.play(restart=1)
    assert code == 0 and "is finished at step 6" in said and job.count() == 1


def test_damage_is_told_in_one_line(job: Job) -> None:
    job.run.submission.write_text("{")
    code, said = job.play()
    assert code == 1 and "submission.json: not valid JSON" in said and "Traceback" not in said


# -- notice


def test_on_notice_it_waits_for_the_trainer_and_then_requeues(job: Job, behave: Callable[[str], None]) -> None:
    behave("* slow 1")
    process = job.start()
    job.until_at_work()
    for _ in range(3):  # one is for each process of the step, and more may come
        process.send_signal(signal.SIGUSR2)
    code, said = finish(process)
    assert code == 255 and "Bypassing" not in said
    assert job.calls() == [SQUEUE, REQUEUE]
    assert (job.outcome().state, job.outcome().reason) == ("interrupted", "asked to stop")
    assert job.ended(1) and not list(job.folder.glob("*.save_tmp"))
    code, said = job.play(restart=1)
    assert code == 0 and job.count() == 2 and job.outcome().state == "finished"


def test_a_trainer_that_does_not_save_in_time_is_killed(job: Job, behave: Callable[[str], None]) -> None:
    behave("* slow\n* deaf")
    job.submit(notice_s=4)
    process = job.start()
    job.until_at_work()
    process.send_signal(signal.SIGUSR2)
    code, _ = finish(process)
    assert code == 255 and job.calls() == [SQUEUE, REQUEUE]
    assert job.outcome().reason == "killed, as it had not saved within 3 s; goes on from step 2"
    # That was no death of its own: the next one is not the second in a row.
    behave("* killed 2")
    code, _ = job.play(restart=1)
    assert code == 75 and job.outcome().state == "interrupted"


def test_a_trainer_that_is_done_when_notice_comes_is_not_tried_again(job: Job, behave: Callable[[str], None]) -> None:
    behave("* slow\n* deaf")
    process = job.start()
    job.until_at_work()
    process.send_signal(signal.SIGUSR2)
    until(lambda: "wants the node back" in read(job.attempt(1).log))
    (job.run.path / "go").touch()
    code, said = finish(process)
    assert code == 0 and "finished at step 6" in said and job.calls() == []


def test_where_the_requeue_fails_it_is_tried_again_unless_slurm_has_taken_the_job_back(
    job: Job, behave: Callable[[str], None]
) -> None:
    behave("* slow")
    (job.slurm / "fails").touch()
    process = job.start()
    job.until_at_work()
    process.send_signal(signal.SIGUSR2)
    code, _ = finish(process)
    assert code == 75 and job.calls() == [SQUEUE, REQUEUE, SQUEUE, REQUEUE]

    (job.slurm / "calls").unlink()
    (job.slurm / "state").write_text("PENDING\n")
    process = job.start(restart=1)
    job.until_at_work(2)
    process.send_signal(signal.SIGUSR2)
    code, _ = finish(process)
    assert code == 0 and job.calls() == [SQUEUE]


@pytest.mark.parametrize("state", ["COMPLETING\n", "CANCELLED\n", ""])
def test_what_is_cancelled_while_the_trainer_saves_is_not_revived(
    job: Job, behave: Callable[[str], None], state: str
) -> None:
    """By plain scancel, which leaves no mark: Slurm would take the requeue, and the job would be back."""
    behave("* slow\n* deaf")
    process = job.start()
    job.until_at_work()
    process.send_signal(signal.SIGUSR2)
    until(lambda: "wants the node back" in read(job.attempt(1).log))
    (job.slurm / "state").write_text(state)
    os.kill(job.trainer(), signal.SIGKILL)
    code, said = finish(process)
    assert code == 0 and f"Slurm has ended job 12_3 ({state.strip() or 'gone'})" in said
    assert job.calls() == [SQUEUE] and job.outcome().state == "interrupted"


def test_where_the_scheduler_is_silent_it_requeues_before_the_notice_is_over(
    job: Job, behave: Callable[[str], None]
) -> None:
    behave("* slow 1")
    job.submit(notice_s=8)
    (job.slurm / "silent").touch()
    process = job.start()
    job.until_at_work()
    process.send_signal(signal.SIGUSR2)
    code, said = finish(process)
    assert code == 255 and "the scheduler can't be reached" in said
    assert job.calls()[0] == SQUEUE and job.calls()[-1] == REQUEUE


def test_without_scontrol_on_the_node_it_says_so(job: Job, behave: Callable[[str], None]) -> None:
    behave("* stops")
    shutil.rmtree(job.slurm / "bin")
    code, said = job.play(PATH="")
    why = "preempted; not queued again: there is no squeue on node n1"
    assert code == 0 and job.outcome() == Outcome("interrupted", 0, why, 1)
    assert "there is no squeue on node n1" in said and "there is no squeue on node n1" in read(job.attempt(1).log)


def test_what_submitit_left_half_written_does_not_keep_it_from_requeueing(
    job: Job, behave: Callable[[str], None]
) -> None:
    behave("* slow")
    (job.folder / "12_3_submitted.pkl.save_tmp").write_text("half")
    (job.folder / "12_4_submitted.pkl.save_tmp").write_text("another job's")
    process = job.start()
    job.until_at_work()
    process.send_signal(signal.SIGUSR2)
    code, _ = finish(process)
    assert code == 255 and job.calls() == [SQUEUE, REQUEUE]
    assert [path.name for path in job.folder.glob("*.save_tmp")] == ["12_4_submitted.pkl.save_tmp"]


# -- stopped by somebody else, and killed


def test_where_the_trainer_stops_unasked_it_requeues_if_the_job_only_runs(
    job: Job, behave: Callable[[str], None]
) -> None:
    behave("* stops 1\n* stops 2\n* stops 3")
    assert job.play()[0] == 75
    assert job.calls() == [SQUEUE, REQUEUE]
    for restart, state in ((1, "COMPLETING\n"), (2, "")):
        job.submit(token=f"another-{restart}")
        (job.slurm / "state").write_text(state)
        code, said = job.play(restart)
        assert code == 0 and "Slurm has ended job 12_3" in said
    assert job.calls() == [SQUEUE, REQUEUE, SQUEUE, SQUEUE]
    assert job.outcome().reason == "preempted"


def test_what_a_person_has_cancelled_is_not_revived(job: Job, behave: Callable[[str], None]) -> None:
    behave("* slow")
    process = job.start()
    job.until_at_work()
    write_json(job.attempt(1).cancelled, {"time": time.time()})
    os.kill(job.trainer(), signal.SIGTERM)
    code, said = finish(process)
    assert code == 0 and "was cancelled" in said and job.calls() == []
    code, said = job.play(restart=1)
    assert code == 0 and "was cancelled" in said and job.count() == 1
    (job.run.path / "go").touch()
    job.submit(token="another000")
    assert job.play()[0] == 0 and job.outcome().state == "finished"


def test_a_task_gives_signs_of_life(job: Job, behave: Callable[[str], None]) -> None:
    """Until which its GPU-hours count should it never say that it ended."""
    behave("* slow")
    process = job.start()
    job.until_at_work()
    os.utime(job.attempt(1).job, (1.0, 1.0))
    until(lambda: job.attempt(1).job.stat().st_mtime > 1.0)
    process.kill()
    finish(process)


def test_a_task_that_is_killed_takes_its_trainer_along(job: Job, behave: Callable[[str], None]) -> None:
    behave("* slow")
    process = job.start()
    job.until_at_work()
    process.kill()
    finish(process)
    until(lambda: not Path(f"/proc/{job.trainer()}").exists())
    assert (job.outcome().state, job.outcome().reason) == ("interrupted", "asked to stop")


def test_an_attempt_that_was_superseded_decides_nothing(job: Job, behave: Callable[[str], None]) -> None:
    behave("* slow 1")
    process = job.start()
    job.until_at_work()
    attempts.claim(job.run)
    (job.run.path / "go").touch()
    code, said = finish(process)
    assert code == 0 and "a newer one has taken the run over" in said and job.calls() == []


# -- progress


def play_until_killed(job: Job, number: int, *before: signal.Signals) -> tuple[int, str]:
    """An attempt whose task gets some signals, and whose trainer then is killed after step 2 or later."""
    process = job.start(number - 1)
    job.until_at_work(number)
    for each in before:
        process.send_signal(each)
        time.sleep(0.5)
    os.kill(job.trainer(number), signal.SIGKILL)
    return finish(process)


def test_a_trainer_that_is_killed_twice_without_a_checkpoint_in_between_has_failed(
    job: Job, behave: Callable[[str], None]
) -> None:
    behave("* killed")
    assert job.play()[0] == 75
    assert job.outcome().state == "interrupted"
    assert job.outcome().reason == "killed by SIGKILL (out of memory?); goes on from the start"
    code, said = job.play(restart=1)
    assert code == 1 and "no newer checkpoint than after attempt 1: save more often" in said
    assert job.outcome().state == "failed" and job.calls() == [SQUEUE, REQUEUE]


def test_a_trainer_that_is_killed_again_after_a_checkpoint_is_tried_again(
    job: Job, behave: Callable[[str], None]
) -> None:
    behave("* slow")
    for number in (1, 2):
        assert play_until_killed(job, number)[0] == 75
        assert job.outcome().reason == "killed by SIGKILL (out of memory?); goes on from step 2"
        found = read_attempt_job(job.attempt(number))
        assert found is not None and found.saved == 2
        write_attempt_job(job.attempt(number), replace(found, saved=0))  # as if the second attempt alone had saved


def test_a_trainer_that_stops_by_itself_without_progress_has_failed(job: Job, behave: Callable[[str], None]) -> None:
    """As one does that never meets the other ranks: each attempt would take ten minutes, for ever."""
    behave("* stops")
    assert job.play()[0] == 75
    code, _ = job.play(restart=1)
    assert code == 1 and job.outcome().state == "failed" and job.calls() == [SQUEUE, REQUEUE]
    assert job.outcome().reason.startswith("preempted; no newer checkpoint than after attempt 1: save more often")
    behave("")
    job.submit(token="another000")
    assert job.play()[0] == 0 and job.outcome().state == "finished"


def test_a_time_limit_in_which_nothing_is_saved_is_too_short(job: Job, behave: Callable[[str], None]) -> None:
    behave("* slow\n* deaf")
    job.submit(minutes=1, notice_s=4)
    for number, expected in ((1, 255), (2, 1)):
        process = job.start(number - 1)
        job.until_at_work(number)
        process.send_signal(signal.SIGUSR2)
        code, said = finish(process)
        assert code == expected
    assert "raise the profile's time (1 min) or notice_s (4 s); see: rlsweep logs" in said
    assert job.outcome().state == "failed" and job.calls() == [SQUEUE, REQUEUE]


@pytest.mark.parametrize("told", [signal.SIGUSR2, signal.SIGTERM])
def test_who_is_preempted_is_tried_again_without_progress(
    job: Job, behave: Callable[[str], None], told: signal.Signals
) -> None:
    """As often as it has retries: a preemption says nothing of the run, nor do two."""
    behave("* slow\n* deaf")
    for number in (1, 2, 3):
        code, _ = play_until_killed(job, number, told)
        assert code == (255 if told == signal.SIGUSR2 else 75)
    # One that nobody asked for comes after preemptions, and is the first of its kind.
    assert play_until_killed(job, 4)[0] == 75
    assert play_until_killed(job, 5)[0] == 1


def test_a_lost_node_says_nothing_of_the_run(job: Job, behave: Callable[[str], None]) -> None:
    behave("* killed 1\n* slow 2\n* killed 3")
    job.play()
    process = job.start(1)
    job.until_at_work(2)
    process.kill()
    os.kill(job.trainer(2), signal.SIGKILL)
    finish(process)
    shutil.rmtree(job.run.checkpoints)
    assert job.play(restart=2)[0] == 75


def test_when_slurm_ends_the_job_is_taken_from_it_where_it_says_so(job: Job, behave: Callable[[str], None]) -> None:
    """An attempt begins later than its job: a long setup counts, too."""
    behave("* slow\n* deaf")
    for number, expected in ((1, 75), (2, 1)):
        process = job.start(number - 1, SLURM_JOB_END_TIME=str(int(time.time()) + 30))
        job.until_at_work(number)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        os.kill(job.trainer(number), signal.SIGKILL)
        assert finish(process)[0] == expected


# -- bounds


def test_attempts_of_a_submission_are_bounded(job: Job, behave: Callable[[str], None]) -> None:
    """Those that make progress, too: what it may cost at most is known before it is submitted."""
    behave("* slow")
    job.submit(retries=1)
    for number, step in ((1, 2), (2, 3)):
        process = job.start(number - 1)
        job.until_at_work(number, step)
        os.kill(job.trainer(number), signal.SIGTERM)
        code, said = finish(process)
        assert code == (75 if number == 1 else 0)
    used_up = "this submission has made all its attempts (limits.retries: 1)"
    assert used_up in said and job.calls() == [SQUEUE, REQUEUE]
    assert job.outcome() == Outcome("interrupted", 4, f"asked to stop; not queued again: {used_up}", 2)
    # Slurm may queue it again all the same, after a lost node.
    code, said = job.play(restart=2)
    assert code == 0 and job.outcome() == Outcome("interrupted", 4, used_up, 3) and job.ended(3)
    behave("")
    job.submit(token="another000", retries=1)
    assert job.play()[0] == 0 and job.outcome().state == "finished"


def test_no_attempt_starts_above_the_cap_of_the_sweep(job: Job) -> None:
    """The newest one, which may be set long after the run was handed to its job."""
    cap(job, 5.0)
    cap(job, 0.0)
    code, said = job.play()
    assert code == 0 and "have used 0 GPU-hours, and --max-gpu-hours is 0" in said
    assert job.outcome().state == "interrupted" and job.ended(1) and not job.attempt(1).log.exists()
    assert not attempts.is_alive(job.attempt(1))
    cap(job, 5.0)
    assert job.play(restart=1)[0] == 0 and job.outcome().state == "finished"


def cap(job: Job, hours: float) -> None:
    """Cap the sweep, as `ablate --max-gpu-hours` does."""
    ledger.append(job.root.sweep("s"), [{"kind": "cap", "time": time.time(), "max_gpu_hours": hours}])


# -- ranks


def test_each_rank_has_its_variables_and_its_log(job: Job) -> None:
    inherited = {"PMI_SIZE": "7", "WORLD_SIZE": "9", "RANK": "3", "MASTER_PORT": "1"}
    processes = begin(job, **inherited)
    found = {}
    for pid in trainers(job.run):
        raw = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        variables = dict(each.decode().split("=", 1) for each in raw if each)
        found[variables["RANK"]] = variables
        ignored = next(line for line in read(Path(f"/proc/{pid}/status")).splitlines() if line.startswith("SigIgn"))
        assert int(ignored.split()[1], 16) >> (signal.SIGUSR2 - 1) & 1
    job_file = read_attempt_job(job.attempt(1))
    assert job_file is not None and job_file.nodes == ["n1", "n2"]
    for rank in ("0", "1"):
        assert found[rank]["WORLD_SIZE"] == "2" and "PMI_SIZE" not in found[rank]
        assert (found[rank]["LOCAL_RANK"], found[rank]["LOCAL_WORLD_SIZE"]) == ("0", "1")
        assert (found[rank]["MASTER_ADDR"], found[rank]["MASTER_PORT"]) == (job_file.address, str(job_file.port))
        (job.run.path / f"ends-{rank}").write_text("0")
    assert [code for code, _ in map(finish, processes)] == [0, 0]
    assert read(job.attempt(1).rank_log(1)) == "rank 1 of 2\n"
    assert job.count() == 1 and job.ended(1)


def test_a_rank_waits_for_the_attempt_of_its_own_start(job: Job) -> None:
    """Not for the one that the job had begun before it was queued again, nor for another job's."""
    for place, expected in (("12_3", None), ("12_4", None)):
        stale = AttemptJob(TOKEN, place, 0, ["n1", "n2"], 2, "127.0.0.1", 1, 1.0)
        write_attempt_job(attempts.claim(job.run), stale)
        assert find_lead(job.run, Place("12_3", 1, 1, 2, ("n1", "n2"))) is expected
    late = job.start(1, 1, 2, FAKE_TRAINER=RANK)
    time.sleep(1)
    assert late.poll() is None and job.count() == 2
    lead = job.start(1, 0, 2, FAKE_TRAINER=RANK)
    for rank in (0, 1):
        (job.run.path / f"ends-{rank}").write_text("0")
    assert [code for code, _ in map(finish, (lead, late))] == [0, 0]


def test_a_rank_whose_lead_does_not_begin_says_so(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "_LEAD_S", 0.0)
    with pytest.raises(RlsweepError, match=r"rank 1: rank 0 has not begun an attempt within 0 s; is .*attempts on a"):
        task._led(job.run, TOKEN, Place("12_3", 0, 1, 2, ("n1", "n2")))


def test_where_rank_0_has_nothing_to_do_the_others_end_with_it(job: Job) -> None:
    cap(job, 0.0)
    late = job.start(rank=1, world=2, FAKE_TRAINER=RANK)
    lead = job.start(rank=0, world=2, FAKE_TRAINER=RANK)
    assert [code for code, _ in map(finish, (lead, late))] == [0, 0]


@pytest.mark.parametrize("own", ["1", "75", "-9"])
def test_another_ranks_death_by_a_signal_is_what_happened(job: Job, own: str) -> None:
    """Whatever rank 0 made of losing it. A second one without progress fails the run."""
    for restart, state in enumerate(("interrupted", "failed")):
        lead, other = begin(job, restart)
        (job.run.path / "ends-1").write_text("-9")
        until(lambda number=restart + 1: (job.attempt(number).path / "rank-1.json").exists())
        (job.run.path / "ends-0").write_text(own)
        code, _ = finish(lead)
        assert code == (75 if state == "interrupted" else 1)
        assert job.outcome().state == state
        assert job.outcome().reason.startswith("rank 0: killed" if own == "-9" else "rank 1: killed by SIGKILL")
        other.kill()  # as Slurm does
        finish(other)
        for rank in (0, 1):
            (job.run.path / f"ends-{rank}").unlink()


def test_a_rank_whose_trainer_fails_lets_rank_0_decide(job: Job) -> None:
    lead, other = begin(job)
    (job.run.path / "ends-1").write_text("1")
    until(lambda: (job.attempt(1).path / "rank-1.json").exists())
    time.sleep(1)
    assert other.poll() is None
    (job.run.path / "ends-0").write_text("1")
    assert [code for code, _ in map(finish, (lead, other))] == [1, 1]
    assert job.outcome() == Outcome("failed", 6, "said rank 0: 1", 1) and job.calls() == []


def test_on_notice_the_other_ranks_wait_for_rank_0(job: Job) -> None:
    lead, other = begin(job)
    other.send_signal(signal.SIGUSR2)
    lead.send_signal(signal.SIGUSR2)
    code, _ = finish(lead)
    assert code == 255 and job.calls() == [SQUEUE, REQUEUE]
    (job.run.path / "ends-1").write_text("75")
    assert finish(other)[0] == 0


def test_ranks_meet_where_slurm_reached_the_other_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    several = Place("1", 0, 0, 2, ("n1", "n2"))
    ours = ranks._by_route()
    monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", "203.0.113.7")  # another machine's
    monkeypatch.setattr(ranks, "_by_name", lambda: "127.0.1.1")
    if ours is None:
        monkeypatch.setattr(ranks, "_by_route", lambda: None)
    address, port = meeting_point(several)
    assert address == (ours or "127.0.0.1") and port in ranks._PORTS
    if ours is not None:
        monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", ours)
        monkeypatch.setattr(ranks, "_by_route", lambda: None)
        assert meeting_point(several)[0] == ours
    assert meeting_point(Place("1", 0, 0, 1, ("n1",)))[1] == 0


def begin(job: Job, restart: int = 0, **variables: str) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
    """Two ranks at work."""
    lead, other = (job.start(restart, rank, 2, FAKE_TRAINER=RANK, **variables) for rank in (0, 1))
    for rank in (0, 1):
        until(lambda rank=rank: f"rank {rank} of 2" in read(job.attempt(restart + 1).rank_log(rank)))
    return lead, other


def trainers(run: RunFolder) -> list[int]:
    """Processes of a run's trainers."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if RANK.encode() in words and str(run.path).encode() in words:
            found.append(int(entry.name))
    return found


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code, and all that it printed."""
    out, err = process.communicate(timeout=120)
    return process.returncode, out + err


def until(done: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""

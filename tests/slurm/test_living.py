"""Runs that live through what a cluster does to them, on a real scheduler with the real trainer.

Each story is one run, or one array, and what happens to it. All are played at once, each by a thread of its own, as
most of the time of each is waiting; a test is the end of a story.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from rlsweep.recipe.resolved import read_resolved
from rlsweep.store import checkpoints
from rlsweep.store.jobs import read_submission

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(900)]

QUIET = "n3,n4"
"""Nodes that nothing happens to but in the stories that ask for them."""
PREEMPTED, FAILING = "n3", "n4"


@dataclass
class Scene:
    """What a story has at hand."""

    stage: Callable[..., Any]
    same: Callable[[Any], None]
    slurm: Any


Story = Callable[[Scene], None]
STORIES: dict[str, Story] = {}


def story(tell: Story) -> Story:
    STORIES[tell.__name__] = tell
    return tell


@story
def a_node_dies(scene: Scene) -> None:
    """Slurm queues the job again with the pickle that was submitted: all else comes from the run's folder."""
    stage = scene.stage("nœud perdu")
    stage.ablate(exclude="n1,n2,n3")
    stage.until_at_work()
    stage.slurm.kill_node(FAILING)
    stage.until("Slurm notices", lambda: stage.state() == "PENDING")
    stage.slurm.start_node(FAILING)
    stage.until_finished(2)
    assert (stage.job(1).ended, stage.job(2).restart) == (None, 1)
    assert stage.saved() and stage.job(1).job == stage.job(2).job
    scene.same(stage)


@story
def it_is_preempted(scene: Scene) -> None:
    """By a job of a better partition: first with SIGTERM alone, then where the site has the user signal sent."""
    alone, told = scene.stage("préempté"), scene.stage("préempté avec signal")
    for stage, setting in ((alone, None), (told, "preempt_send_user_signal")):
        stage.ablate(exclude="n1,n2,n4")
        stage.until_at_work()
        scene.slurm.set_parameter("SlurmctldParameters", setting)
        urgent = ["--partition=urgent", f"--nodelist={PREEMPTED}", "--exclusive", "--time=5", "--wrap=sleep 2"]
        scene.slurm.run("sbatch", "--output=/dev/null", *urgent)
        assert "saved" in stage.until_settled("interrupted", 1)
        asked = "Slurm wants the node back"
        stage.until("the job is queued again", lambda stage=stage: stage.state() in ("PENDING", "RUNNING"))
        assert (asked in stage.attempt(1).log.read_text()) == (setting is not None)
    scene.slurm.set_parameter("SlurmctldParameters", None)
    for stage in (alone, told):
        stage.until_finished()  # the first one is preempted by the second urgent job, too, if it is still at work
        assert stage.job(2).restart == 1 and stage.job(1).ended is not None
        scene.same(stage)


@story
def its_time_is_up(scene: Scene) -> None:
    """A limit of a minute, of which the job hears 10 to 40 s after its start. The trainer stands still until then."""
    stage = scene.stage("une minute")
    stage.ablate(exclude=QUIET, time=1, notice_s=20)
    log, asked = stage.attempt(1).log, "Slurm wants the node back"
    stage.until("it trains, or is asked to stop already", lambda: stage.step() >= 15 or asked in read(log))
    trainer = stage.trainer(1)
    os.kill(trainer, signal.SIGSTOP)
    stage.until("the notice", lambda: asked in read(log))
    os.kill(trainer, signal.SIGCONT)
    assert stage.until_settled("interrupted", 1).startswith("asked to stop")
    saved = stage.saved()
    stage.until("the job is queued again", lambda: stage.state() == "PENDING")
    stage.slurm.run("scontrol", "update", f"jobid={stage.submission.job}", "timelimit=10")
    stage.until_finished(2)
    assert stage.job(2).restart == 1
    assert f"from step {saved}:" in read(stage.attempt(2).log) and (saved >= 15 or saved == 0)
    scene.same(stage)


@story
def it_does_not_answer_to_notice(scene: Scene) -> None:
    """A trainer that doesn't save is killed in time, and the run goes on from its last checkpoint."""
    stage = scene.stage("sourd")
    stage.ablate(exclude=QUIET, notice_s=20)
    stage.until_at_work()
    os.kill(stage.trainer(1), signal.SIGSTOP)
    stage.slurm.run("scancel", "--signal=USR2", stage.submission.job)
    assert stage.until_settled("interrupted", 1) == "killed, as it had not saved within 15 s; goes on from step 10"
    stage.until_finished(2)
    scene.same(stage)


@story
def its_time_is_too_short(scene: Scene) -> None:
    """A second limit without a newer checkpoint than after the first: it fails, and says what to do."""
    stage = scene.stage("trop court")
    stage.ablate(exclude=QUIET, time=1, notice_s=20)
    for number, state in ((1, "interrupted"), (2, "failed")):
        stage.until("it begins", lambda number=number: stage.attempt(number).launcher.exists())
        os.kill(stage.trainer(number), signal.SIGSTOP)
        reason = stage.until_settled(state, number)
    assert reason.endswith("raise the profile's time (1 min) or notice_s (20 s)"), reason
    stage.until("its job has failed", lambda: stage.state() == "FAILED")
    stage.ablate(exclude=QUIET)
    stage.until_finished(3)
    scene.same(stage)


@story
def its_trainer_is_killed(scene: Scene) -> None:
    """Once may be chance. Twice without a checkpoint in between is not; asked for again, it has two tries again."""
    stage = scene.stage("tué deux fois")
    stage.ablate(exclude=QUIET)
    stage.until_at_work()
    os.kill(stage.trainer(1), signal.SIGKILL)
    assert stage.until_settled("interrupted", 1).startswith("killed by SIGKILL (out of memory?); goes on from step 10")
    stage.until_at_work(2, step=0)
    os.kill(stage.trainer(2), signal.SIGKILL)
    reason = stage.until_settled("failed", 2)
    assert "no newer checkpoint than after attempt 1: save more often" in reason
    stage.until("its job has failed", lambda: stage.state() == "FAILED")
    first = stage.submission
    stage.ablate(exclude=QUIET)
    assert stage.submission.token != first.token
    stage.until_finished(3)
    scene.same(stage)


@story
def its_task_is_killed(scene: Scene) -> None:
    """The trainer is not left behind: it saves and ends, and the next `ablate` goes on."""
    stage = scene.stage("orphelin")
    stage.ablate(exclude=QUIET)
    stage.until_at_work()
    trainer = stage.trainer(1)
    os.kill(stage.task(1), signal.SIGKILL)
    stage.until("the trainer has ended", lambda: not Path(f"/proc/{trainer}").exists())
    assert "saved" in stage.until_settled("interrupted", 1)
    stage.until("its job is over", lambda: stage.state() == "FAILED")
    stage.ablate(exclude=QUIET)
    stage.until_finished(2)
    scene.same(stage)


@story
def it_is_cancelled(scene: Scene) -> None:
    """With plain scancel: while it runs, and while it waits to go on. Neither comes back by itself."""
    stage = scene.stage("annulé")
    stage.ablate(exclude=QUIET)
    stage.until_at_work()
    stage.slurm.run("scancel", stage.submission.job)
    assert "saved" in stage.until_settled("interrupted", 1)
    stage.until("its job is over", lambda: stage.state() == "CANCELLED")
    stage.ablate(exclude=QUIET)
    stage.until_at_work(2, step=stage.saved() + 2)
    os.kill(stage.trainer(2), signal.SIGTERM)
    stage.until_settled("interrupted", 2)
    stage.until("the job is queued again", lambda: stage.state() == "PENDING")
    stage.slurm.run("scancel", stage.submission.job)
    time.sleep(10)
    assert (stage.state(), stage.count()) == ("CANCELLED", 2)
    stage.ablate(exclude=QUIET)
    stage.until_finished(3)
    scene.same(stage)


@story
def it_is_cancelled_while_it_saves(scene: Scene) -> None:
    """With plain scancel, after Slurm gave notice: a requeue would bring it back. It is left as long as Slurm's default
    says, in which it can save and ask."""
    stage = scene.stage("annulé en sauvant")
    scene.slurm.set_parameter("KillWait", "30")
    stage.ablate(exclude=QUIET)
    stage.until_at_work()
    trainer, job = stage.trainer(1), stage.submission.job
    os.kill(trainer, signal.SIGSTOP)
    stage.slurm.run("scancel", "--signal=USR2", job)
    stage.until("the notice", lambda: "Slurm wants the node back" in read(stage.attempt(1).log))
    stage.slurm.run("scancel", job)
    os.kill(trainer, signal.SIGCONT)
    assert "saved" in stage.until_settled("interrupted", 1)
    stage.until("the task has ended", lambda: stage.job(1).ended is not None)
    scene.slurm.set_parameter("KillWait", "5")
    stage.until("its job is over", lambda: stage.state() == "CANCELLED")
    time.sleep(10)
    assert (stage.state(), stage.count()) == ("CANCELLED", 1)
    assert "it is not queued again from here" in read(stage.attempt(1).log)
    stage.ablate(exclude=QUIET)
    stage.until_finished(2)
    scene.same(stage)


@story
def elements_of_its_array_are_cancelled(scene: Scene) -> None:
    """One that runs and one that waits; the third is not touched by it."""
    stage = scene.stage("tableau")
    stage.ablate("--seeds", "7,8,0", exclude=QUIET, limits__parallel=1)
    runs = list(stage.root.runs.iterdir())
    others = {key: read_submission(stage.root.run(key)).job for key in (path.name for path in runs) if key != stage.key}
    running, waiting = sorted(others, key=lambda key: others[key])
    first = replace(stage, key=running)
    first.until_at_work()
    stage.slurm.run("scancel", others[waiting])
    stage.slurm.run("scancel", others[running])
    first.until_settled("interrupted", 1)
    stage.until_finished(1)
    scene.same(stage)
    assert first.count() == 1 and replace(stage, key=waiting).count() == 0
    assert first.state() == "CANCELLED" and stage.state() == "COMPLETED"


@story
def it_raises(scene: Scene) -> None:
    """An error of the run's own is not tried again, and the job's log says it in one line."""
    stage = scene.stage("erreur")
    stage.run.path.mkdir(parents=True)
    stage.run.samples.touch()  # where a folder must be
    stage.ablate(exclude=QUIET)
    reason = stage.until_settled("failed", 1)
    stage.until("its job has failed", lambda: stage.state() == "FAILED")
    assert "samples" in reason
    printed = stage.printed()
    assert f"run {stage.key} failed in attempt 1" in printed and "Traceback" not in printed, printed
    time.sleep(5)
    assert stage.count() == 1 and stage.job(1).ended is not None


@story
def its_setup_fails(scene: Scene) -> None:
    stage = scene.stage("préparation")
    profile = stage.root.path / "profil.yaml"
    profile.write_text("executor: slurm\ncpus_per_node: 1\nmemory_gb: 1\ntime: 10\nsetup:\n  - ls '/no such dir'\n")
    stage.rlsweep("ablate", str(stage.recipe), "--cluster", str(profile))
    stage.until("its job has failed", lambda: stage.state() == "FAILED")
    assert "rlsweep: setup line 1 failed: ls '/no such dir'" in stage.printed()
    assert stage.count() == 0


@story
def its_attempts_are_used_up(scene: Scene) -> None:
    stage = scene.stage("sans répit")
    stage.ablate(exclude=QUIET, limits__retries=0)
    stage.until_at_work()
    os.kill(stage.trainer(1), signal.SIGTERM)
    used_up = "not queued again: this submission has made all its attempts (limits.retries: 0)"
    stage.until("it says so", lambda: (ended := stage.outcome()) and ended.reason.endswith(used_up))
    stage.until("its job is over", lambda: stage.state() == "COMPLETED")
    stage.ablate(exclude=QUIET)
    stage.until_finished(2)
    scene.same(stage)


@story
def its_cap_is_reached(scene: Scene) -> None:
    """No second attempt trains; the same command with a higher cap goes on."""
    stage = scene.stage("plafond")
    stage.ablate("--max-gpu-hours", "0.0001", exclude=QUIET)
    stage.until_at_work()
    os.kill(stage.trainer(1), signal.SIGTERM)
    assert "--max-gpu-hours is 0.0001" in stage.until_settled("interrupted", 2)
    stage.until("its job is over", lambda: stage.state() == "COMPLETED")
    assert not stage.attempt(2).log.exists()
    stage.ablate("--max-gpu-hours", "10", exclude=QUIET)
    stage.until_finished(3)
    scene.same(stage)


@story
def it_has_two_nodes(scene: Scene) -> None:
    """A rank and a log each. The second rank's trainer is killed: both go on together in the next attempt."""
    recipe = read_resolved(scene.stage("modèle").recipe)
    stage = scene.stage("deux nœuds", execution=replace(recipe.execution, devices=2))
    stage.ablate(exclude=QUIET)
    stage.until_at_work()
    job = stage.job(1)
    assert job.nodes == ["n1", "n2"] and job.devices == 2
    assert "rank 1 of 2" in stage.attempt(1).rank_log(1).read_text()
    second = subprocess.run(["pgrep", "-f", f"rlsweep.train {stage.run.path}"], capture_output=True, text=True)
    pids = {int(pid) for pid in second.stdout.split()} - {stage.trainer(1)}
    assert len(pids) == 1, pids
    os.kill(pids.pop(), signal.SIGKILL)
    why = "rank 1: killed by SIGKILL (out of memory?); goes on from step"
    stage.until("rank 0 says why", lambda: (ended := stage.outcome()) and ended.reason.startswith(why))
    stage.until_finished(2)
    assert "rank 0 of 2" in stage.attempt(2).log.read_text()
    assert "rank 1 of 2" in stage.attempt(2).rank_log(1).read_text()
    assert checkpoints.newest(stage.run).step == read_resolved(stage.run.recipe).budget.steps


@story
def nothing_happens(scene: Scene) -> None:
    stage = scene.stage("tranquille")
    stage.ablate(exclude=QUIET)
    stage.until_finished(1)
    job = stage.job(1)
    assert job.ended is not None and job.started < job.ended and job.job == stage.submission.job
    assert "Traceback" not in stage.printed()
    said = stage.ablate()
    assert "1 skipped" in said, said
    scene.same(stage)


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.fixture(scope="module")
def played(
    request: pytest.FixtureRequest,
    make_stage: Callable[..., Any],
    require_same: Callable[[Any], None],
    cluster: Any,
) -> Iterator[dict[str, Future[None]]]:
    """All stories that are asked for, begun."""
    scene = Scene(make_stage, require_same, cluster)
    wanted = {item.callspec.params["name"] for item in request.session.items if "played" in item.fixturenames}
    with ThreadPoolExecutor(len(STORIES)) as pool:
        yield {name: pool.submit(tell, scene) for name, tell in STORIES.items() if name in wanted}


@pytest.mark.parametrize("name", STORIES)
def test_a_run_lives_through_it(played: dict[str, Future[None]], name: str) -> None:
    played[name].result()

import os
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from rlsweep.errors import UsageError
from rlsweep.launch import gpu_hours
from rlsweep.launch.cluster import Cluster, Gpus, Limits
from rlsweep.launch.gpu_hours import Estimate
from rlsweep.launch.plan import Planned, decide
from rlsweep.launch.submit import write_down
from rlsweep.store import attempts, outcome
from rlsweep.store.attempts import Attempt
from rlsweep.store.files import write_json
from rlsweep.store.jobs import AttemptJob, write_attempt_job
from rlsweep.store.layout import Root, RunFolder
from rlsweep.store.outcome import Outcome
from rlsweep.sweep.expand import Sweep, expand

Make = Callable[..., Sweep]
NOW = 1_800_000_000.0
HOUR = 3600.0
SLURM = Cluster(name="h100", executor="slurm", gpus=Gpus(per_node=8), minutes=120, limits=Limits(retries=2))


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)


@pytest.fixture
def runs(root: Root, sweep: Make) -> list[RunFolder]:
    """Two runs that the sweep s asks for."""
    wanted = sweep()
    write_down(wanted, root, decide(wanted, root))
    return [root.run(run.key) for run in wanted.runs]


def attempt(
    run: RunFolder, started: float, ended: float | None, heard: float | None = None, devices: int = 8
) -> Attempt:
    """An attempt of a job, `heard` of last when its log was written."""
    made = attempts.claim(run)
    job = AttemptJob(
        "t", "1", 0, ["n1"], devices, "n1", 1, NOW + started * HOUR, None if ended is None else NOW + ended * HOUR
    )
    write_attempt_job(made, job)
    os.utime(made.job, (NOW + started * HOUR,) * 2)
    if heard is not None:
        made.log.write_text("...")
        os.utime(made.log, (NOW + heard * HOUR,) * 2)
    return made


def test_devices_times_the_time_from_start_to_end_of_every_attempt_of_every_run(
    root: Root, runs: list[RunFolder]
) -> None:
    assert gpu_hours.used(root, "s") == 0
    attempt(runs[0], -10, -8)
    attempt(runs[0], -7, -6.5)
    attempt(runs[1], -1, -0.5, devices=16)
    assert gpu_hours.used(root, "s") == pytest.approx(8 * 2.5 + 16 * 0.5)


def test_an_attempt_that_never_ended_counts_until_its_job_last_gave_a_sign(root: Root, runs: list[RunFolder]) -> None:
    """Its log is written at evaluations, which may be hours apart."""
    lost = attempt(runs[0], -10, None, heard=-9.9)
    os.utime(lost.job, (NOW - 2 * HOUR,) * 2)
    attempts.claim(runs[0])
    assert gpu_hours.used(root, "s") == pytest.approx(8 * 8)


def test_an_attempt_that_never_ended_counts_until_it_was_last_heard_of(root: Root, runs: list[RunFolder]) -> None:
    attempt(runs[0], -10, None, heard=-9)
    second = attempt(runs[0], -5, None, heard=-4)
    assert gpu_hours.used(root, "s") == pytest.approx(8 * 2)
    runs[0].journal.write_text("")  # the newest attempt's
    os.utime(runs[0].journal, (NOW - 3 * HOUR,) * 2)
    assert gpu_hours.used(root, "s") == pytest.approx(8 * 3)
    outcome.write(runs[0], Outcome("failed", 1, "killed", second.number))
    os.utime(runs[0].outcome, (NOW - 2 * HOUR,) * 2)
    assert gpu_hours.used(root, "s") == pytest.approx(8 * 4)
    os.utime(second.log, (NOW + HOUR,) * 2)  # the clock of a file server that is ahead
    assert gpu_hours.used(root, "s") == pytest.approx(8 * 6)


def test_an_attempt_without_a_job_counts_from_its_launcher_with_the_recipe_s_devices(
    root: Root, runs: list[RunFolder]
) -> None:
    made = attempts.claim(runs[0])
    assert gpu_hours.used(root, "s") == 0
    write_json(made.launcher, {"pid": 1, "host": "n1", "started": NOW - 3 * HOUR})
    os.utime(made.launcher, (NOW - 3 * HOUR,) * 2)
    made.log.write_text("")
    os.utime(made.log, (NOW - 1 * HOUR,) * 2)
    assert gpu_hours.used(root, "s") == pytest.approx(1 * 2)
    made.job.write_text("{}")  # damaged
    os.utime(made.job, (NOW - 1 * HOUR,) * 2)
    assert gpu_hours.used(root, "s") == pytest.approx(1 * 2)


def test_runs_that_a_sweep_no_longer_asks_for_have_been_paid_all_the_same(
    root: Root, runs: list[RunFolder], sweep: Make
) -> None:
    attempt(runs[1], -1, 0)
    fewer = sweep(vary="loss=cispo")
    write_down(fewer, root, decide(fewer, root))
    assert gpu_hours.used(root, "s") == pytest.approx(8)
    other = expand("scalerl", scale="tiny", overrides=["budget.steps=4"], vary=["loss=dapo"], name="t")
    write_down(other, root, decide(other, root))
    assert gpu_hours.used(root, "t") == pytest.approx(8)  # the run is shared


def test_the_worst_case_is_all_of_the_time_in_every_attempt(root: Root) -> None:
    wanted = expand("scalerl", vary=["batch.prompts=48,96"], name="big")
    decisions = decide(wanted, root)
    found = gpu_hours.estimate(root, "big", decisions, SLURM)
    assert found.used == 0 and found.worst == 2 * 80 * 2 * 3
    assert found.expected is not None and round(found.expected, -2) == 46_800
    assert found.overshoot == 2 * 80 * 2
    one = replace(SLURM, limits=Limits(parallel=1))
    assert gpu_hours.estimate(root, "big", decisions, one).overshoot == 80 * 2
    skipped = [replace(each, action="skip") for each in decisions]
    assert gpu_hours.estimate(root, "big", skipped, SLURM) == Estimate(0, 0, 0, 0)
    half = [Planned(decisions[0].run, "resume", "lost", decisions[0].run.recipe.budget.steps // 2)]
    left = gpu_hours.estimate(root, "big", half, SLURM).expected
    assert left is not None and left == pytest.approx(found.expected / 3 / 2, rel=1e-3)


def test_nodes_that_nobody_else_may_use_count_whole(root: Root) -> None:
    wanted = expand("scalerl", overrides=["execution.devices=4"], name="small")
    decisions = decide(wanted, root)
    shared = gpu_hours.estimate(root, "small", decisions, SLURM)
    alone = gpu_hours.estimate(root, "small", decisions, replace(SLURM, exclusive=True))
    assert (shared.worst, alone.worst, alone.overshoot) == (4 * 2 * 3, 8 * 2 * 3, 8 * 2)
    assert shared.expected is not None and alone.expected == pytest.approx(2 * shared.expected)


def test_what_nobody_has_measured_is_not_expected(root: Root, sweep: Make) -> None:
    assert gpu_hours.estimate(root, "s", decide(sweep(), root), SLURM).expected is None


@pytest.mark.parametrize(
    ("used", "expected", "most", "refused"),
    [
        (0.0, 10.0, None, None),
        (0.0, 10.0, 10.0, None),
        (1.0, 10.0, 10.0, "has used 1 GPU-hours and is expected to take 10 more"),
        (9.0, None, 10.0, None),
        (10.0, None, 10.0, "have used 10 GPU-hours already"),
        (12.5, 0.0, 10.0, "have used 12.5 GPU-hours already"),
    ],
)
def test_a_sweep_above_its_cap_is_refused(
    used: float, expected: float | None, most: float | None, refused: str | None
) -> None:
    estimate = Estimate(used, expected, 99.0, 1.0)
    if refused is None:
        gpu_hours.refuse_above(most, estimate)
    else:
        with pytest.raises(UsageError, match=refused):
            gpu_hours.refuse_above(most, estimate)

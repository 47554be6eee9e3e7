"""GPU-hours of a sweep: what its attempts have used, and what its runs may still take.

What counts: the devices that a run keeps from others (`execution.devices`, with `exclusive` all of its nodes') times
the time from an attempt's start to its end, set-up, evaluations and saving included; waiting in the queue does not. An
attempt that never said that it ended counts until it was last heard of: its job touches `job.json` every minute. All
attempts of all runs that the sweep asks for or has ever asked for count, whoever started them: a run that two sweeps
share counts in both. On CPUs a device is a node.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlsweep.errors import RlsweepError, UsageError
from rlsweep.launch.cluster import Cluster
from rlsweep.launch.plan import TO_START, Planned
from rlsweep.launch.script import occupied
from rlsweep.recipe.compute import expected_device_hours
from rlsweep.recipe.resolved import read_resolved
from rlsweep.store import attempts, ledger, outcome
from rlsweep.store.attempts import Attempt
from rlsweep.store.jobs import read_attempt_job
from rlsweep.store.layout import Root, RunFolder


@dataclass(frozen=True)
class Estimate:
    """GPU-hours of what is about to be submitted."""

    used: float
    """By the attempts so far of all the sweep's runs."""
    expected: float | None
    """For the steps to go; None where nobody has measured what they take."""
    worst: float
    """Every run to start takes its full time limit, in its first attempt and in each that may follow."""
    overshoot: float
    """At most so much comes on top of a cap: attempts at work when it is reached go on, each to its time limit."""


def used(root: Root, sweep: str, new: Collection[str] = ()) -> float:
    """GPU-hours that the attempts of a sweep's runs have used until now, with `new` runs it is about to ask for."""
    keys = {intent.run_key for intent in ledger.intents(root.sweep(sweep))} | set(new)
    return sum(_of_run(root.run(key)) for key in keys)


def estimate(
    root: Root, sweep: str, decisions: Sequence[Planned], cluster: Cluster, dropped: Sequence[int] = ()
) -> Estimate:
    """What the runs to start may take on a cluster. `dropped`: devices of jobs that go on without being asked for."""
    starting = [planned for planned in decisions if planned.action in TO_START]
    hours = cluster.minutes / 60
    devices = [_occupied(each, cluster) for each in decisions if each.action != "skip"] + list(dropped)
    expected = [_expected(each, cluster) for each in starting]
    known = [each for each in expected if each is not None]
    return Estimate(
        used=used(root, sweep, [each.run.key for each in decisions]),
        expected=sum(known) if len(known) == len(expected) else None,
        worst=sum(_occupied(each, cluster) for each in starting) * hours * (1 + cluster.limits.retries),
        overshoot=sum(sorted(devices, reverse=True)[: cluster.limits.parallel]) * hours,
    )


def refuse_above(most: float | None, estimate: Estimate) -> None:
    """UsageError where something is to start and what was used and what is expected are above the cap."""
    if most is None or not estimate.worst:
        return
    if estimate.used >= most:
        raise UsageError(
            f"--max-gpu-hours {most:g}: the runs of this sweep have used {estimate.used:.4g} GPU-hours already"
        )
    if estimate.expected is not None and estimate.used + estimate.expected > most:
        raise UsageError(
            f"--max-gpu-hours {most:g}: this sweep has used {estimate.used:.4g} GPU-hours and is expected to take "
            f"{estimate.expected:.4g} more; ask for fewer runs or steps, or raise the cap"
        )


def _occupied(planned: Planned, cluster: Cluster) -> int:
    return occupied(planned.run.recipe, cluster)


def _expected(planned: Planned, cluster: Cluster) -> float | None:
    recipe = planned.run.recipe
    hours = expected_device_hours(recipe, planned.step)
    return None if hours is None else hours * occupied(recipe, cluster) / recipe.execution.devices


def _of_run(run: RunFolder) -> float:
    return sum(_of_attempt(attempt) for attempt in attempts.every(run))


def _of_attempt(attempt: Attempt) -> float:
    try:
        job = read_attempt_job(attempt)
    except RlsweepError:  # damaged: what else is there tells
        job = None
    if job is not None:
        until = _last_heard(attempt) if job.ended is None else job.ended
        return max(0.0, until - job.started) * job.devices / 3600
    started = _started(attempt)
    return 0.0 if started is None else max(0.0, _last_heard(attempt) - started) * _devices(attempt.run) / 3600


def _started(attempt: Attempt) -> float | None:
    """When an attempt without a job began, None where it never came so far."""
    for path in (attempt.launcher, attempt.process):
        try:
            return float(attempts.read_identity(path)["started"])
        except (FileNotFoundError, RlsweepError):
            continue
    return None


def _devices(run: RunFolder) -> int:
    try:
        return read_resolved(run.recipe).execution.devices
    except (RlsweepError, OSError):
        return 1


def _last_heard(attempt: Attempt) -> float:
    """When an attempt last wrote something: a sign of life, its log, and if it owns the run its journal and outcome."""
    paths = [attempt.log, attempt.launcher, attempt.process, attempt.job]
    if attempt.owns():
        paths.append(attempt.run.journal)
    heard = max(filter(None, map(_modified, paths)), default=0.0)
    try:
        ended = outcome.read(attempt.run)
    except RlsweepError:
        ended = None
    if ended is not None and ended.attempt == attempt.number:
        heard = max(heard, _modified(attempt.run.outcome) or 0.0)
    return min(heard, time.time())


def _modified(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None

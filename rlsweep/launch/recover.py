"""What submitters that were killed have left is put in order by the next: cancelled, or released.

A job is submitted on hold and released as the last step. One that the ledger doesn't know as `submitted` can't have
started, and may be one of two for the same runs: it is cancelled. One that is known and on hold is released.
"""

import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from rlsweep.errors import RlsweepError
from rlsweep.launch import queue, scheduler
from rlsweep.launch.queue import Job
from rlsweep.launch.scheduler import Refused
from rlsweep.store import ledger
from rlsweep.store.jobs import job_name, read_submission
from rlsweep.store.layout import Root, SweepFolder


@dataclass(frozen=True)
class Recovered:
    """What submitters that died had left."""

    cancelled: int = 0
    """Jobs that nobody knew of."""
    released: tuple[str, ...] = ()
    """Ids of jobs that were on hold."""
    held: tuple[str, ...] = ()
    """Ids of those that the scheduler goes on holding."""


def recover(folder: SweepFolder, root: Root, cluster: str) -> Recovered:
    """Put in order what submitters that died have left. Asks the scheduler where there is something, else not."""
    unsure = [each for each in ledger.submissions(folder) if each.state != "released"]
    if not unsure:
        return Recovered()
    jobs = queue.own_jobs()
    names = {job.name for job in jobs}
    # A root may be used on two clusters: nothing is concluded from what this one doesn't know of the other's jobs.
    unsure = [each for each in unsure if each.cluster == cluster or _name(folder, each) in names]
    cancelled = drop(folder, root, [each for each in unsure if each.state == "submitting"], jobs)
    waiting = [each for each in unsure if each.state == "submitted"]
    ours = {_name(folder, each): each for each in waiting}
    ids = sorted({_parent(job) for job in jobs if job.name in ours and job.held}, key=int)
    held = release(folder, waiting, ids)
    return Recovered(cancelled, tuple(each for each in ids if each not in held), tuple(held))


def release(folder: SweepFolder, handed: Sequence[ledger.Handed], ids: Sequence[str]) -> list[str]:
    """Let the jobs of submissions start, with one call. Ids of those that stay held, by an administrator, say."""
    held: list[str] = []
    if ids:
        try:
            scheduler.call(["scontrol", "release", ",".join(ids)])
        except Refused:  # some are over or cancelled; the others were released all the same
            held = sorted({_parent(job) for job in queue.own_jobs() if job.held and _parent(job) in ids}, key=int)
    if handed:
        tokens = [each.token for each in handed]
        ledger.append(folder, [{"kind": "released", "time": time.time(), "tokens": tokens}])
    return held


def drop(folder: SweepFolder, root: Root, handed: Sequence[ledger.Handed], jobs: Sequence[Job]) -> int:
    """Cancel the jobs of submissions nobody saw to the end; how many there were. They wait: they were never released.

    A job that somebody released by hand is let go on, with those runs whose submission.json names it.
    """
    names = {_name(folder, each): each for each in handed}
    freed = {job.name for job in jobs if job.name in names and job.state not in ("PENDING", "CANCELLED")}
    waiting = sorted({_parent(job) for job in jobs if job.name in names and job.state == "PENDING"}, key=int)
    if waiting:
        with suppress(Refused):  # it has gone meanwhile
            scheduler.call(["scancel", "--state=PENDING", *waiting])
    for name, each in names.items():
        if name not in freed:
            _forget(folder, root, each)
    return len(waiting)


def _forget(folder: SweepFolder, root: Root, handed: ledger.Handed) -> None:
    """Take away what a submission that came to nothing has left: its runs count as not submitted."""
    for run in map(root.run, handed.runs):
        with suppress(RlsweepError):  # damaged: the next submission replaces it
            submission = read_submission(run)
            if submission is not None and submission.token == handed.token:
                run.submission.unlink(missing_ok=True)
    shutil.rmtree(folder.jobs / handed.token, ignore_errors=True)


def _name(folder: SweepFolder, handed: ledger.Handed) -> str:
    return job_name(folder.name, handed.token)


def _parent(job: Job) -> str:
    """Id of a job, or of the array that it is an element of."""
    return job.id.partition("_")[0]

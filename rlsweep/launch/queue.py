"""What the scheduler says about jobs now: one squeue for all, one sacct for those that squeue has forgotten."""

from collections.abc import Sequence
from dataclasses import dataclass

from rlsweep.store.jobs import Submission


@dataclass(frozen=True)
class Job:
    """One job or array element as the scheduler knows it."""

    id: str
    """`123` or `123_4`."""
    name: str
    state: str
    """Slurm's long name: PENDING, RUNNING, COMPLETED, FAILED, CANCELLED, TIMEOUT, NODE_FAIL, ..."""
    reason: str
    """Why it is pending, or `exit 1:0` where it is over."""
    nodes: str
    held: bool
    """Whether it waits for `scontrol release`."""


def read_jobs(submissions: Sequence[Submission]) -> dict[str, Job]:
    """Jobs of these submissions by id, those the scheduler doesn't know left out. At most two scheduler calls.

    A job of that id with another name is somebody else's (ids are recycled) and left out.
    """
    raise NotImplementedError


def own_jobs() -> list[Job]:
    """All jobs of this user that squeue knows, array elements one by one. One call."""
    raise NotImplementedError

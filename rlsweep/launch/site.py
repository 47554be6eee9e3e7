"""What the scheduler of this site allows."""

from dataclasses import dataclass

from rlsweep.store.jobs import Accounting


@dataclass(frozen=True)
class Partition:
    name: str
    default: bool
    minutes: int | None
    """Longest time limit; None: none."""
    nodes: int
    gpus: tuple[str, ...]
    """GRES of its nodes, e.g. `gpu:h100:8`."""


@dataclass(frozen=True)
class Site:
    """Facts asked for with `scontrol show config`, `scontrol show partition` and `sinfo`."""

    cluster: str
    version: str
    max_array_size: int
    kill_wait_s: int
    accounting: Accounting
    preempt_signal: bool
    """Whether a preempted job is sent the user signal (SlurmctldParameters=preempt_send_user_signal)."""
    partitions: tuple[Partition, ...]


def ask() -> Site:
    """Three calls at most. SchedulerError where the controller can't be reached."""
    raise NotImplementedError

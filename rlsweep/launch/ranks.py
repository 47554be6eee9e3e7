"""The tasks of a job, one a node: which one this is, where they meet, and how they tell each other what happened.

They meet through the attempt's folder: rank 0 writes `job.json`, the others wait for the one that names their own job.
A rank whose trainer died writes `rank-R.json`.
"""

import os
import random
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from ipaddress import ip_address
from itertools import count
from typing import Any

from rlsweep.errors import RlsweepError
from rlsweep.launch.scheduler import RANKS
from rlsweep.store import attempts
from rlsweep.store.attempts import Attempt
from rlsweep.store.files import read_json, write_json
from rlsweep.store.jobs import AttemptJob, read_attempt_job
from rlsweep.store.layout import RunFolder
from rlsweep.store.outcome import DIVERGED, SAVED

_PORTS = range(15_000, 32_000)
"""Below those that a kernel gives to outgoing connections, which come and go while a trainer starts."""

ENDED_WELL = (0, SAVED, DIVERGED)
"""Exit codes of a trainer that says in the outcome how it ended."""
STOPPED = tuple(-number for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
"""Exit codes of a trainer that was asked to stop before it could listen."""


@dataclass(frozen=True)
class Place:
    """Which task of which job this process is."""

    job: str
    """`123` or `123_4`."""
    restart: int
    """How often Slurm has requeued the job."""
    rank: int
    world: int
    nodes: tuple[str, ...]
    limit: float | None = None
    """When Slurm ends the job, unix seconds; None where it doesn't say, as before version 23.02."""


@dataclass(frozen=True)
class Death:
    """How a rank's trainer ended: exit code, negative for a signal."""

    rank: int
    code: int
    time: float


def here() -> Place:
    """Told from the variables of a Slurm step."""
    from submitit.slurm.slurm import SlurmJobEnvironment

    found: Any = SlurmJobEnvironment()
    restart = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    limit = os.environ.get("SLURM_JOB_END_TIME", "")
    return Place(
        job=found.job_id,
        restart=restart,
        rank=found.global_rank,
        world=found.num_tasks,
        nodes=tuple(found.hostnames),
        limit=float(limit) if limit.isdecimal() else None,
    )


def meeting_point(place: Place) -> tuple[str, int]:
    """Address and free port of this node at which the ranks can meet. A run on one node needs none: port 0."""
    if place.world == 1:
        return socket.gethostname(), 0
    # From the node that srun runs on, usually this one, Slurm has reached all others.
    ways: tuple[Callable[[], str | None], ...] = (_by_srun, _by_name, _by_route)
    for way in ways:
        address = way()
        if address is not None and _may_bind(address) and not ip_address(address).is_loopback:
            return address, _free_port()
    return "127.0.0.1", _free_port()


def variables(place: Place, job: AttemptJob) -> dict[str, str]:
    """The environment of this rank's trainer: what torch takes for a process group only where there are several."""
    kept = {name: value for name, value in os.environ.items() if not RANKS.fullmatch(name)}
    if place.world == 1:
        return kept
    return {
        **kept,
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.world),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": job.address,
        "MASTER_PORT": str(job.port),
    }


def find_lead(run: RunFolder, place: Place) -> Attempt | None:
    """The attempt that rank 0 of this very start of the job has begun, None where it has not yet."""
    attempt = attempts.newest(run)
    job = job_of(attempt) if attempt else None
    if attempt is None or job is None or (job.job, job.restart) != (place.job, place.restart):
        return None
    return attempt


def job_of(attempt: Attempt) -> AttemptJob | None:
    """Which job an attempt belongs to. None where it belongs to none, or its file is damaged."""
    try:
        return read_attempt_job(attempt)
    except RlsweepError:
        return None


def report(attempt: Attempt, death: Death) -> None:
    """Say how this rank's trainer ended."""
    write_json(attempt.path / f"rank-{death.rank}.json", asdict(death))


def reports(attempt: Attempt) -> list[Death]:
    """What ranks said of their trainers, in the order in which those ended."""
    found = []
    for path in attempt.path.glob("rank-*.json"):
        with suppress(FileNotFoundError, RlsweepError, TypeError):  # damaged: as if it had never been written
            found.append(Death(**read_json(path)))
    return sorted(found, key=lambda death: death.time)


def _by_srun() -> str | None:
    return os.environ.get("SLURM_LAUNCH_NODE_IPADDR")


def _by_name() -> str | None:
    try:
        return str(socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return None


def _by_route() -> str | None:
    """The address that packets to elsewhere would leave from. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # RFC 5737: an address of nobody
            return str(probe.getsockname()[0])
        except OSError:
            return None


def _may_bind(address: str, port: int = 0) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        try:
            probe.bind((address, port))
        except OSError:
            return False
        return True


def _free_port() -> int:
    drawn = random.SystemRandom()  # two jobs of one node must not draw alike
    return next(port for port in (drawn.choice(_PORTS) for _ in count()) if _may_bind("", port))

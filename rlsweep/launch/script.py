"""From a profile to the script that sbatch gets: the one adapter to submitit. One object previews and submits it."""

import logging
import re
import shlex
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlsweep.errors import SchedulerError, UsageError
from rlsweep.launch import offline, scheduler
from rlsweep.launch.cluster import Cluster
from rlsweep.recipe.schema import Recipe
from rlsweep.store.layout import Root

if TYPE_CHECKING:
    from submitit.slurm.slurm import SlurmExecutor

_NEVER = 10**6
"""Time limits after which submitit would give a job up: how often a run is tried again is decided by its task."""
_SRUN = ("--kill-on-bad-exit=1", "--wait=60", "--export=ALL")
"""One task that dies or ends takes the others of the step with it, instead of leaving them to wait for it."""
_DEAF = ("sh", "-c", 'trap "" USR2; exec "$0" "$@"')
"""Starts python with Slurm's notice ignored: one that comes before submitit listens would kill it, and fail the job."""
_JOB_ID = re.compile(r"\bjob (\d+)")


@dataclass(frozen=True)
class Resources:
    """What the job of one run occupies. Runs with equal resources may share an array."""

    nodes: int
    devices: int
    """Accelerators a node; 0: none are asked for."""
    cpus: int | None
    """CPUs a node; None: what the site gives."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """One job, or one job array, as it would be submitted."""

    cluster: Cluster
    resources: Resources
    root: Root
    name: str
    """Name of the job."""
    folder: Path
    """Where pickles and the output of Slurm and srun lie."""
    count: int = 1
    """Elements of the array; a single one is a plain job."""
    parallel: int | None = None
    """Most elements at a time; None: all."""
    follows: bool = False
    """Whether it starts after other jobs, whose ids are told on the command line: nobody can preview one that does not
    exist yet."""
    hold: bool = True
    """Whether the job waits until it is released: then it can't start before all about it is on disk."""

    @property
    def text(self) -> str:
        """What sbatch gets, byte for byte."""
        executor = self._executor
        return str(executor._make_submission_file_text(executor._submitit_command_str, ""))

    def submit(self, calls: Sequence[Callable[[], object]], after: Sequence[str] = ()) -> str:
        """Submit a callable for each element, to start once the jobs `after` are over; the id of the job.

        The callables are pickled. On any error the folder holds nothing of it any more, but the job may have been
        accepted: the caller looks its name up. `Refused` where the scheduler says no, SchedulerError where it can't be
        reached.
        """
        from submitit.core.utils import DelayedSubmission, JobPaths

        assert len(calls) == self.count
        self.folder.mkdir(parents=True, exist_ok=True)
        pickles = [self.folder / f"{uuid.uuid4().hex}.pkl" for _ in calls]
        file = self.folder / "submission.sh"
        following = [f"--dependency=afterany:{':'.join(after)}"] if after else []
        try:
            for path, each in zip(pickles, calls, strict=True):
                delayed = DelayedSubmission(each)
                delayed.set_timeout(self.cluster.minutes, _NEVER)
                delayed.dump(path)
            file.write_text(self.text, encoding="utf-8")
            said = scheduler.call(["sbatch", *following, str(file)], retry=False)
            found = _JOB_ID.search(said)
            if found is None:
                raise SchedulerError(f"sbatch named no job; it said: {said.strip()!r}")
        except BaseException:
            for path in (*pickles, file):
                path.unlink(missing_ok=True)
            raise
        job = found[1]
        for index, path in enumerate(pickles):
            paths = JobPaths(self.folder, job_id=job if self.count == 1 else f"{job}_{index}")
            paths.move_temporary_file(path, "submitted_pickle")
        JobPaths(self.folder, job_id=job).move_temporary_file(file, "submission_file")
        return job

    @cached_property
    def _executor(self) -> "SlurmExecutor":
        return _make_executor(self)


def resources(recipe: Recipe, cluster: Cluster) -> Resources:
    """What a run's job occupies on a cluster. UsageError where its devices can't be spread evenly over nodes."""
    execution = recipe.execution
    if execution.device == "cpu":
        return Resources(execution.devices, 0, cluster.cpus_per_node or execution.threads)
    per_node = cluster.gpus.per_node
    if per_node is None:
        raise UsageError(
            f"recipe '{recipe.name}' needs {execution.devices} GPUs and profile {cluster.name} says of no GPUs; "
            "set gpus.per_node there, or with --cluster-set gpus.per_node=N"
        )
    nodes = -(-execution.devices // per_node)
    each = -(-execution.devices // nodes)
    if each * nodes != execution.devices:
        raise UsageError(
            f"execution.devices: {execution.devices} can't be spread evenly over {nodes} nodes of {per_node} GPUs "
            f"(profile {cluster.name}); valid near it: {each * nodes} or {(each - 1) * nodes}"
        )
    return Resources(nodes, each, cluster.cpus_per_node)


def occupied(recipe: Recipe, cluster: Cluster) -> int:
    """Devices that a run's job keeps from all others: those it trains on, with `exclusive` all of its nodes'."""
    devices, per_node = recipe.execution.devices, cluster.gpus.per_node
    if recipe.execution.device == "cpu" or not cluster.exclusive or per_node is None:
        return devices
    return -(-devices // per_node) * per_node


def refuse_path(path: Path) -> None:
    """UsageError where Slurm or submitit would take parts of a path for placeholders."""
    wrong = next((char for char in "%\\\n" if char in str(path)), None)
    if wrong is not None:
        raise UsageError(f"{path}: Slurm takes {wrong!r} in a path for a placeholder; choose another root with --root")


def wrapped(setup: Sequence[str]) -> list[str]:
    """Setup lines, each of which ends the job with a message where it fails."""
    lines = []
    for number, line in enumerate(setup, 1):
        said = shlex.quote(f"rlsweep: setup line {number} failed: {line}")
        # eval: a line that isn't even valid shell, or is only a comment, is like any other
        lines.append(f"eval {shlex.quote(line)} || {{ printf '%s\\n' {said} >&2; exit 1; }}")
    return lines


def _make_executor(script: Script) -> "SlurmExecutor":
    """submitit's executor with the profile's parameters."""
    from submitit.slurm.slurm import SlurmExecutor

    logging.getLogger("submitit").setLevel(logging.CRITICAL + 1)

    class Executor(SlurmExecutor):
        @classmethod
        def affinity(cls) -> int:
            return 1  # a preview needs no srun

    cluster = script.cluster
    executor = Executor(script.folder, max_num_timeout=_NEVER, python=shlex.join([*_DEAF, *cluster.python]))
    executor.update_parameters(**_parameters(script))
    if script.count > 1:
        executor.parameters["map_count"] = script.count
    return executor


def _parameters(script: Script) -> dict[str, Any]:
    cluster, needed = script.cluster, script.resources
    # Named here, for submitit takes the signal from the environment of this process, which doesn't reach the job.
    more: dict[str, Any] = {"requeue": True, "signal": f"USR2@{cluster.notice_s}"}
    if script.hold:
        more["hold"] = True
    return {
        "job_name": script.name,
        "partition": cluster.partition,
        "account": cluster.account,
        "qos": cluster.qos,
        "constraint": cluster.constraint,
        "exclude": cluster.exclude,
        "nodes": needed.nodes,
        "ntasks_per_node": 1,
        "cpus_per_task": needed.cpus,
        "mem": _memory(cluster.memory_gb),
        "exclusive": cluster.exclusive or None,
        "time": cluster.minutes,
        "wckey": None,  # submitit's own is refused where wckeys are enforced
        "array_parallelism": script.parallel or script.count,
        "setup": _setup(script),
        "srun_args": [*_SRUN, *cluster.srun],
        "additional_parameters": {**more, **_gpus(cluster, needed)},
    }


def _gpus(cluster: Cluster, needed: Resources) -> dict[str, str]:
    """The one flag by which a site has its GPUs asked for."""
    if not needed.devices:
        return {}
    kind = f"{cluster.gpus.type}:" if cluster.gpus.type else ""
    if cluster.gpus.style == "gpus":
        return {"gpus": f"{kind}{needed.devices * needed.nodes}"}
    if cluster.gpus.style == "gres":
        return {"gres": f"gpu:{kind}{needed.devices}"}
    return {"gpus-per-node": f"{kind}{needed.devices}"}


def _memory(gb: float | None) -> str | None:
    if gb is None:
        return None
    return f"{round(gb)}G" if gb == round(gb) and gb else f"{round(gb * 1024)}M" if gb else "0"


def _setup(script: Script) -> list[str]:
    variables: Mapping[str, str] = {
        **offline.environment(script.root.path, script.cluster.environment),
        "PYTHONUNBUFFERED": "1",
        "SUBMITIT_LOG_LEVEL": "INFO",  # whatever the shell that submits has it say
        **script.cluster.environment,
    }
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    if script.resources.cpus is not None:
        lines.append(f"export SRUN_CPUS_PER_TASK={script.resources.cpus}")  # srun doesn't take it from sbatch (22.05)
    return lines + wrapped(script.cluster.setup)

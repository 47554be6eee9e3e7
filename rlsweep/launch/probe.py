"""`rlsweep cluster probe`: one short job of a real profile that looks, on each of its nodes, for what would break runs.

It is submitted as runs' jobs are, by the same script, and started by the same interpreter. Each node writes what it
found to `probes/<token>` under the root; this process waits, answers about its clock, and reads.
"""

import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from rlsweep.errors import EXIT_INTERRUPTED, RlsweepError, SchedulerError, UsageError
from rlsweep.launch import pending, queue, scheduler
from rlsweep.launch.cluster import Cluster
from rlsweep.launch.job import tail
from rlsweep.launch.notice import Notice
from rlsweep.launch.queue import Job
from rlsweep.launch.ranks import here, meeting_point
from rlsweep.launch.scheduler import Refused
from rlsweep.launch.script import Resources, Script, refuse_path, resources
from rlsweep.launch.stop import Stop
from rlsweep.launch.submit import require_own
from rlsweep.recipe.resolved import dump
from rlsweep.recipe.schema import Recipe
from rlsweep.store.files import write_json, write_text
from rlsweep.store.layout import Root
from rlsweep.store.probes import (
    Finding,
    ProbeFolder,
    Report,
    Request,
    code_hash,
    from_lines,
    probe_folder,
    read_report,
    write_request,
)

MINUTES = 10
"""Time limit of the job, unless the profile's is shorter."""

_NOTICE_S = 10
_SRUN = ("--kill-on-bad-exit=0", "--wait=0")
"""A node that is done, or whose interpreter doesn't start, takes no other along."""
_POLL_S = 0.5
_SOON_S, _ASK_S, _SELDOM_S = 60.0, 3.0, 30.0
"""The scheduler is asked every 3 s for a minute, then every 30 s."""
_SETTLE_S, _SILENT_S = 30.0, 3.0
"""So long after the job's end a report may still come in over a network file system; the shorter one where the job
failed and no node has written anything, as when its setup fails."""
_LOG_LINES = 12
_SAYS_LITTLE = re.compile(r"^srun: error: \S+: tasks? |^srun: (Job step|Force) |STEP \S+ ON |^submitit INFO")
_HINTS = {
    "No module named": "; rlsweep, with all it needs, must be installed for the job's interpreter (key interpreter)",
    "exec: ": "; the job's interpreter must exist on the node (key interpreter)",
}
"""What Python or the shell that starts it says, and what to do about it."""


class Interrupted(RlsweepError):
    """The probe was stopped, and its job cancelled."""

    exit_code = EXIT_INTERRUPTED


@dataclass(frozen=True)
class NodeFindings:
    """What is known of one node of the job."""

    node: str
    """As Slurm names it, `node <rank>` where that isn't known."""
    host: str | None
    """Its own name, None where it never reported."""
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Result:
    """What a probe found."""

    job: str
    folder: Path
    """What the nodes wrote, and the job's own output."""
    state: str
    """Slurm's name for how the job ended; COMPLETED as soon as all nodes have reported."""
    nodes: tuple[NodeFindings, ...]
    log: tuple[str, ...]
    """Last lines of the output of nodes that found nothing out."""

    @property
    def failed(self) -> bool:
        return any(each.verdict == "failed" for node in self.nodes for each in node.findings)


@dataclass(frozen=True)
class Look:
    """What the probe's job does, one task a node."""

    folder: str

    def __call__(self) -> None:
        """Have the checks done by the job's interpreter; rank 0 first says where all can meet, as it does for runs."""
        with Notice() as notice:
            place = here()
            folder = ProbeFolder(Path(self.folder))
            if place.rank == 0 and place.world > 1:
                address, port = meeting_point(place)
                folder.start(place.restart).mkdir(exist_ok=True)
                write_json(folder.start(place.restart) / "meet.json", {"address": address, "port": port})
            command = [sys.executable, "-m", "rlsweep.train.probe", self.folder]
            command += ["--rank", str(place.rank), "--start", str(place.restart)]
            del notice  # held back: the checks are cut off by the time limit, and their report stands as far as it came
            subprocess.run(command, stdin=subprocess.DEVNULL, check=False)


def probe(cluster: Cluster, root: Root, nodes: int | None, recipe: Recipe | None, say: Callable[[str], None]) -> Result:
    """Submit the job, wait until all nodes have reported or the job is over, and say what they found.

    `nodes` is by default as many as a run of `recipe` takes, else 1; `say` gets lines for people while it waits.
    UsageError where the profile is local or can't hold the recipe, or the root is another user's; Refused with the
    scheduler's words where it takes no such job; SchedulerError where it can't be reached; Interrupted, with the job
    cancelled, on Ctrl-C.
    """
    if cluster.executor != "slurm":
        raise UsageError(f"profile {cluster.name} has executor: local: runs stay on this machine, no job is submitted")
    refuse_path(root.path)
    require_own(root)
    needed = _resources(cluster, nodes, recipe)
    token = secrets.token_hex(5)
    folder = probe_folder(root, token)
    folder.path.mkdir(parents=True)
    if recipe is not None:
        write_text(folder.recipe, dump(recipe))
    write_request(
        folder,
        Request(
            nodes=needed.nodes,
            devices=needed.devices,
            cpus=needed.cpus,
            memory_gb=cluster.memory_gb,
            engine=recipe.execution.engine if recipe else None,
            host=socket.gethostname(),
            version=metadata.version("rlsweep"),
            code=code_hash(),
        ),
    )
    script = Script(
        cluster=replace(
            cluster,
            minutes=min(cluster.minutes, MINUTES),
            notice_s=min(cluster.notice_s, _NOTICE_S),
            srun=(*_SRUN, *cluster.srun),
        ),
        resources=needed,
        root=root,
        name=f"rlsweep-probe:{token}",
        folder=folder.jobs,
        hold=False,
    )
    with Stop() as stop:
        try:
            job = script.submit([Look(str(folder.path))])
            say(f"job {job} submitted: {needed.nodes} node(s), at most {script.cluster.minutes} minutes, {folder.path}")
            return _Waiting(folder, job, needed.nodes, stop, say).work()
        except Refused as error:
            if not stop.asked:  # Ctrl-C reaches sbatch as well
                shutil.rmtree(folder.path, ignore_errors=True)
                raise RlsweepError(
                    f"Slurm takes no such job: {error}; what fits is told by: rlsweep cluster check {cluster.name}"
                ) from None
            raise Interrupted("stopped while the job was submitted; it is cancelled if it was taken") from None
        finally:
            if stop.asked:
                _cancel(script.name)


def _resources(cluster: Cluster, nodes: int | None, recipe: Recipe | None) -> Resources:
    if recipe is None:
        return Resources(nodes or 1, cluster.gpus.per_node or 0, cluster.cpus_per_node)
    needed = resources(recipe, cluster)
    return replace(needed, nodes=nodes) if nodes else needed


def _cancel(name: str) -> None:
    """End the probe's own job, by its name: it is known before the job's id is."""
    with suppress(Refused):  # it is over
        scheduler.call(["scancel", f"--user={os.getuid()}", f"--name={name}"])


@dataclass
class _Waiting:
    folder: ProbeFolder
    job: str
    world: int
    stop: Stop
    say: Callable[[str], None]
    told: str = ""
    seen: Job | None = None
    """The job when the scheduler was last asked; what it was before where the scheduler has forgotten it."""

    def work(self) -> Result:
        """Until all nodes have reported, or the job is over."""
        began = time.monotonic()
        asked, over = began - _ASK_S, None
        while not self.stop.asked:
            now = time.monotonic()
            reports = [read_report(self.folder, rank) for rank in range(self.world)]
            if all(report is not None and not report.pending for report in reports):
                return self._result(reports, "COMPLETED")
            silent = not any(reports) and self.seen is not None and self.seen.state == "FAILED"
            if over is not None and now - over > (_SILENT_S if silent else _SETTLE_S):
                return self._result(reports, self.seen.state if self.seen else queue.UNKNOWN)
            if over is None and now - asked >= (_ASK_S if now - began < _SOON_S else _SELDOM_S):
                asked = now
                over = None if self._is_alive() else now
            self._answer()
            time.sleep(_POLL_S)
        raise Interrupted(f"stopped, and job {self.job} cancelled; what it found so far is in {self.folder.path}")

    def _is_alive(self) -> bool:
        """Whether the scheduler says that the job waits or runs; what changed is told."""
        try:
            found = next((job for job in queue.own_jobs() if job.id == self.job), None)
        except SchedulerError as error:
            if self.stop.asked:  # Ctrl-C reaches squeue as well
                return True
            raise SchedulerError(
                f"{error}; job {self.job} may go on meanwhile, and writes to {self.folder.path}"
            ) from None
        self.seen = found or self.seen
        if found is None or found.state not in queue.LIVING:
            return False
        waits = found.state in queue.WAITING
        text = f"job {self.job} {pending.why(found) if waits else f'is {found.state.lower()} on {found.nodes}'}"
        if text != self.told:
            self.told = text
            self.say(text)
        return True

    def _answer(self) -> None:
        """Tell the nodes that have asked what time it is here."""
        for asked in self.folder.path.glob("start-*/clock-*.json"):
            answer = asked.with_name(f"{asked.stem}-answer.json")
            if not asked.stem.endswith("-answer") and not answer.exists():
                write_json(answer, {"time": time.time()})

    def _result(self, reports: Sequence[Report | None], state: str) -> Result:
        if all(report is not None and not report.pending for report in reports):
            for each in self.folder.path.glob("start-*"):
                shutil.rmtree(each, ignore_errors=True)  # the nodes are done with it
        names = self._unheard(reports)
        nodes = [self._node(rank, report, state, names) for rank, report in enumerate(reports)]
        silent = [rank for rank, report in enumerate(reports) if report is None and not self._printed(rank)]
        return Result(self.job, self.folder.path, state, tuple(nodes), tuple(self._log(silent)))

    def _node(self, rank: int, report: Report | None, state: str, names: list[str]) -> NodeFindings:
        node = report.node if report else names.pop(0) if names else f"node {rank}"
        host = report.host if report else None
        found = list(report.findings) if report else []
        if report is not None and not report.pending:
            return NodeFindings(node, host, tuple(found))
        how = f"the job is over ({state}{f', {self.seen.reason}' if self.seen and self.seen.reason else ''})"
        # Where the root can't be written to from a node, Slurm still keeps what its task prints.
        printed = self._printed(rank)
        if len(printed) > len(found):
            found = [*printed, Finding("report", "failed", f"could not be written to {self.folder.path} from there")]
        elif report is not None:
            found += [Finding(name, "failed", f"not done: {how}") for name in report.pending]
        else:
            found = [Finding("report", "failed", f"never reported, {how}; {self._why(rank)}")]
        return NodeFindings(node, host, tuple(found))

    def _printed(self, rank: int) -> list[Finding]:
        try:
            text = (self.folder.jobs / f"{self.job}_{rank}_log.out").read_text(errors="replace")
        except OSError:
            return []
        return list({each.check: each for each in from_lines(text.splitlines())}.values())

    def _why(self, rank: int) -> str:
        """What the output of a task that never reported says about it."""
        lines = self._log([rank]) or self._log([0])
        said = [line for line in lines if not _SAYS_LITTLE.search(line)]
        if not said:
            return f"there is no output of it in {self.folder.jobs}: can the node write there?"
        hint = next((hint for words, hint in _HINTS.items() if words in said[-1]), "")
        return f"it said: {said[-1]}{hint}"

    def _unheard(self, reports: Sequence[Report | None]) -> list[str]:
        """Names of the nodes that never reported, as far as they are known."""
        if None not in reports or self.seen is None or not self.seen.nodes:
            return []
        try:
            names = scheduler.call(["scontrol", "show", "hostnames", self.seen.nodes]).split()
        except RlsweepError:
            return []
        heard = {report.node for report in reports if report is not None}
        return [name for name in names if name not in heard]

    def _log(self, ranks: Iterable[int]) -> list[str]:
        """Last lines that Slurm kept of these tasks; rank 0's are the script's, too."""
        files = [self.folder.jobs / f"{self.job}_{rank}_log.{end}" for rank in ranks for end in ("out", "err")]
        return [line for file in files for line in tail(file, _LOG_LINES)]

"""What the scheduler of this site allows, and where a profile asks for something else.

Texts of scontrol and sinfo are read as Slurm 20 to 25 write them: `(null)` and the name of a `none` plugin both mean
that there is nothing, and keys that a version doesn't print have Slurm's own defaults.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from rlsweep.launch.cluster import Cluster
from rlsweep.launch.profile import DAY, clock
from rlsweep.launch.scheduler import call
from rlsweep.recipe.fields import nearest
from rlsweep.store.jobs import Accounting

_GPU = re.compile(r"gpu:(?:(?P<type>[^:()]+):)?(?P<count>\d+)")
_LIMIT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):\d+")
_PREEMPTING = ("REQUEUE", "CANCEL")
_NO_GPU_FLAGS = ("select/linear", "select/cons_res")
_MB = 1024
"""Of a GB, as Slurm counts."""


@dataclass(frozen=True)
class Kind:
    """Nodes of a partition that are alike."""

    nodes: int
    cpus: int
    memory_mb: int
    gpus: tuple[str, ...]
    """GRES of each, e.g. `gpu:h100:8`."""

    def count(self, type_: str | None) -> int:
        """GPUs of a node that are of a type; None: of any."""
        found = [match for gres in self.gpus if (match := _GPU.fullmatch(gres))]
        return sum(int(match["count"]) for match in found if type_ in (None, match["type"]))


@dataclass(frozen=True)
class Partition:
    name: str
    default: bool
    minutes: int | None
    """Longest time limit; None: none."""
    nodes: int
    most_nodes: int | None = None
    """Most nodes of a job; None: all."""
    state: str = "UP"
    grace_s: int = 0
    """Seconds between a preempted job's SIGTERM and its end, before KillWait."""
    preempted: str = "OFF"
    """What becomes of a preempted job: REQUEUE, CANCEL, SUSPEND, GANG or OFF."""
    kinds: tuple[Kind, ...] = ()

    @property
    def gpus(self) -> tuple[str, ...]:
        """GRES of its nodes, e.g. `gpu:h100:8`."""
        return tuple(dict.fromkeys(gres for kind in self.kinds for gres in kind.gpus))

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """Names of GPU types, in the site's spelling."""
        types = [match["type"] for gres in self.gpus if (match := _GPU.fullmatch(gres)) and match["type"]]
        return tuple(dict.fromkeys(types))


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
    select: str = "select/cons_tres"
    """How nodes are shared out; only cons_tres knows --gpus and --gpus-per-node."""


@dataclass(frozen=True)
class Problem:
    """What of a profile doesn't fit the site. With an error nothing should be submitted."""

    severity: Literal["error", "warning"]
    key: str
    """The profile's key that would change it."""
    message: str


def ask() -> Site:
    """Three calls. SchedulerError where the controller can't be reached."""
    return read(
        call(["scontrol", "show", "config"]),
        call(["scontrol", "show", "partition", "--oneliner"]),
        call(["sinfo", "--noheader", "--exact", "--format=%P|%D|%c|%m|%G"]),
    )


def read(config: str, partitions: str, nodes: str) -> Site:
    """The site as three texts tell it: of `scontrol show config`, `scontrol show partition`, `sinfo`."""
    told = _config(config)
    parameters = told.get("SlurmctldParameters", "").lower().split(",")
    preempted = told.get("PreemptMode", "OFF") if not _none(told.get("PreemptType")) else "OFF"
    kinds: dict[str, list[Kind]] = {}
    for line in nodes.splitlines():
        if line.count("|") == 4:
            name, *rest = line.strip().split("|")
            kinds.setdefault(name.rstrip("*"), []).append(_kind(*rest))
    return Site(
        cluster=told.get("ClusterName", "?"),
        version=told.get("SLURM_VERSION", "?"),
        max_array_size=_number(told.get("MaxArraySize"), 1001),
        kill_wait_s=_number(told.get("KillWait"), 30),
        accounting=_accounting(told),
        preempt_signal="preempt_send_user_signal" in parameters,
        partitions=tuple(
            _partition(line, preempted, kinds) for line in partitions.splitlines() if line.startswith("PartitionName=")
        ),
        select=told.get("SelectType", Site.select),
    )


def _config(text: str) -> dict[str, str]:
    """Keys and values; of a key that stands twice (once more among a plugin's) the first."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            found.setdefault(key.strip(), value.strip())
    return found


def _none(value: str | None) -> bool:
    return value is None or value in ("", "(null)", "N/A") or value.endswith("/none")


def _number(text: str | None, otherwise: int) -> int:
    """The number that a text begins with (`5 sec`, `32+`)."""
    match = re.match(r"\d+", text or "")
    return int(match[0]) if match else otherwise


def _accounting(told: Mapping[str, str]) -> Accounting:
    if told.get("AccountingStorageType") == "accounting_storage/slurmdbd":
        return "slurmdbd"
    # Others send it away, to a script or a search engine, where sacct doesn't find it.
    return "jobcomp" if told.get("JobCompType") in ("jobcomp/filetxt", "jobcomp/mysql") else "none"


def _partition(line: str, preempted: str, kinds: Mapping[str, list[Kind]]) -> Partition:
    told = dict(word.split("=", 1) for word in line.split() if "=" in word)
    name = told["PartitionName"]
    own = told.get("PreemptMode", preempted)
    return Partition(
        name=name,
        default=told.get("Default") == "YES",
        minutes=_minutes(told.get("MaxTime", "UNLIMITED")),
        nodes=_number(told.get("TotalNodes"), sum(kind.nodes for kind in kinds.get(name, ()))),
        most_nodes=None if told.get("MaxNodes", "UNLIMITED") == "UNLIMITED" else _number(told["MaxNodes"], 0),
        state=told.get("State", "UP"),
        grace_s=_number(told.get("GraceTime"), 0),
        preempted="OFF" if preempted == "OFF" else next((each for each in _PREEMPTING if each in own), "OFF"),
        kinds=tuple(kinds.get(name, ())),
    )


def _kind(nodes: str, cpus: str, memory: str, gres: str) -> Kind:
    """A row of sinfo. What stands in brackets after a GRES (sockets, indices) may hold commas."""
    generic = re.sub(r"\([^)]*\)", "", gres).split(",")
    gpus = tuple(each for each in generic if _GPU.fullmatch(each))
    return Kind(_number(nodes, 0), _number(cpus, 0), _number(memory, 0), gpus)


def _minutes(text: str) -> int | None:
    """`1-00:00:00`, `01:00:00` or `30:00` in minutes; None for UNLIMITED, INFINITE and the like: there is no limit."""
    if not (match := _LIMIT.fullmatch(text)):
        return None
    days, hours, minutes = (int(each or 0) for each in match.groups())
    return days * DAY + hours * 60 + minutes


def problems(cluster: Cluster, site: Site, nodes: int = 1) -> list[Problem]:
    """What of a profile doesn't fit the site, for a run on so many nodes; errors first.

    Slurm refuses some of it in its own words, and leaves jobs over a partition's time limit pending for ever.
    """
    found = [*_of_the_site(cluster, site)]
    names = [each.name for each in site.partitions]
    wanted = (
        cluster.partition.split(",") if cluster.partition else [each.name for each in site.partitions if each.default]
    )
    if not wanted:
        found.append(
            Problem("error", "partition", f"none is named, and the site has no default; valid: {', '.join(names)}")
        )
    for name in wanted:
        if name not in names:
            found.append(
                Problem("error", "partition", f"no partition {name}; valid: {', '.join(names)}{nearest(name, names)}")
            )
    usable = [[*_of_a_partition(cluster, each, site, nodes)] for each in site.partitions if each.name in wanted]
    if any(all(each.severity == "warning" for each in told) for told in usable):
        # Of several partitions Slurm takes the one that fits.
        usable = [[replace(each, severity="warning") for each in told] for told in usable]
    found += dict.fromkeys(each for told in usable for each in told)
    return sorted(found, key=lambda each: each.severity)


def _of_the_site(cluster: Cluster, site: Site) -> Iterator[Problem]:
    if site.accounting == "none":
        yield Problem(
            "warning",
            "executor",
            "the site keeps no record of jobs that are over: how a run ended is told from its folder alone",
        )
    if cluster.notice_s < site.kill_wait_s:
        yield Problem(
            "warning",
            "notice_s",
            f"{cluster.notice_s} s is less than the site leaves a job after its limit anyway (KillWait, "
            f"{site.kill_wait_s} s); a run is told to save no earlier than so",
        )
    if cluster.gpus.per_node and cluster.gpus.style != "gres" and site.select in _NO_GPU_FLAGS:
        flag = cluster.gpus.style.replace("_", "-")
        yield Problem("error", "gpus.style", f"the site ({site.select}) doesn't know --{flag}; valid here: gres")
    if cluster.limits.array is not None and cluster.limits.array > site.max_array_size:
        yield Problem(
            "warning",
            "limits.array",
            f"{cluster.limits.array} is more than the site's MaxArraySize; arrays will hold {site.max_array_size} runs",
        )


def _of_a_partition(cluster: Cluster, partition: Partition, site: Site, nodes: int) -> Iterator[Problem]:
    where = f"partition {partition.name}"
    if partition.state != "UP":  # DOWN takes jobs and starts them later, as in a maintenance; others take none
        severity: Literal["error", "warning"] = "warning" if partition.state == "DOWN" else "error"
        yield Problem(severity, "partition", f"{where} is {partition.state}: it starts no jobs now")
    if partition.minutes is not None and cluster.minutes > partition.minutes:
        limit = f"{where} ends jobs after {clock(partition.minutes)}, and {cluster.time} is asked for"
        if cluster.qos:
            yield Problem("warning", "time", f"{limit}; unless qos {cluster.qos} lifts that, jobs never start")
        else:
            yield Problem("error", "time", f"{limit}: Slurm would refuse the jobs, or leave them pending for ever")
    most = partition.nodes if partition.most_nodes is None else min(partition.nodes, partition.most_nodes)
    if nodes > most:
        yield Problem("error", "partition", f"{where} gives a job at most {most} nodes, and a run needs {nodes}")
    if partition.kinds:
        yield from _of_its_nodes(cluster, partition, nodes)
    yield from _of_preemption(partition, site)


def _of_its_nodes(cluster: Cluster, partition: Partition, nodes: int) -> Iterator[Problem]:
    """What no node has, else what too few nodes have together."""
    gpus, kinds = cluster.gpus, partition.kinds
    cpus, memory = cluster.cpus_per_node or 0, (cluster.memory_gb or 0) * _MB
    none = f"partition {partition.name} has no"
    lacks = []
    if gpus.per_node and gpus.type and gpus.type not in partition.gpu_types:
        types = ", ".join(partition.gpu_types) or "none, its GPUs have no type" if partition.gpus else "none"
        lacks.append(("gpus.type", f"GPU of type {gpus.type}; valid: {types}{nearest(gpus.type, partition.gpu_types)}"))
    elif gpus.per_node and gpus.per_node > max(kind.count(gpus.type) for kind in kinds):
        shown = ", ".join(partition.gpus) or "no GPUs"
        lacks.append(("gpus.per_node", f"node with {gpus.per_node} {gpus.type or 'GPUs'}; its nodes have {shown}"))
    if cpus > (most := max(kind.cpus for kind in kinds)):
        lacks.append(("cpus_per_node", f"node with {cpus} CPUs; at most {most}"))
    if memory > (most := max(kind.memory_mb for kind in kinds)):
        lacks.append(
            ("memory_gb", f"node with {cluster.memory_gb:g} GB; at most {most / _MB:.4g} (0: all of the node)")
        )
    yield from (Problem("error", key, f"{none} {text}") for key, text in lacks)
    fit = [kind for kind in kinds if kind.cpus >= cpus and kind.memory_mb >= memory]
    number = sum(kind.nodes for kind in fit if kind.count(gpus.type) >= (gpus.per_node or 0))
    if not lacks and number < nodes <= partition.nodes:
        text = f"partition {partition.name} has {number} nodes with all that is asked for; a run needs {nodes}"
        yield Problem("error", "partition", text)


def _of_preemption(partition: Partition, site: Site) -> Iterator[Problem]:
    where = f"partition {partition.name}"
    if partition.preempted == "CANCEL":
        text = (
            f"{where} cancels preempted jobs instead of requeueing them: the same `rlsweep ablate` again resumes runs"
        )
        yield Problem("warning", "partition", text)
    if partition.preempted in _PREEMPTING and not site.preempt_signal:
        seconds = partition.grace_s + site.kill_wait_s
        text = (
            f"a job preempted in {where} gets SIGTERM alone, {seconds} s before it is killed "
            "(SlurmctldParameters has no preempt_send_user_signal): a run that saves slower than that "
            "goes on from its last checkpoint"
        )
        yield Problem("warning", "partition", text)

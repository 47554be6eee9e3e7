"""Where runs go: a profile, `slurm/*.yaml` or a file of one's own."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from rlsweep.errors import UsageError
from rlsweep.launch.profile import CHECKS, check_variable, clock
from rlsweep.recipe import shipped
from rlsweep.recipe.fields import nearest
from rlsweep.recipe.nodes import Node, Place, parse_value, read_file

PREFIX = "RLSWEEP_"
"""RLSWEEP_<KEY>, with dots as _, overrides a profile's key."""


@dataclass(frozen=True, kw_only=True)
class Gpus:
    """The GPUs of a node, and in which of Slurm's three ways a site wants them asked for."""

    style: Literal["gpus_per_node", "gres", "gpus"] = "gpus_per_node"
    """How they are asked for: --gpus-per-node=[TYPE:]N, --gres=gpu:[TYPE:]N, or --gpus=[TYPE:]N times the nodes."""
    per_node: int | None = None
    """GPUs of a node: a run's devices are spread over as few nodes as that allows. Null: there are none."""
    type: str | None = None
    """Type of GPU as the site names it (`rlsweep cluster check` lists the names), e.g. h100. Null: any."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much at a time, and how often again."""

    parallel: int | None = None
    """Runs at a time. Slurm: of a job array, --array=0-N%PARALLEL, null: no cap. Local: null means as many as there are
    cores for."""
    array: int | None = None
    """Most runs in one job array. Null: the site's MaxArraySize."""
    retries: int = 20
    """Attempts that a submission may have beyond its first, whatever ended those before (time limit, preemption, lost
    node): what a run may cost at most is known before it is submitted. Two in a row without progress end it sooner."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A profile with its overrides: one run's job on this cluster."""

    name: str
    """The profile's file without `.yaml`."""
    executor: Literal["local", "slurm"]
    """Whether runs are processes of this machine or jobs of Slurm."""
    partition: str | None = None
    """--partition; several as a,b. Null: the site's default."""
    account: str | None = None
    """--account: whose budget is charged. Null: the user's default."""
    qos: str | None = None
    """--qos. Null: the account's default."""
    constraint: str | None = None
    """--constraint: features that the nodes must have, e.g. infiniband."""
    exclude: str | None = None
    """--exclude: nodes that must not be used, e.g. n[3-4],n9."""
    gpus: Gpus = field(default_factory=Gpus)
    cpus_per_node: int | None = None
    """--cpus-per-task, one task a node. Null: for runs on CPU execution.threads, else the site's default."""
    memory_gb: float | None = None
    """--mem: memory of a node in GB of 1024 MB; 0 means all of it. Null: the site's default."""
    exclusive: bool = False
    """--exclusive: no other job on the nodes."""
    minutes: int = 60
    """--time: the key `time`, a limit of one attempt in whole minutes; what is left then goes on in the next."""
    notice_s: int = 120
    """--signal=USR2@N: seconds before the time limit at which a run is told to save."""
    setup: tuple[str, ...] = ()
    """Shell lines of the job before it starts, on its first node. One that fails ends the job."""
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Environment variables of the job, over those of the shell that submits."""
    interpreter: str | None = None
    """Shell words that start python in the job: a path inside the image where `srun` starts a container. Null: the
    python that submits."""
    srun: tuple[str, ...] = ()
    """Arguments of the srun that starts the job's tasks, e.g. --container-image=..."""
    limits: Limits = field(default_factory=Limits)

    @property
    def time(self) -> str:
        """The time limit as d-hh:mm:ss."""
        return clock(self.minutes)

    @property
    def python(self) -> tuple[str, ...]:
        """The words that start python in a job."""
        return (sys.executable,) if self.interpreter is None else tuple(shlex.split(self.interpreter))


@dataclass(frozen=True)
class Setting:
    """A key of a profile with the value that holds, and who states it."""

    key: str
    value: Any
    """As in a profile: the time limit is a text d-hh:mm:ss."""
    origin: str
    """`flag`, the environment variable's name, file:line, or `default`."""


LOCAL = ("executor", "limits.parallel")
"""Keys that a local profile has; the others are options of Slurm."""
_SECTIONS = ("gpus", "limits", "environment")
FIELDS = {"time": "minutes"}
"""Keys whose field of `Cluster` has another name, since it holds another type."""


def load_cluster(source: str, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Cluster:
    """The profile by its shipped name or its file's path, with KEY=VALUE `overrides` and RLSWEEP_* of `environ`.

    `environ` is by default this process's. RecipeError or UsageError where there is no such profile, or it isn't valid.
    """
    name, stated = _read(source, overrides, os.environ if environ is None else environ)
    values = {key: each.value for key, each in stated.items()}
    parts: dict[str, Any] = {
        section: {key.partition(".")[2]: value for key, value in values.items() if key.startswith(f"{section}.")}
        for section in _SECTIONS
    }
    flat = {FIELDS.get(key, key): value for key, value in values.items() if "." not in key and key not in _SECTIONS}
    return Cluster(
        name=name,
        gpus=Gpus(**parts["gpus"]),
        limits=Limits(**parts["limits"]),
        environment=parts["environment"],
        **flat,
    )


def settings(source: str, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> list[Setting]:
    """Every key of the same profile with its value and where it comes from; variables of `environment` one by one."""
    _, stated = _read(source, overrides, os.environ if environ is None else environ)
    local = stated["executor"].value == "local"
    found = []
    for key in CHECKS:
        if local and key not in LOCAL:
            continue
        if key == "environment":
            inside = [(each, stated[each]) for each in stated if each.startswith("environment.")]
            found += [Setting(each, one.value, one.origin) for each, one in inside] or [Setting(key, {}, "default")]
        else:
            one = stated.get(key) or _Stated(_default(key), "default", Place("default"))
            found.append(Setting(key, clock(one.value) if key == "time" else one.value, one.origin))
    return found


@dataclass(frozen=True)
class _Stated:
    value: Any
    origin: str
    place: Place


def _read(source: str, overrides: Sequence[str], environ: Mapping[str, str]) -> tuple[str, dict[str, _Stated]]:
    """The profile's name and what is stated, the strongest last; checked one by one and together."""
    path = shipped.find("profile", source)
    root = read_file(path)
    if not isinstance(root.value, dict):
        raise root.place.error("", f"{root} stands at the top; it must be a map with the key executor")
    if "executor" not in root.value:
        raise Place(str(path)).error("executor", "missing; valid: local, slurm")
    stated: dict[str, _Stated] = {}
    for key, node in root.value.items():
        _state(stated, key, node, f"{path.name}:{node.place.line}")
    local = stated["executor"].value == "local"
    for variable, key in _variables(environ).items():
        # A variable set for all of a person's submissions says nothing about this machine.
        if not local or key in LOCAL:
            _state(stated, key, parse_value(environ[variable], Place(variable)), variable)
    for text in overrides:
        place = Place(f"--cluster-set {text}")
        key, equals, value = text.partition("=")
        if not equals:
            raise place.error("", "it must be KEY=VALUE, as in partition=gpu")
        if key.strip() == "executor":
            raise place.error("executor", "it belongs to the profile's file; choose another profile with --cluster")
        _state(stated, key.strip(), parse_value(value, place), "flag")
    _check_together(stated)
    return path.stem, stated


def _state(stated: dict[str, _Stated], key: str, node: Node, origin: str) -> None:
    """Lay one statement over those before it. A map is a statement of each of its keys."""
    if key in _SECTIONS:
        if not isinstance(node.value, dict | None):
            raise node.place.error(key, f"{node} is not valid; it must be a map")
        if key == "environment":
            for name in [each for each in stated if each.startswith("environment.")]:
                del stated[name]
        for name, each in (node.value or {}).items():
            # In a profile each line is its own origin; a map given by a flag or a variable is one statement.
            line = f"{Path(each.place.source).name}:{each.place.line}" if each.place.line else origin
            _state(stated, f"{key}.{name}", each, line)
        return
    known = check_variable if key.startswith("environment.") else CHECKS.get(key)
    if known is None:
        raise node.place.error(key, f"unknown key; valid: {_valid(key)}{_nearest(key)}")
    stated.pop(key, None)
    stated[key] = _Stated(known(node, key), origin, node.place)


def _variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that are set and mean a key, with that key; an empty one is not set.

    UsageError for one that means no key but nearly does: a slip would send jobs elsewhere without a word. All others
    named RLSWEEP_... have other uses.
    """
    names = {f"{PREFIX}{key.replace('.', '_').upper()}": key for key in (*CHECKS, *_SECTIONS) if key != "executor"}
    found = {}
    for name, value in environ.items():
        if name in names and value.strip():
            found[name] = names[name]
        elif name.startswith(PREFIX) and name not in names:
            near = get_close_matches(name.removeprefix(PREFIX), [each.removeprefix(PREFIX) for each in names], 1, 0.8)
            if name == f"{PREFIX}EXECUTOR":
                raise UsageError(f"{name}: the executor belongs to the profile's file; choose a profile with --cluster")
            if near:
                raise UsageError(f"{name}: no such variable; did you mean {PREFIX}{near[0]}?")
    return found


def _check_together(stated: Mapping[str, _Stated]) -> None:
    if stated["executor"].value == "local":
        for key, each in stated.items():
            if key not in LOCAL:
                raise each.place.error(
                    key, f"it is an option of Slurm; a profile with executor: local has {', '.join(LOCAL)}"
                )
        return
    for key in ("gpus.type", "gpus.style"):
        if key in stated and stated[key].value is not None and "gpus.per_node" not in stated:
            raise stated[key].place.error(
                key, f"{stated[key].value} says which GPUs, but nothing says how many; state gpus.per_node"
            )
    image = [each for each in _value(stated, "srun") if each.startswith("--container-image")]
    if image and _value(stated, "interpreter") is None:
        raise stated["srun"].place.error(
            "srun", f"{image[0]} starts a container, which has its own python; state interpreter, its path in the image"
        )
    minutes, notice = _value(stated, "time"), _value(stated, "notice_s")
    if notice >= minutes * 60:
        # The strongest statement is the one to change, and it stands last.
        key = [each for each in stated if each in ("time", "notice_s")][-1]
        raise stated[key].place.error(
            key, f"the notice ({notice} s) must be shorter than the time limit ({clock(minutes)})"
        )


def _value(stated: Mapping[str, _Stated], key: str) -> Any:
    return stated[key].value if key in stated else _default(key)


def _default(key: str) -> Any:
    owner: Any = {"gpus": Gpus, "limits": Limits}.get(key.partition(".")[0], Cluster)
    name = FIELDS.get(key, key.rpartition(".")[2])
    return next(each.default for each in fields(owner) if each.name == name)


def _valid(key: str) -> str:
    """What may stand where this key stands."""
    head, dot, _ = key.partition(".")
    inside = [each.partition(".")[2] for each in CHECKS if each.startswith(f"{head}.")]
    return ", ".join(inside if dot and inside else dict.fromkeys(each.partition(".")[0] for each in CHECKS))


def _nearest(key: str) -> str:
    same = [each for each in CHECKS if each.rpartition(".")[2] == key.rpartition(".")[2] and each != key]
    return f"; did you mean {same[0]}?" if same else nearest(key, CHECKS)

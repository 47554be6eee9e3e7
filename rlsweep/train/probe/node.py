"""Checks of a node by itself: interpreter, root, space, limits, home, scontrol, vLLM, model and data.

Each returns its verdict and a sentence that says what was found and, unless it is ok, what to do.
"""

import errno
import importlib
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from rlsweep.recipe.resolved import read_resolved
from rlsweep.store.files import describe, sync_folder, write_text
from rlsweep.store.probes import ProbeFolder, Request, Verdict, code_hash

Found = tuple[Verdict, str]

_GB = 1_000_000_000
_SHARED = Path("/dev/shm")  # noqa: S108


@dataclass(frozen=True)
class Here:
    """This node's place in the probe."""

    folder: ProbeFolder
    request: Request
    rank: int
    start: int
    """How often Slurm has started the job before."""

    @property
    def meeting(self) -> Path:
        """Folder in which the nodes of this start of the job try each other."""
        return self.folder.start(self.start)


def interpreter(here: Here) -> Found:
    """Which Python and which rlsweep run in jobs."""
    package = Path(__file__).resolve().parents[2]
    version = metadata.version("rlsweep")
    text = f"{sys.executable}, Python {platform.python_version()}, rlsweep {version} from {package}"
    if version != here.request.version:
        return "failed", f"{text}; {here.request.host} submits with {here.request.version}: install one version on both"
    if code_hash() != here.request.code:
        return "failed", f"{text}; its files differ from those on {here.request.host}: jobs must run the same code"
    return "ok", text


def root(here: Here) -> Found:
    """Write, sync, rename and make folders as runs do."""
    place = here.meeting / f"rank-{here.rank}"
    try:
        place.mkdir(parents=True)
        write_text(place / "file", "first")
        write_text(place / "file", "second")
        (place / "beside").mkdir()
        (place / "beside" / "file").touch()
        (place / "beside").rename(place / "renamed")
        sync_folder(place)
        exclusive = refuses(place / "renamed")
        kept = (place / "file").read_text()
        shutil.rmtree(place)
    except OSError as error:
        what = "is read-only there" if error.errno == errno.EROFS else f"can't be written to ({describe(error)})"
        return "failed", f"{here.folder.root.path} {what}; choose a root that compute nodes write to"
    if not exclusive or kept != "second":
        lost = "mkdir of a folder that exists succeeds" if not exclusive else "a renamed file keeps its old content"
        return "failed", f"{here.folder.root.path}: {lost}; runs rely on it: choose another file system for the root"
    return "ok", f"{here.folder.root.path}: write, sync, rename and mkdir work"


def space(here: Here) -> Found:
    """Room for files and their number, under the root and in the node's own temporary folder."""
    verdict: Verdict = "ok"
    told = []
    for path, least in ((here.folder.root.path, 10 * _GB), (Path(tempfile.gettempdir()), _GB)):
        state = os.statvfs(path)
        free, files = state.f_bavail * state.f_frsize, state.f_favail
        told.append(f"{path}: {free / _GB:.1f} GB{f' and {files:,} files' if state.f_files else ''} free")
        if free < least or (state.f_files and files < 10_000):
            verdict = "warning"
    more = "; quotas don't show here" if verdict == "ok" else "; that is little: free some, or use another place"
    return verdict, "; ".join(told) + more


def limits(here: Here) -> Found:
    """CPUs and memory against what was asked for, shared memory, open files."""
    cpus, memory = len(os.sched_getaffinity(0)), memory_limit() / 2**30
    shared = os.statvfs(_SHARED) if _SHARED.is_dir() else None
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    size = shared.f_bavail * shared.f_frsize / 2**30 if shared else 0.0
    told = [f"{cpus} CPUs", f"{memory:.1f} GB memory", f"{size:.1f} GB in /dev/shm", f"{files} open files"]
    lacks = []
    if here.request.cpus is not None and cpus < here.request.cpus:
        lacks.append(f"{here.request.cpus} CPUs were asked for: see cpus_per_node, and --cpu-bind in srun")
    if here.request.memory_gb and memory < 0.95 * here.request.memory_gb:
        lacks.append(f"{here.request.memory_gb:g} GB were asked for: see memory_gb")
    if size < 1 and (here.request.devices or here.request.engine == "vllm"):
        lacks.append("less than 1 GB of shared memory is too little for NCCL and vLLM: in a container, raise it")
    if files != resource.RLIM_INFINITY and files < 4096:
        lacks.append("few open files: add `ulimit -n 65536` to setup")
    return ("warning", "; ".join([", ".join(told), *lacks])) if lacks else ("ok", ", ".join(told))


def home(here: Here) -> Found:
    """Whether $HOME can be written to: nothing of ours is, but some libraries try."""
    path = Path(os.environ.get("HOME") or "~").expanduser()
    try:
        with tempfile.TemporaryFile(dir=path):
            return "ok", f"{path} can be written to; runs don't"
    except OSError as error:
        return "ok", f"{path} can't be written to ({(error.strerror or '').lower()}); runs don't need it"


def scontrol(here: Here) -> Found:
    """Whether a job can put itself back in the queue before its time limit."""
    need = "runs put themselves back in the queue with it and would end at their time limit"
    if shutil.which("scontrol") is None:
        return (
            "failed",
            f"there is no scontrol on PATH, and {need}: have setup, or the container, provide Slurm's commands",
        )
    job = os.environ.get("SLURM_JOB_ID", "")
    done = subprocess.run(
        ["scontrol", "show", "job", job], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        return "failed", f"scontrol doesn't reach the controller from here ({said[-1]}), and {need}"
    return "ok", f"job {job} can be put back in the queue from here"


def vllm(here: Here) -> Found:
    """Whether the engine can be imported, where it is needed."""
    if here.request.engine != "vllm":
        return "ok", "not needed" + ("" if here.request.engine else ": no recipe was named")
    importlib.import_module("vllm")
    return "ok", f"vLLM {metadata.version('vllm')} can be imported"


def load(here: Here) -> Found:
    """Whether model and data are there for a process that may not ask the hub."""
    if not here.folder.recipe.exists():
        return "ok", "not tried: no recipe was named (--recipe)"
    from rlsweep.recipe.model import Embedded
    from rlsweep.train.probe.load import is_made, load

    recipe = read_resolved(here.folder.recipe)
    if isinstance(recipe.model, Embedded) and not is_made(recipe, here.folder.root):
        return "ok", "the embedded model is not made yet; the first run, or rlsweep fetch, makes it"
    found = load(recipe, here.folder.root)
    data = f", data: {found['data']['files']} files in {found['data']['folder']}" if found["data"] else ""
    model = found["model"]
    return "ok", f"{model['architecture']} with {model['vocabulary']} tokens from {model['folder']}{data}"


def memory_limit() -> float:
    """Bytes of memory that this process may use: the machine's, or less where a control group says so."""
    least = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = Path("/sys/fs/cgroup/memory" if controllers else "/sys/fs/cgroup")
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        below = top / path.lstrip("/")
        for folder in (below, *(each for each in below.parents if each.is_relative_to(top))):
            try:
                least = min(least, float((folder / name).read_text()))
            except (OSError, ValueError):  # no such file at the top, or `max`
                continue
    return least


def refuses(path: Path) -> bool:
    """Whether a folder can't be made because it is there already."""
    try:
        path.mkdir()
    except FileExistsError:
        return True
    return False

"""Where a run's numbers come from: the code, the packages and the machine of an attempt (`provenance.json`).

Environment variables and git remotes are never recorded: both may hold credentials.
"""

import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("rlsweep", "torch", "transformers", "accelerate", "numpy", "safetensors", "vllm")
DIFF_LIMIT = 200_000
"""Most bytes of a dirty diff that are kept."""

_GIT_SECONDS = 10.0


def collect(threads: int, device: str) -> dict[str, Any]:
    """Provenance of this process, ready for JSON.

    `threads` are the trainer's CPU threads, `device` is "cpu" or "cuda" (an index may follow). Keys: git {commit,
    dirty, diff}, packages {name: version} of those installed, python, host, platform, devices {kind, name, count},
    threads, started (unix seconds). Outside a git repository, or without git, commit, dirty and diff are None.
    """
    return {
        "git": _git(),
        "packages": _packages(),
        "python": platform.python_version(),
        "host": platform.node(),
        "platform": platform.platform(),
        "devices": _devices(device),
        "threads": threads,
        "started": time.time(),
    }


def _packages() -> dict[str, str]:
    """Versions of the packages that decide a run's numbers; those that aren't installed are left out."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _devices(device: str) -> dict[str, Any]:
    if device.startswith("cuda"):
        import torch

        return {"kind": "cuda", "name": torch.cuda.get_device_name(), "count": torch.cuda.device_count()}
    count = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    return {"kind": "cpu", "name": _cpu_name(), "count": count}


def _cpu_name() -> str:
    # platform.processor() is empty on most Linux systems.
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _git() -> dict[str, Any]:
    """Commit, dirty flag and diff of the repository that holds this package's source, else of the one we stand in."""
    folder = _repository()
    commit = _ask_git(folder, "rev-parse", "--verify", "HEAD") if folder else None
    if folder is None or commit is None:
        return {"commit": None, "dirty": None, "diff": None}
    changes = _ask_git(folder, "status", "--porcelain")
    return {
        "commit": commit.strip(),
        "dirty": None if changes is None else bool(changes.strip()),
        "diff": _ask_git(folder, "diff", "--no-color", "--no-ext-diff", "--no-textconv", "HEAD"),
    }


def _repository() -> Path | None:
    source = Path(__file__).resolve()
    # An environment inside somebody's repository holds our files without tracking them: that repository isn't ours.
    tracked = _ask_git(source.parent, "ls-files", "--error-unmatch", source.name)
    folder = source.parent if tracked is not None else Path.cwd()
    top = _ask_git(folder, "rev-parse", "--show-toplevel")
    return None if top is None else Path(top.rstrip("\n"))


def _ask_git(folder: Path, *words: str) -> str | None:
    """What git prints, cut at DIFF_LIMIT bytes; None where git is missing, refuses or doesn't answer in time."""
    command = ["git", "-C", str(folder), *words]
    # Without optional locks, runs that start together don't fight over the repository's index.
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        answer = subprocess.run(command, capture_output=True, env=environment, timeout=_GIT_SECONDS, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    if answer.returncode != 0:
        return None
    text = answer.stdout
    if len(text) > DIFF_LIMIT:
        kept = text[:DIFF_LIMIT].rpartition(b"\n")[0]
        text = kept + f"\n[cut after {len(kept)} of {len(text)} bytes]\n".encode()
    return text.decode("utf-8", errors="replace")

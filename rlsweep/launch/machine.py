"""What this machine has, and what a recipe misses on it. Asks the machine, never torch."""

import os
import shutil
from pathlib import Path

from rlsweep.errors import UsageError
from rlsweep.launch.cluster import Cluster
from rlsweep.launch.script import resources
from rlsweep.recipe.schema import Recipe
from rlsweep.recipe.task import Registers


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def missing(recipe: Recipe, cluster: Cluster) -> str | None:
    """In one line, what the recipe needs that can't be had there and what to try; None where it can run.

    With Slurm this is the machine that submits: it needs no GPU, the nodes are the site's.
    """
    lacks, later = [], []
    slurm = cluster.executor == "slurm"
    if slurm:
        if not _has_slurm():
            lacks.append("there is no sbatch here")
        try:
            if resources(recipe, cluster).devices > 1 and recipe.execution.engine == "local":
                later.append("no local engine on more than one device a node")
        except UsageError as error:
            lacks.append(str(error))
    elif recipe.execution.device == "cuda" and not _has_gpu():
        lacks.append(
            "there is a Slurm here (jobs go there with --cluster NAME) but no GPU"
            if _has_slurm()
            else "there is neither a GPU nor Slurm here"
        )
    if recipe.execution.engine == "vllm":
        later.append("no vLLM engine")
    if not isinstance(recipe.task, Registers):
        later.append(f"no task '{recipe.task.type}'")
    if later:
        lacks.append(f"this version has {' and '.join(later)}")
    if not lacks:
        return None
    where = f"with profile {cluster.name}" if slurm else "on this machine"
    return f"recipe '{recipe.name}' can't run {where}: {', and '.join(lacks)}; try --scale tiny"


def _has_gpu() -> bool:
    return Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi") is not None


def _has_slurm() -> bool:
    return shutil.which("sbatch") is not None

"""What this machine has, and what a recipe misses on it. Asks the machine, never torch."""

import os
import shutil
from pathlib import Path

from rlsweep.recipe.schema import Recipe
from rlsweep.recipe.task import Registers


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def missing(recipe: Recipe) -> str | None:
    """In one line, what the recipe needs that can't be had here and what to try; None where it can run."""
    lacks = []
    if recipe.execution.device == "cuda" and not _has_gpu():
        lacks.append("there is a Slurm here but no GPU" if _has_slurm() else "there is neither a GPU nor Slurm here")
    later = ["no vLLM engine"] if recipe.execution.engine == "vllm" else []
    if not isinstance(recipe.task, Registers):
        later.append(f"no task '{recipe.task.type}'")
    if later:
        lacks.append(f"this version has {' and '.join(later)}")
    if not lacks:
        return None
    return f"recipe '{recipe.name}' can't run on this machine: {', and '.join(lacks)}; try --scale tiny"


def _has_gpu() -> bool:
    return Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi") is not None


def _has_slurm() -> bool:
    return shutil.which("sbatch") is not None

"""Models and data sets of the hub that lie in a cache of this machine, found without asking anyone."""

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Literal

from rlsweep.errors import RecipeError
from rlsweep.recipe.key import as_local

Kind = Literal["model", "dataset"]

_WEIGHTS = (
    ("model.safetensors", "model.safetensors.index.json"),
    ("pytorch_model.bin", "pytorch_model.bin.index.json"),
)
"""Weights in one file, or the index of their files, in the order in which transformers looks for them."""

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)


def find_model(source: str, revision: str | None) -> Path | None:
    """Folder of a model; None where it must be asked for at the hub. RecipeError where that may not be done.

    A hub name is looked up only where this process is offline, as every job is: elsewhere a branch may have moved.
    """
    local = local_path(source)
    if local is not None or not offline():
        return local
    check_name(source, "model.path")
    folder = staged(source, revision or "main")
    if folder is None:
        raise RecipeError(
            f"model.path: '{source}' at revision {revision or 'main'} was not fetched to {cache_folder()}, and the hub "
            "may not be asked here (HF_HUB_OFFLINE); on the login node: rlsweep fetch RECIPE, with the same root"
        )
    return folder


def local_path(source: str) -> Path | None:
    """The file or folder that a text means, None where it is a hub's name."""
    return as_local(source) or (Path(source) if Path(source).exists() else None)


def check_name(source: str, field: str) -> None:
    """RecipeError where a text can't be the name of a hub repository."""
    if not _NAME.fullmatch(source):
        raise RecipeError(
            f"{field}: {source!r} is neither a file or folder here nor the name of a hub repository (owner/name)"
        )


def staged(name: str, revision: str, kind: Kind = "model", cache: Path | None = None) -> Path | None:
    """Folder of a hub repository at a revision (a branch or a commit), None where the cache doesn't hold it.

    The cache is by default that of this process. The folder may lack files: who loads from it must say what it needs.
    """
    repository = (cache or cache_folder()) / f"{kind}s--{name.replace('/', '--')}"
    try:
        commit = (repository / "refs" / revision).read_text().strip()
    except OSError:
        commit = revision
    folder = repository / "snapshots" / commit
    return folder if commit and folder.is_dir() else None


def weight_files(folder: Path, names: Collection[str]) -> list[str]:
    """Which of these names hold a model's weights: safetensors, or pickles where there is nothing else.

    `folder` holds the index, where there is one. RecipeError where one is missing.
    """
    for whole, index in _WEIGHTS:
        if whole in names:
            return [whole]
        if index in names:
            found = sorted(set(json.loads((folder / index).read_bytes())["weight_map"].values()))
            absent = [name for name in found if name not in names]
            if absent:
                raise RecipeError(f"model.path: {folder / index} names {absent[0]}, which is not there")
            return found
    raise RecipeError(
        f"model.path: {folder} holds no weights that can be loaded; {' or '.join(_WEIGHTS[0])} is needed, there is "
        f"{', '.join(sorted(names)[:8]) or 'nothing'}"
    )


def cache_folder() -> Path:
    """Where huggingface_hub keeps what it fetched: it reads HF_HUB_CACHE and HF_HOME when it is first imported."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def offline() -> bool:
    """Whether this process may not ask the hub (HF_HUB_OFFLINE), as no job may."""
    from huggingface_hub import is_offline_mode

    return is_offline_mode()

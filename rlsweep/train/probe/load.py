"""Load model and data of a recipe as a run would, without asking a hub."""

import os
from pathlib import Path
from typing import Any

from rlsweep.errors import RecipeError
from rlsweep.recipe.key import embedded_identity
from rlsweep.recipe.model import Embedded
from rlsweep.recipe.schema import Recipe
from rlsweep.recipe.task import Registers
from rlsweep.store.files import read_json
from rlsweep.store.layout import Root


def load(recipe: Recipe, root: Root) -> dict[str, Any]:
    """Load configuration and tokenizer of a recipe's model, and look for its weights and its data.

    RecipeError where something is missing. An embedded model is made if it isn't there.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers import AutoConfig, AutoTokenizer
    from transformers.utils import logging

    from rlsweep.model.hub import find_model, weight_files

    logging.disable_progress_bar()
    if isinstance(recipe.model, Embedded):
        from rlsweep.train.warm_start import model_source

        folder: Path | None = Path(model_source(recipe, root.models)[0])
    else:
        folder = find_model(recipe.model.path, recipe.model.revision)
    if folder is None:
        raise RecipeError("model.path: this process may ask the hub, so it can't tell what a job would find")
    if not folder.is_dir():
        raise RecipeError(f"model.path: {folder}: there is no such folder here")
    weight_files(folder, [each.name for each in folder.glob("*") if each.exists()])
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RecipeError(f"model.path: {folder} holds no model with a tokenizer: {first}") from None
    if tokenizer.eos_token_id is None:
        raise RecipeError(f"model.path: the tokenizer in {folder} names no end-of-sequence token")
    found: dict[str, Any] = {
        "model": {"folder": str(folder), "architecture": config.model_type, "vocabulary": len(tokenizer)},
        "data": None,
    }
    if not isinstance(recipe.task, Registers):
        found["data"] = _data(recipe.task.dataset, recipe.task.revision)
    return found


def is_made(recipe: Recipe, root: Root) -> bool:
    """Whether the embedded model of a recipe is in the root."""
    leaves = dict(embedded_identity(recipe))
    return any(read_json(note).get("leaves") == leaves for note in root.models.glob("embedded-*/made-from.json"))


def _data(name: str, revision: str) -> dict[str, Any]:
    from rlsweep.model.hub import cache_folder, local_path, staged

    folder = local_path(name) or staged(name, revision, "dataset")
    if folder is None or not folder.exists():
        raise RecipeError(f"task.dataset: '{name}' at revision {revision} was not fetched to {cache_folder()}")
    files = [each for each in folder.rglob("*") if each.is_file()] if folder.is_dir() else [folder]
    if not files:
        raise RecipeError(f"task.dataset: {folder} holds no files")
    return {"folder": str(folder), "files": len(files)}

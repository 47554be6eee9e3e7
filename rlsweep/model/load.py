"""A Hugging Face folder or hub name -> module and tokenizer. Code that comes with a model is never run."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from rlsweep.errors import RecipeError
from rlsweep.model.hub import find_model
from rlsweep.recipe.model import TOKENIZER_FILES


def load_model(source: str | Path, revision: str | None = None) -> tuple[PreTrainedModel, Any]:
    """Model with float32 parameters (training keeps master weights; precision is chosen per forward) and its tokenizer.

    Where the hub may not be asked, as in jobs, a hub name is looked up in the cache. RecipeError where the folder or
    hub entry holds no usable model, or no tokenizer with an end-of-sequence token, or where the cache doesn't hold it.
    """
    folder = find_model(str(source), revision)
    # For some architectures an empty tokenizer is made up where the folder holds none.
    if folder and (folder / "config.json").is_file() and not any((folder / name).is_file() for name in TOKENIZER_FILES):
        known = ", ".join(TOKENIZER_FILES)
        raise RecipeError(f"model.path: '{source}' holds no tokenizer; one of {known} is needed")
    place, commit = folder or source, None if folder else revision
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, revision=commit, trust_remote_code=False)
        model = AutoModelForCausalLM.from_pretrained(
            place, revision=commit, trust_remote_code=False, dtype=torch.float32
        )
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RecipeError(f"model.path: '{source}' holds no causal language model with a tokenizer: {first}") from None
    if tokenizer.eos_token_id is None:
        raise RecipeError(f"model.path: the tokenizer of '{source}' names no end-of-sequence token")
    return model, tokenizer


def parameter_count(model: torch.nn.Module) -> int:
    """Number of parameters, tied ones once: the N of the FLOP count."""
    return sum(parameter.numel() for parameter in model.parameters())

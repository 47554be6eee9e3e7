"""The model a run starts from. The embedded one is made on first use and cached under a hash of all that makes it."""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from rlsweep.model.embedded import new_model, new_tokenizer
from rlsweep.recipe.model import Embedded
from rlsweep.recipe.schema import SEMANTICS, Recipe
from rlsweep.recipe.task import Registers
from rlsweep.tasks.registers import ALPHABET, RegisterTask

BATCH = 128
LEARNING_RATE = 4e-3
THREADS = 1
"""Fixed, whatever the run uses: sums depend on it in their last bits, and all runs must start from one model."""


def model_source(recipe: Recipe, models: Path) -> tuple[str, str | None]:
    """Where the initial model is: a folder or hub name, and the hub revision. Makes the embedded one if needed."""
    if isinstance(recipe.model, Embedded):
        assert isinstance(recipe.task, Registers), "the schema refuses any other task"
        return str(_cached(recipe.model, recipe.task, models)), None
    local = Path(recipe.model.path).is_dir()
    return recipe.model.path, None if local else recipe.model.revision


def _cached(model: Embedded, task: Registers, models: Path) -> Path:
    made_from = {
        "semantics": SEMANTICS,
        "shape": [model.width, model.layers, model.heads, model.kv_heads, model.feed_forward],
        "steps": model.warm_start_steps,
        "table_seed": task.table_seed,
        "batch": BATCH,
        "lr": LEARNING_RATE,
        "alphabet": ALPHABET,
    }
    digest = hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()[:12]
    folder = models / f"embedded-{digest}"
    if folder.is_dir():
        return folder
    models.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=models))
    try:
        trained = _warm_start(model, RegisterTask(task))
        trained.save_pretrained(beside)
        tokenizer: PreTrainedTokenizerFast = new_tokenizer(ALPHABET)
        tokenizer.save_pretrained(beside)
        (beside / "made-from.json").write_text(json.dumps(made_from, indent=1))
        for file in beside.iterdir():
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
        # Another run may have made the same folder meanwhile: a rename onto a filled folder fails, and theirs serves.
        with contextlib.suppress(OSError):
            beside.rename(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    if not folder.is_dir():
        raise OSError(f"{folder} could not be put in place")
    return folder


def _warm_start(section: Embedded, task: RegisterTask) -> Qwen3ForCausalLM:
    """Supervised training on fresh demonstrations: AdamW, rate decaying linearly to 0."""
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    rng = np.random.default_rng([task.section.table_seed, 3])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(task.section.table_seed)
        model: Qwen3ForCausalLM = new_model(section, len(ALPHABET))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    for step in range(section.warm_start_steps):
        ids, mask = (torch.from_numpy(array) for array in task.demonstrations(rng, BATCH))
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1][mask[:, 1:]]
        loss = torch.nn.functional.cross_entropy(logits, ids[:, 1:][mask[:, 1:]])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - step / section.warm_start_steps)
        optimizer.step()
    torch.set_num_threads(threads)
    return model

"""The model a run starts from. The embedded one is made on first use and cached under a hash of all that makes it."""

import contextlib
import hashlib
import json
import secrets
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen3ForCausalLM

from rlsweep.model.embedded import new_config, new_tokenizer
from rlsweep.recipe.key import embedded_identity
from rlsweep.recipe.model import Embedded
from rlsweep.recipe.schema import SEMANTICS, Recipe
from rlsweep.recipe.task import Registers
from rlsweep.store import manifest
from rlsweep.store.files import sync_folder, sync_tree, write_json
from rlsweep.tasks.registers import ALPHABET, RegisterTask

BATCH = 128
LEARNING_RATE = 4e-3
OPTIMIZER: dict[str, Any] = {"betas": (0.9, 0.95), "weight_decay": 0.01}
GRAD_CLIP = 1.0
THREADS = 1
"""Fixed, whatever the run uses: sums depend on it in their last bits, and all runs must start from one model. One
thread, because threads that wait for each other on busy cores take many times longer."""


def model_source(recipe: Recipe, models: Path) -> tuple[str, str | None]:
    """Where the initial model is: a folder or hub name, and the hub revision. Makes the embedded one if needed."""
    if isinstance(recipe.model, Embedded):
        return str(_cached(recipe, recipe.model, models)), None
    local = Path(recipe.model.path).is_dir()
    return recipe.model.path, None if local else recipe.model.revision


def _cached(recipe: Recipe, section: Embedded, models: Path) -> Path:
    assert isinstance(recipe.task, Registers), "the schema refuses any other task"
    task = RegisterTask(recipe.task)
    made_from = _made_from(recipe, section, task)
    digest = hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()[:12]
    folder = models / f"embedded-{digest}"
    if folder.is_dir():
        fault = manifest.damage(folder)
        if fault is None:
            return folder
        aside = folder.with_name(f"damaged-{folder.name}-{secrets.token_hex(4)}")
        print(f"warning: {folder} is damaged ({fault}): kept as {aside.name} and made again", flush=True)
        with contextlib.suppress(FileNotFoundError):  # another run has put it aside meanwhile
            folder.rename(aside)
    model = _warm_start(section, task)
    models.mkdir(parents=True, exist_ok=True)
    beside = models / f".{folder.name}-{secrets.token_hex(4)}"
    beside.mkdir()
    try:
        model.save_pretrained(beside)
        new_tokenizer(ALPHABET).save_pretrained(beside)
        write_json(beside / "made-from.json", made_from)
        manifest.write(beside)
        sync_tree(beside)
        # Another run may have made the same folder meanwhile: a rename onto a filled folder fails, and theirs serves.
        with contextlib.suppress(OSError):
            beside.rename(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    sync_folder(models)
    if not folder.is_dir():
        raise OSError(f"{folder} could not be put in place")
    return folder


def _made_from(recipe: Recipe, section: Embedded, task: RegisterTask) -> dict[str, object]:
    """All that makes the model: what the recipe says, its whole configuration, the training, and the demonstrations
    themselves, by a sample of them: whatever changes them changes it."""
    ids, mask = task.demonstrations(np.random.default_rng(0), BATCH)
    return {
        "semantics": SEMANTICS,
        "leaves": dict(embedded_identity(recipe)),
        "config": json.loads(new_config(section, len(ALPHABET)).to_json_string(use_diff=False)),
        "optimizer": {"lr": LEARNING_RATE, **OPTIMIZER, "grad_clip": GRAD_CLIP, "batch": BATCH, "threads": THREADS},
        "demonstrations": hashlib.sha256(ids.tobytes() + mask.tobytes()).hexdigest(),
    }


def _warm_start(section: Embedded, task: RegisterTask) -> Qwen3ForCausalLM:
    """Supervised training on fresh demonstrations: AdamW, rate decaying linearly to 0."""
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    rng = np.random.default_rng([task.section.table_seed, 3])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(task.section.table_seed)
        model = Qwen3ForCausalLM(new_config(section, len(ALPHABET)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, **OPTIMIZER)
    for step in range(section.warm_start_steps):
        ids, mask = (torch.from_numpy(array) for array in task.demonstrations(rng, BATCH))
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1][mask[:, 1:]]
        loss = torch.nn.functional.cross_entropy(logits, ids[:, 1:][mask[:, 1:]])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), GRAD_CLIP)
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - step / section.warm_start_steps)
        optimizer.step()
    torch.set_num_threads(threads)
    return model

"""What several test folders share: tiny models, made once a session, and a small recipe that trains in seconds."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlsweep.recipe.batch import Batch
from rlsweep.recipe.budget import Budget
from rlsweep.recipe.evaluation import Evaluation
from rlsweep.recipe.execution import Execution
from rlsweep.recipe.length import Interrupt
from rlsweep.recipe.model import Embedded
from rlsweep.recipe.off_policy import Pipeline
from rlsweep.recipe.optimizer import Optimizer
from rlsweep.recipe.sampling import Sampling
from rlsweep.recipe.schema import Recipe
from rlsweep.recipe.task import Registers

# One thread a test process, set before torch is imported: threads that wait for each other on busy cores cost minutes.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def small_recipe() -> Recipe:
    """ScaleRL on a model that was hardly warm-started, with batches of 4 x 4."""
    return Recipe(
        name="small",
        model=Embedded(warm_start_steps=30),
        task=Registers(prompts=32),
        sampling=Sampling(max_tokens=12),
        batch=Batch(prompts=4, rollouts=4),
        off_policy=Pipeline(k=2),
        length=Interrupt(earliest=6, latest=8, phrase="#", end="#"),
        optimizer=Optimizer(lr=1e-3, warmup_steps=2, eps=1e-8),
        evaluation=Evaluation(every=4, prompts=8, samples=2),
        budget=Budget(steps=8),
        execution=Execution(engine="local", device="cpu", devices=1, microbatch_tokens=128, checkpoint_every=3),
    )


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder in which embedded models are cached for the whole session."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def model_folder(small_recipe: Recipe, models: Path) -> str:
    """The small recipe's initial model, an ordinary Hugging Face folder."""
    from rlsweep.train.warm_start import model_source

    return model_source(small_recipe, models)[0]


@pytest.fixture(scope="session")
def random_model_folder(models: Path) -> str:
    """A model with large random weights, so that its distributions are far from uniform and from each other."""
    import torch
    from transformers import Qwen3ForCausalLM

    from rlsweep.model.embedded import new_config, new_tokenizer
    from rlsweep.tasks.registers import ALPHABET

    folder = models / "random"
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = Qwen3ForCausalLM(new_config(replace(Embedded(), layers=3), len(ALPHABET)))
        for parameter in model.parameters():
            if parameter.ndim == 2:
                torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    new_tokenizer(ALPHABET).save_pretrained(folder)
    return str(folder)


class FakeSlurm:
    """The fake commands of Slurm (tests/launch/fake_slurm.py), first in PATH, as a test steers and reads them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.folder = folder
        folder.mkdir()
        script = Path(__file__).parent / "launch" / "fake_slurm.py"
        (folder / script.name).write_text(script.read_text())
        for name in ("sbatch", "squeue", "scontrol", "scancel", "sinfo", "sacct", "srun"):
            (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} -S "{folder}/{script.name}" {name} "$@"\n')
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def behave(self, *rules: str) -> None:
        (self.folder / "behaviour").write_text("\n".join(rules))

    def array_size(self, size: int) -> None:
        (self.folder / "size").write_text(str(size))

    @property
    def calls(self) -> list[str]:
        """Every command so far."""
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def jobs(self) -> dict[str, dict[str, Any]]:
        """Jobs by id: name, count of elements, held, state."""
        path = self.folder / "jobs.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def set_state(self, state: str) -> None:
        """Have all jobs so far be in a state."""
        (self.folder / "jobs.json").write_text(
            json.dumps({id: {**job, "state": state} for id, job in self.jobs.items()})
        )


@pytest.fixture
def fake_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """A Slurm that takes jobs and never starts one."""
    return FakeSlurm(tmp_path / "bin of slurm", monkeypatch)

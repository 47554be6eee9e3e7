"""All that a run is at one moment: built from the recipe, saved as a checkpoint, restored from one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from transformers import PreTrainedModel

from rlsweep.errors import RecipeError, RlsweepError
from rlsweep.model.load import load_model, parameter_count
from rlsweep.recipe.length import Interrupt
from rlsweep.recipe.schema import Recipe
from rlsweep.rollout.local import LocalEngine
from rlsweep.rollout.protocol import Interruption, RolloutEngine
from rlsweep.store import checkpoints
from rlsweep.store.attempts import Attempt
from rlsweep.store.checkpoints import Checkpoint
from rlsweep.store.files import read_json, write_json
from rlsweep.store.journal import Journal
from rlsweep.store.layout import RunFolder
from rlsweep.tasks.make import make_task
from rlsweep.tasks.protocol import Task
from rlsweep.train.clock import Clock
from rlsweep.train.curriculum import PromptStream
from rlsweep.train.intake import Intake, Tokens


@dataclass
class State:
    """One run in one process. `step` counts optimizer steps and is the version of the policy."""

    recipe: Recipe
    run: RunFolder
    attempt: Attempt
    step: int
    accelerator: Accelerator
    model: PreTrainedModel
    optimizer: AcceleratedOptimizer
    task: Task
    tokens: Tokens
    stream: PromptStream
    intake: Intake
    engine: RolloutEngine
    clock: Clock


def build(
    recipe: Recipe, run: RunFolder, attempt: Attempt, source: Callable[[], tuple[str, str | None]], started: float
) -> tuple[State, int]:
    """State of a run from its newest checkpoint, or at step 0, and the journal's length in bytes at that point.

    `source` tells where the initial model lies; `started` is the process's start on the monotonic clock. RecipeError
    for what this version can plan but not train.
    """
    # What can't be trained is refused before anything large is loaded.
    task = make_task(recipe.task)
    if recipe.execution.engine != "local":
        raise RecipeError(f"execution.engine: '{recipe.execution.engine}' is not part of this version; valid: local")
    accelerator = Accelerator(cpu=recipe.execution.device == "cpu")
    if accelerator.num_processes != 1:
        raise RecipeError(f"this version trains in one process; it was started as {accelerator.num_processes}")
    checkpoint = checkpoints.newest(run)
    with _reading(run, checkpoint):
        model, tokenizer = load_model(checkpoint.path / "model") if checkpoint else load_model(*source())
    tokens = Tokens(tokenizer, task)
    engine = _engine(recipe, model.to(accelerator.device), tokens)
    options = recipe.optimizer
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=options.lr,
        betas=(options.beta1, options.beta2),
        eps=options.eps,
        weight_decay=options.weight_decay,
    )
    clock = Clock(recipe.execution.devices, parameter_count(model), started)
    prepared_model, prepared_optimizer = accelerator.prepare(model.eval(), optimizer)
    stream = PromptStream(recipe.curriculum, task.size, recipe.seed)
    state = State(
        recipe=recipe,
        run=run,
        attempt=attempt,
        step=0,
        accelerator=accelerator,
        model=prepared_model,
        optimizer=prepared_optimizer,
        task=task,
        tokens=tokens,
        stream=stream,
        intake=Intake(recipe, task, stream, tokens, clock.generated),
        engine=engine,
        clock=clock,
    )
    with _reading(run, checkpoint):
        return state, _restore(state, checkpoint.path) if checkpoint else 0


def save(state: State, journal: Journal) -> None:
    """Write the checkpoint of the current step and keep the newest two."""
    journal.sync()
    with checkpoints.writing(state.run, state.attempt, state.step) as folder:
        state.accelerator.unwrap_model(state.model).save_pretrained(folder / "model")
        state.tokens.tokenizer.save_pretrained(folder / "model")
        torch.save(state.optimizer.state_dict(), folder / "optimizer.pt")
        state.intake.save(folder / "rollouts.npz")
        saved = {
            "step": state.step,
            "journal_length": journal.length,
            "clock": state.clock.state_dict(),
            "curriculum": state.stream.state_dict(),
        }
        write_json(folder / "state.json", saved)
    checkpoints.prune(state.run, keep=2)


@contextmanager
def _reading(run: RunFolder, checkpoint: Checkpoint | None) -> Iterator[None]:
    """Say which checkpoint is damaged and what to do, whatever its reader said."""
    try:
        yield
    except Exception as error:  # zip, safetensors and JSON readers have no common error
        if checkpoint is None:
            raise
        others = [each.step for each in checkpoints.every(run) if each.step < checkpoint.step]
        back = f"step {others[-1]}" if others else "the start"
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RlsweepError(f"{checkpoint.path} is damaged ({first}); remove it to go on from {back}") from error


def _restore(state: State, folder: Path) -> int:
    saved = read_json(folder / "state.json")
    state.step = saved["step"]
    # Tensors and plain containers only: nothing in the file can run code.
    state.optimizer.load_state_dict(torch.load(folder / "optimizer.pt", weights_only=True))
    state.clock.load_state_dict(saved["clock"])
    state.stream.load_state_dict(saved["curriculum"])
    state.engine.publish(state.step, state.accelerator.unwrap_model(state.model))
    state.intake.load(folder / "rollouts.npz", state.engine)
    return int(saved["journal_length"])


def _engine(recipe: Recipe, model: PreTrainedModel, tokens: Tokens) -> RolloutEngine:
    interruption = None
    if isinstance(recipe.length, Interrupt):
        interruption = Interruption(tokens.encode(recipe.length.phrase), tokens.encode(recipe.length.end))
        last = recipe.length.latest + len(interruption.phrase)
        if last >= recipe.sampling.max_tokens:
            raise RecipeError(
                f"length.latest: {recipe.length.latest} and the {len(interruption.phrase)} tokens of the phrase leave "
                f"no room for an answer below sampling.max_tokens ({recipe.sampling.max_tokens})"
            )
    return LocalEngine(
        model,
        eos=tokens.eos,
        dtype=recipe.model.dtype,
        head_dtype=recipe.model.head_dtype,
        interruption=interruption,
    )

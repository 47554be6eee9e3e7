"""All that a run is at one moment: built from the recipe, saved as a checkpoint, restored from one."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from transformers import PreTrainedModel

from rlsweep.errors import RecipeError
from rlsweep.model.load import load_model, parameter_count
from rlsweep.recipe.length import Interrupt
from rlsweep.recipe.schema import Recipe
from rlsweep.rollout.local import LocalEngine
from rlsweep.rollout.protocol import Interruption, RolloutEngine
from rlsweep.store import checkpoints
from rlsweep.store.attempts import Attempt
from rlsweep.store.checkpoints import Checkpoint
from rlsweep.store.files import read_json, write_json
from rlsweep.store.journal import Journal, covers
from rlsweep.store.layout import RunFolder
from rlsweep.tasks.make import make_task
from rlsweep.tasks.protocol import Task
from rlsweep.train.clock import Clock
from rlsweep.train.curriculum import PromptStream
from rlsweep.train.intake import Intake, Tokens

Say = Callable[[str], None]


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
    saved: float
    """When the newest checkpoint was written or read, on the monotonic clock."""


def build(
    recipe: Recipe,
    run: RunFolder,
    attempt: Attempt,
    source: Callable[[], tuple[str, str | None]],
    started: float,
    say: Say = print,
) -> tuple[State, int]:
    """State of a run from its newest checkpoint, or at step 0, and the journal's length in bytes at that point.

    A damaged checkpoint is set aside, and the one before it taken. `source` tells where the initial model lies;
    `started` is the process's start on the monotonic clock. RecipeError for what this version can plan but not train.
    """
    # What can't be trained is refused before anything large is loaded.
    task = make_task(recipe.task)
    if recipe.execution.engine != "local":
        raise RecipeError(f"execution.engine: '{recipe.execution.engine}' is not part of this version; valid: local")
    accelerator = Accelerator(cpu=recipe.execution.device == "cpu")
    if accelerator.num_processes != 1:
        raise RecipeError(f"this version trains in one process; it was started as {accelerator.num_processes}")
    checkpoint = _undamaged(run, attempt, say)
    model, tokenizer = load_model(checkpoint.model) if checkpoint else load_model(*source())
    tokens = Tokens(tokenizer, task)
    engine = _engine(recipe, model.to(accelerator.device), tokens)
    options = recipe.optimizer
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=options.lr,
        betas=(options.beta1, options.beta2),
        eps=options.eps,
        weight_decay=options.weight_decay,
        fused=True,
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
        saved=time.monotonic(),
    )
    return state, _restore(state, checkpoint) if checkpoint else 0


def save(state: State, journal: Journal, *, last: bool = False) -> None:
    """Write the checkpoint of the current step, then remove those that the recipe doesn't keep.

    While a run goes on the newest two are whole, in case that one is lost; after its `last` step only that one is.
    """
    options = state.recipe.execution
    saved = checkpoints.resumable(state.run)
    if saved is None or saved.step < state.step:
        journal.sync()
        with checkpoints.writing(state.run, state.attempt, state.step) as folder:
            checkpoint = Checkpoint(folder, state.step)
            checkpoint.resume.mkdir()
            state.accelerator.unwrap_model(state.model).save_pretrained(checkpoint.model)
            state.tokens.tokenizer.save_pretrained(checkpoint.model)
            # Through a file of ours: where the disk is full, PyTorch's own writer says nothing of it.
            with open(checkpoint.resume / "optimizer.pt", "wb") as file:
                torch.save(state.optimizer.state_dict(), file)
            state.intake.save(checkpoint.resume / "rollouts.npz")
            found = {
                "step": state.step,
                "journal_length": journal.length,
                "clock": state.clock.state_dict(),
                "curriculum": state.stream.state_dict(),
            }
            write_json(folder / "state.json", found)
    state.attempt.require_owner()
    checkpoints.prune(state.run, keep=1 if last else 2, keep_every=options.keep_every)
    state.saved = time.monotonic()


def must_save(state: State) -> bool:
    """Whether a checkpoint is due after a step, by the recipe's steps or minutes."""
    options = state.recipe.execution
    minutes = (time.monotonic() - state.saved) / 60
    return (
        state.step % options.checkpoint_every == 0
        or (options.keep_every is not None and state.step % options.keep_every == 0)
        or (options.checkpoint_minutes is not None and minutes >= options.checkpoint_minutes)
    )


def _undamaged(run: RunFolder, attempt: Attempt, say: Say) -> Checkpoint | None:
    """The newest checkpoint that a run can go on from. Damaged ones are set aside on the way."""
    checkpoints.take_over(run, attempt)
    while (checkpoint := checkpoints.resumable(run)) is not None:
        fault = checkpoints.damage(checkpoint)
        before = checkpoints.resumable(run, before=checkpoint.step)
        # Where there is nothing to go back to, rewinding the journal says what is wrong: a whole run isn't begun again.
        if fault is None and before and not covers(run, read_json(checkpoint.path / "state.json")["journal_length"]):
            fault = f"{run.journal.name} lacks rows that it covers"
        if fault is None:
            return checkpoint
        attempt.require_owner()
        aside = checkpoints.set_aside(checkpoint)
        whence = f"step {before.step}" if before else "the start"
        say(f"warning: {checkpoint.path} can't be used ({fault}): kept as {aside.name}, going on from {whence}")
    return None


def _restore(state: State, checkpoint: Checkpoint) -> int:
    saved = read_json(checkpoint.path / "state.json")
    state.step = saved["step"]
    # Tensors and plain containers only: nothing in the file can run code.
    state.optimizer.load_state_dict(torch.load(checkpoint.resume / "optimizer.pt", weights_only=True))
    state.clock.load_state_dict(saved["clock"])
    state.stream.load_state_dict(saved["curriculum"])
    state.engine.publish(state.step, state.accelerator.unwrap_model(state.model))
    state.intake.load(checkpoint.resume / "rollouts.npz", state.engine)
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

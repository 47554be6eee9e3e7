"""Checkpoints of a run: what is kept whenever a step is finished, when it is written, and how it is taken up again.

Weights and moments change in the optimizer's step alone. The rest of a run changes while the next step is being made,
and is kept aside, small as it is, at each step's end: so a run that is asked to stop can give up what is under way and
still save the step it finished last, without a second copy of the weights.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlsweep.errors import RlsweepError
from rlsweep.recipe.schema import Recipe
from rlsweep.store import checkpoints
from rlsweep.store.attempts import Attempt
from rlsweep.store.checkpoints import Checkpoint
from rlsweep.store.files import read_json, write_json
from rlsweep.store.journal import Journal, covers
from rlsweep.store.layout import RunFolder
from rlsweep.train.curriculum import PromptStream
from rlsweep.train.intake import Intake
from rlsweep.train.ranks import Ranks

if TYPE_CHECKING:
    from rlsweep.train.state import State

_EVALUATED = "evaluated.json"
"""Stands in a checkpoint whose evaluation was made after it was written: how far the journal goes since, and clocks."""


@dataclass(frozen=True)
class Kept:
    """What a checkpoint holds besides weights and moments, as it was at the end of a step."""

    step: int
    stream: PromptStream
    intake: Intake
    clock: dict[str, Any]
    journal_length: int
    evaluated: bool
    """Whether the evaluation of this step, where one is due, is in the journal."""
    at: float
    """When, on the monotonic clock."""


def keep(state: "State", journal_length: int, *, evaluated: bool) -> Kept:
    """The state at the end of a step; cheap, so that it can be kept at each."""
    return Kept(
        state.step,
        state.stream.frozen(),
        state.intake.frozen(),
        state.clock.state_dict(),
        journal_length,
        evaluated,
        time.monotonic(),
    )


def save(state: "State", kept: Kept, journal: Journal, *, last: bool = False) -> None:
    """Write the checkpoint of the step that was kept, then remove those that the recipe doesn't keep.

    While a run goes on the newest two are whole, in case that one is lost; after its `last` step only that one is.
    """
    options = state.recipe.execution
    saved = checkpoints.resumable(state.run)
    if saved is None or saved.step < kept.step:
        journal.sync()
        with checkpoints.writing(state.run, state.attempt, kept.step) as folder:
            checkpoint = Checkpoint(folder, kept.step)
            checkpoint.resume.mkdir()
            state.accelerator.unwrap_model(state.model).save_pretrained(checkpoint.model)
            state.tokens.tokenizer.save_pretrained(checkpoint.model)
            # Through a file of ours: where the disk is full, PyTorch's own writer says nothing of it.
            with open(checkpoint.resume / "optimizer.pt", "wb") as file:
                torch.save(state.optimizer.state_dict(), file)
            kept.intake.save(checkpoint.resume / "rollouts.npz")
            found = {
                "step": kept.step,
                "journal_length": kept.journal_length,
                "evaluated": kept.evaluated,
                "ranks": state.ranks.world,
                "clock": state.clock.state_dict(),
                "curriculum": kept.stream.state_dict(),
            }
            write_json(folder / "state.json", found)
    state.attempt.require_owner()
    checkpoints.prune(state.run, keep=1 if last else 2, keep_every=options.keep_every)
    state.saved = time.monotonic()


def note_evaluated(state: "State", kept: Kept, journal: Journal) -> None:
    """Note in the checkpoint of a step that its evaluation, which was still due, is in the journal now.

    Without this the row would be taken back, and made once more, by an attempt that goes on from there.
    """
    checkpoint = checkpoints.resumable(state.run)
    if checkpoint is not None and checkpoint.step == kept.step:
        journal.sync()
        found = {"journal_length": kept.journal_length, "clock": kept.clock}
        write_json(checkpoint.path / _EVALUATED, found, state.attempt.require_owner)


def must_save(state: "State") -> bool:
    """Whether a checkpoint is due after a step, by the recipe's steps or minutes."""
    options = state.recipe.execution
    minutes = (time.monotonic() - state.saved) / 60
    return (
        state.step % options.checkpoint_every == 0
        or (options.keep_every is not None and state.step % options.keep_every == 0)
        or (options.checkpoint_minutes is not None and minutes >= options.checkpoint_minutes)
    )


def evaluation_is_due(recipe: Recipe, step: int) -> bool:
    """Whether a step is evaluated: on the schedule, or because it is the last of the budget."""
    return step % recipe.evaluation.every == 0 or step == recipe.budget.steps


def newest(run: RunFolder, attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that a run can go on from, as rank 0 found it."""
    found = _undamaged(run, attempt, say) if ranks.leads else None
    told = ranks.from_lead(found and (str(found.path), found.step))
    return told and Checkpoint(Path(told[0]), told[1])


def restore(state: "State", checkpoint: Checkpoint, say: Callable[[str], None]) -> Kept:
    """Go on from a checkpoint; what it kept."""
    saved = state.ranks.from_lead(_read_state(checkpoint, state.run) if state.ranks.leads else None)
    if saved["ranks"] != state.ranks.world:
        say(
            f"note: {checkpoint.path.name} was written by {saved['ranks']} rank(s) and {state.ranks.world} go on: sums "
            "differ in their last bits from those of an undisturbed run"
        )
    state.step = saved["step"]
    # Tensors and plain containers only: nothing in the file can run code.
    state.optimizer.load_state_dict(torch.load(checkpoint.resume / "optimizer.pt", weights_only=True))
    state.clock.load_state_dict(saved["clock"])
    state.stream.load_state_dict(saved["curriculum"])
    state.engine.publish(state.step, state.accelerator.unwrap_model(state.model))
    state.intake.load(checkpoint.resume / "rollouts.npz", state.engine)
    return keep(state, int(saved["journal_length"]), evaluated=saved["evaluated"])


def _undamaged(run: RunFolder, attempt: Attempt, say: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that is whole. Damaged ones are set aside on the way."""
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


def _read_state(checkpoint: Checkpoint, run: RunFolder) -> dict[str, Any]:
    """A checkpoint's state.json, and what is noted of the evaluation that was made since."""
    saved: dict[str, Any] = {"evaluated": True, "ranks": 1, **read_json(checkpoint.path / "state.json")}
    try:
        since = read_json(checkpoint.path / _EVALUATED)
    except (FileNotFoundError, RlsweepError):  # damaged: the evaluation is made again
        return saved
    return saved | since | {"evaluated": True} if covers(run, since["journal_length"]) else saved

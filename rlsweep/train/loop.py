"""The training loop: named stages over one state."""

import time
from collections.abc import Callable

from rlsweep.store.journal import Journal, rewind
from rlsweep.store.outcome import Outcome
from rlsweep.train import samples
from rlsweep.train.admission import finish_before_training, must_publish
from rlsweep.train.evaluate import evaluate
from rlsweep.train.intake import Graded
from rlsweep.train.state import Say, State, must_save, save
from rlsweep.train.update import Diverged, select, update


def train(state: State, journal_length: int, stop: Callable[[], bool], say: Say) -> Outcome:
    """Go on from `state` to the recipe's budget, or until `stop()` is true after a step; how it ended.

    `journal_length` is the part of the journal, in bytes, that belongs to `state`; later rows are taken back first.
    """
    rewind(state.run, state.attempt, journal_length)
    with Journal(state.run, state.attempt) as journal:
        if journal.length == 0:
            _publish(state)
            _measure(state, journal, say)
        state.clock.switch("training")
        try:
            while state.step < state.recipe.budget.steps:
                _step(state, journal, say)
                if stop() and state.step < state.recipe.budget.steps:
                    _checkpoint(state, journal)
                    return Outcome("interrupted", state.step, "asked to stop; saved")
            _checkpoint(state, journal, last=True)
        except Diverged as error:
            return Outcome("diverged", state.step, str(error))
    return Outcome("finished", state.step, "reached its budget")


def _step(state: State, journal: Journal, say: Say) -> None:
    """Sample, train, publish; then evaluate and save where they are due."""
    began = time.monotonic()
    state.intake.admit(state.engine, state.step)
    needed = finish_before_training(state.recipe.off_policy, state.step)
    groups = state.intake.take(state.engine, needed, state.step)
    sampled = time.monotonic()
    metrics = _learn(state, groups)
    state.step += 1
    recipe = state.recipe
    due = state.step % recipe.evaluation.every == 0
    measured = due or state.step == recipe.budget.steps
    # An evaluation needs the current version, whatever the off-policy scheme publishes.
    if measured or must_publish(recipe.off_policy, state.step):
        _publish(state)
    metrics |= {
        "time/generation_s": sampled - began,
        "time/training_s": time.monotonic() - sampled,
        "time/generation_busy_s": state.engine.busy(),
        **state.stream.metrics(),
        **state.clock.metrics(),
    }
    journal.append({"kind": "step", "step": state.step, "time": time.time(), "metrics": metrics})
    if measured:
        _measure(state, journal, say, on_schedule=due)
    if must_save(state) and state.step < recipe.budget.steps:
        _checkpoint(state, journal)


def _learn(state: State, groups: list[Graded]) -> dict[str, float]:
    """Update the policy on the groups of one batch; the curriculum sees each of them, trained on or not."""
    for group in groups:
        state.stream.observe(group.prompt_index, group.correct, len(group.rollouts))
    began = time.monotonic()
    batch, seen = select(state.recipe, groups)
    learned = update(state.recipe, state.model, state.optimizer, state.accelerator, batch, state.step)
    learned["time/training_busy_s"] = time.monotonic() - began
    state.clock.trained(batch.tokens)
    samples.keep_training(state, state.step + 1, groups, batch)
    return seen | learned


def _publish(state: State) -> None:
    state.engine.publish(state.step, state.accelerator.unwrap_model(state.model))


def _measure(state: State, journal: Journal, say: Say, *, on_schedule: bool = True) -> None:
    """Evaluate the version that was published last.

    The last step of a budget is measured even off the schedule; such a row says so, because the longer run that a
    raised budget makes of it would not have it.
    """
    with state.clock.spending("evaluation"):
        row, groups = evaluate(state.recipe, state.task, state.tokens, state.intake, state.engine, state.step)
        samples.keep_evaluation(state, groups)
    if not on_schedule:
        row["off_schedule"] = True
    row["metrics"] |= {"time/evaluation_busy_s": state.engine.busy(), **state.clock.metrics()}
    row["time"] = time.time()
    journal.append(row)
    say(f"step {state.step}/{state.recipe.budget.steps}: pass rate {row['metrics']['evaluation/pass_rate']:.3f}")


def _checkpoint(state: State, journal: Journal, *, last: bool = False) -> None:
    """Save. Diverged where a weight is not finite: a checkpoint is something to go on from."""
    if not all(bool(parameter.isfinite().all()) for parameter in state.model.parameters()):
        raise Diverged(f"weights are not finite after step {state.step}")
    with state.clock.spending("saving"):
        save(state, journal, last=last)

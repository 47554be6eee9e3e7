"""The training loop: named stages over one state."""

import time
from contextlib import nullcontext

from rlsweep.store.journal import Journal, rewind
from rlsweep.store.outcome import Outcome
from rlsweep.store.rows import Row
from rlsweep.train import samples
from rlsweep.train.admission import finish_before_training, must_publish
from rlsweep.train.asked import Asked
from rlsweep.train.evaluate import evaluate
from rlsweep.train.intake import Graded
from rlsweep.train.ranks import Lost, digest
from rlsweep.train.saving import evaluation_is_due, keep, must_save, note_evaluated, save
from rlsweep.train.state import Say, State
from rlsweep.train.update import Diverged, select, update


def train(state: State, say: Say) -> Outcome:
    """Go on from `state` to the recipe's budget, or until the run is asked to stop; how it ended.

    Rows of the journal that came after what `state` has kept are taken back first. Rank 0 alone writes.
    """
    if state.ranks.leads:
        rewind(state.run, state.attempt, state.kept.journal_length)
    with Journal(state.run, state.attempt) if state.ranks.leads else nullcontext() as journal:
        try:
            try:
                _go_on(state, journal, say)
            except Asked:
                return _give_up(state, journal, "asked to stop")
            except Lost as error:
                if not state.ranks.leads:
                    raise
                return _give_up(state, journal, str(error), together=False)
        except Diverged as error:
            return Outcome("diverged", state.step, str(error))
    return Outcome("finished", state.step, "reached its budget")


def _go_on(state: State, journal: Journal | None, say: Say) -> None:
    """From where the run is to its last step."""
    if not state.kept.evaluated and evaluation_is_due(state.recipe, state.step):
        _publish(state)
        _measure(state, journal, say)
        if journal and state.step:
            note_evaluated(state, state.kept, journal)
    state.clock.switch("training")
    while state.step < state.recipe.budget.steps:
        _step(state, journal, say)
    _checkpoint(state, journal, last=True)


def _step(state: State, journal: Journal | None, say: Say) -> None:
    """Sample, train, publish; then evaluate and save where they are due. Up to the update it can be given up."""
    state.ranks.check()
    began = time.monotonic()
    state.intake.admit(state.engine, state.step)
    needed = finish_before_training(state.recipe.off_policy, state.step)
    groups = state.intake.take(state.engine, needed, state.step)
    state.ranks.require_same(f"rollouts of step {state.step + 1}", lambda: _digest(groups))
    sampled = time.monotonic()
    metrics = _learn(state, groups)
    state.step += 1
    recipe = state.recipe
    measured = evaluation_is_due(recipe, state.step)
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
    _append(state, journal, {"kind": "step", "step": state.step, "time": time.time(), "metrics": metrics})
    _keep(state, journal, evaluated=False)
    if measured:
        _measure(state, journal, say)
    # Minutes differ from rank to rank.
    if state.ranks.any("saving", must_save(state)) and state.step < recipe.budget.steps:
        _checkpoint(state, journal)


def _learn(state: State, groups: list[Graded]) -> dict[str, float]:
    """Update the policy on the groups of one batch; the curriculum sees each of them, trained on or not."""
    for group in groups:
        state.stream.observe(group.prompt_index, group.correct, len(group.rollouts))
    began = time.monotonic()
    batch, seen = select(state.recipe, groups)
    learned = update(state.recipe, state.model, state.optimizer, state.accelerator, batch, state.step, state.ranks)
    learned["time/training_busy_s"] = time.monotonic() - began
    state.clock.trained(batch.tokens)
    if state.ranks.leads:
        samples.keep_training(state, state.step + 1, groups, batch)
    return seen | learned


def _publish(state: State) -> None:
    state.engine.publish(state.step, state.accelerator.unwrap_model(state.model))


def _measure(state: State, journal: Journal | None, say: Say) -> None:
    """Evaluate the version that was published last.

    The last step of a budget is measured even off the schedule; such a row says so, because the longer run that a
    raised budget makes of it would not have it.
    """
    recipe = state.recipe
    with state.clock.spending("evaluation"):
        row, groups = evaluate(recipe, state.task, state.tokens, state.intake, state.engine, state.step, state.ranks)
        if state.ranks.leads:
            samples.keep_evaluation(state, groups)
    if state.step % recipe.evaluation.every:
        row["off_schedule"] = True
    row["metrics"] |= {"time/evaluation_busy_s": state.engine.busy(), **state.clock.metrics()}
    row["time"] = time.time()
    _append(state, journal, row)
    say(f"step {state.step}/{recipe.budget.steps}: pass rate {row['metrics']['evaluation/pass_rate']:.3f}")
    _keep(state, journal, evaluated=True)


def _append(state: State, journal: Journal | None, row: Row) -> None:
    if journal:
        journal.append(row)


def _keep(state: State, journal: Journal | None, *, evaluated: bool) -> None:
    """What came so far stays, whatever becomes of the next step."""
    state.kept = keep(state, journal.length if journal else 0, evaluated=evaluated)


def _give_up(state: State, journal: Journal | None, reason: str, *, together: bool = True) -> Outcome:
    """Drop what is under way, and save the step that was finished last."""
    if state.step == 0:
        return Outcome("interrupted", 0, f"{reason} before its first step was done")
    given_up = time.monotonic() - state.kept.at
    state.clock.back_to(state.kept.clock)
    _checkpoint(state, journal, together=together)
    return Outcome("interrupted", state.step, f"{reason}; saved, {given_up:.0f} s of work after the step given up")


def _checkpoint(state: State, journal: Journal | None, *, last: bool = False, together: bool = True) -> None:
    """Save what is kept. Diverged where a weight is not finite: a checkpoint is something to go on from."""
    if together:
        state.ranks.require_same(f"weights after step {state.step}", lambda: _weights(state))
    if not all(bool(parameter.isfinite().all()) for parameter in state.model.parameters()):
        raise Diverged(f"weights are not finite after step {state.step}")
    if journal:
        with state.clock.spending("saving"):
            save(state, state.kept, journal, last=last)


def _digest(groups: list[Graded]) -> int:
    """Tells a graded batch from others, by all that decides which rank trains what."""
    rollouts = [(hash(rollout.tokens), hash(rollout.forced)) for group in groups for rollout in group.rollouts]
    return digest(rollouts, [(group.prompt_index, group.outcomes) for group in groups])


def _weights(state: State) -> int:
    """Tells the weights of a policy from others: the sum of each parameter's bits."""
    import torch

    return digest([int(each.detach().view(torch.int16).sum(dtype=torch.int64)) for each in state.model.parameters()])

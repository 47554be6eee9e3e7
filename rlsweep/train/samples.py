"""Which rollouts are kept for people to read, and what is told of each."""

from collections.abc import Mapping, Sequence

from rlsweep.recipe.compute import SAMPLES, SAMPLES_EVERY
from rlsweep.recipe.schema import Recipe
from rlsweep.store import samples
from rlsweep.store.samples import Purpose, Sample
from rlsweep.tasks.protocol import Prompt
from rlsweep.train.intake import Graded, Tokens
from rlsweep.train.rewards import reward
from rlsweep.train.state import State
from rlsweep.train.update import TrainingBatch


def keep_training(state: State, step: int, groups: Sequence[Graded], batch: TrainingBatch) -> None:
    """Write rollouts of `groups`, of which training chose `batch` on the way to `step`, if that is one of the tenth."""
    if step % SAMPLES_EVERY:
        return
    prompts = [state.task.prompt(group.prompt_index) for group in groups]
    # What was chosen are the very rollouts of the groups.
    advantage = dict(zip(map(id, batch.rollouts), batch.advantage.tolist(), strict=True))
    with state.clock.spending("saving"):
        found = choose(state.recipe, state.tokens, "train", step, groups, prompts, advantage)
        samples.write(state.run, state.attempt, "train", step, found)


def keep_evaluation(state: State, groups: Sequence[Graded]) -> None:
    """Write rollouts of the evaluation of the current step; a group's prompt index is its place in the split."""
    prompts = state.task.held_out(len(groups))
    found = choose(state.recipe, state.tokens, "evaluation", state.step, groups, prompts, {})
    samples.write(state.run, state.attempt, "evaluation", state.step, found)


def choose(
    recipe: Recipe,
    tokens: Tokens,
    purpose: Purpose,
    step: int,
    groups: Sequence[Graded],
    prompts: Sequence[Prompt],
    advantage: Mapping[int, float],
) -> list[Sample]:
    """The first rollout of each group, then the second of each, and so on, up to SAMPLES in all.

    So evaluations show the same prompts each time. `prompts` are those of the groups; `advantage` is by the id() of a
    rollout.
    """
    places = sorted((rollout, group) for group, each in enumerate(groups) for rollout in range(len(each.rollouts)))
    found = []
    for place, at in places[:SAMPLES]:
        group, prompt = groups[at], prompts[at]
        rollout, outcome = group.rollouts[place], group.outcomes[place]
        found.append(
            Sample(
                step=step,
                purpose=purpose,
                prompt_index=group.prompt_index,
                rollout=place,
                prompt=tokens.tokenizer.decode(group.prompt),
                response=tokens.tokenizer.decode(rollout.tokens),
                answer=tokens.answer(rollout),
                reference=prompt.answer,
                outcome=outcome,
                reward=float(reward(recipe.reward, recipe.length, [outcome], [len(rollout.tokens)])),
                finish=rollout.finish,
                interrupted=True in rollout.forced,
                tokens=len(rollout.tokens),
                versions=[list(span) for span in rollout.versions],
                forced=_spans(rollout.forced),
                advantage=advantage.get(id(rollout)),
            )
        )
    return found


def _spans(mask: Sequence[bool]) -> list[list[int]]:
    """Spans [start, end) in which a mask is true."""
    edges = [at for at, (before, now) in enumerate(zip((False, *mask), (*mask, False), strict=True)) if before != now]
    return [list(span) for span in zip(edges[::2], edges[1::2], strict=True)]

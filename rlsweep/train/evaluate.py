"""An evaluation: mean pass rate of one frozen policy version on the task's held-out prompts."""

from rlsweep.recipe.schema import Recipe
from rlsweep.rollout.protocol import RolloutEngine
from rlsweep.store.rows import Row
from rlsweep.tasks.protocol import Task
from rlsweep.train.grading import Failures
from rlsweep.train.intake import Graded, Intake, Tokens, requests
from rlsweep.train.ranks import ALONE, Ranks


def evaluate(
    recipe: Recipe,
    task: Task,
    tokens: Tokens,
    intake: Intake,
    engine: RolloutEngine,
    step: int,
    ranks: Ranks = ALONE,
) -> tuple[Row, list[Graded]]:
    """Sample `evaluation.samples` responses to each held-out prompt from the version the engine was last given.

    Returns the journal's evaluation row without clocks and time (the successes of each prompt, from which the pass rate
    and its sampling variance follow) and the group of each prompt, in the order of the split. Groups for training that
    arrive meanwhile go to the intake. Asked, before anything is written, where `ranks` are asked to stop.
    """
    prompts = task.held_out(recipe.evaluation.prompts)
    encoded = [tokens.encode(prompt.text) for prompt in prompts]
    options = recipe.evaluation
    # Ids below 0 tell them from groups for training: -1 is the first prompt.
    ids = range(-1, -1 - len(prompts), -1)
    engine.submit(requests(recipe, ids, encoded, "evaluation", step, options.samples, options.temperature))
    graded: dict[int, Graded] = {}
    failures = Failures("evaluation", len(prompts) * options.samples)
    while len(graded) < len(prompts):
        for group in intake.collect(engine):
            ranks.check_sparingly()
            place = -1 - group.id
            outcomes = tuple(tokens.grade(prompts[place], rollout, failures) for rollout in group.rollouts)
            graded[place] = Graded(place, encoded[place], group.rollouts, outcomes)
    groups = [graded[place] for place in range(len(prompts))]
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    row: Row = {
        "kind": "evaluation",
        "step": step,
        "counts": [group.correct for group in groups],
        "samples": options.samples,
        "metrics": {
            "evaluation/pass_rate": sum(group.correct for group in groups) / len(rollouts),
            "evaluation/response_tokens": sum(len(rollout.tokens) for rollout in rollouts) / len(rollouts),
            "evaluation/truncated": sum(rollout.finish == "length" for rollout in rollouts) / len(rollouts),
            "evaluation/interrupted": sum(True in rollout.forced for rollout in rollouts) / len(rollouts),
            "evaluation/verifier_errors": failures.count,
        },
    }
    return row, groups

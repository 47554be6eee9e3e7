"""An evaluation: mean pass rate of one frozen policy version on the task's held-out prompts."""

from rlsweep.recipe.schema import Recipe
from rlsweep.rollout.protocol import Rollout, RolloutEngine
from rlsweep.store.rows import Row
from rlsweep.tasks.protocol import Task
from rlsweep.train.intake import Intake, Tokens, requests


def evaluate(recipe: Recipe, task: Task, tokens: Tokens, intake: Intake, engine: RolloutEngine, step: int) -> Row:
    """Sample `evaluation.samples` responses to each held-out prompt from the version the engine was last given.

    Returns the journal's evaluation row without clocks and time: the successes of each prompt, from which the pass rate
    and its sampling variance follow. Groups for training that arrive meanwhile go to the intake.
    """
    prompts = task.held_out(recipe.evaluation.prompts)
    encoded = [tokens.encode(prompt.text) for prompt in prompts]
    options = recipe.evaluation
    # Ids below 0 tell them from groups for training: -1 is the first prompt.
    ids = range(-1, -1 - len(prompts), -1)
    engine.submit(requests(recipe, ids, encoded, "evaluation", step, options.samples, options.temperature))
    counts: dict[int, int] = {}
    rollouts: list[Rollout] = []
    while len(counts) < len(prompts):
        for group in intake.collect(engine):
            prompt = prompts[-1 - group.id]
            counts[group.id] = sum(tokens.grade(prompt, rollout) == "correct" for rollout in group.rollouts)
            rollouts.extend(group.rollouts)
    return {
        "kind": "evaluation",
        "step": step,
        "counts": [counts[id_] for id_ in ids],
        "samples": options.samples,
        "metrics": {
            "evaluation/pass_rate": sum(counts.values()) / len(rollouts),
            "evaluation/response_tokens": sum(len(rollout.tokens) for rollout in rollouts) / len(rollouts),
            "evaluation/truncated": sum(rollout.finish == "length" for rollout in rollouts) / len(rollouts),
            "evaluation/interrupted": sum(True in rollout.forced for rollout in rollouts) / len(rollouts),
        },
    }

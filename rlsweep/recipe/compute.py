"""What a run will cost, known before it starts."""

from dataclasses import dataclass

from rlsweep.recipe.model import HEAD_SIZE, Embedded
from rlsweep.recipe.off_policy import OffPolicy, Pipeline
from rlsweep.recipe.schema import Recipe

VOCABULARY = 54
"""Symbols of the embedded model's tokenizer."""
PROMPT_TOKENS = 8
"""Length of a prompt of the embedded task: the state, six places for operations, the equals sign."""
_WEIGHT, _MOMENTS = 4, 8
"""Bytes a parameter: float32 weights, and AdamW's two moments."""
_TOKEN = 17
"""Bytes of a token in a rollout that waits to be trained on: id, log-probability, whether it was forced."""
_ROW, _SAMPLE, _SHOWN = 2_000, 700, 6
"""Bytes at most of a step's row in the journal, of a sample besides its text, and of one of its tokens as text."""
SAMPLES, SAMPLES_EVERY = 32, 10
"""So many rollouts are written down with each evaluation, and each time after so many steps."""
_FIXED = 100_000
"""Bytes of a run's small files: recipe, provenance with a diff, configuration and tokenizer of a tiny model."""


def embedded_parameters(model: Embedded, vocabulary: int = VOCABULARY) -> int:
    """Parameters of the embedded model: Qwen3 with tied embeddings and no biases, norms included."""
    attention = 2 * model.width * (model.heads + model.kv_heads) * HEAD_SIZE
    feed_forward = 3 * model.width * model.feed_forward
    norms = 2 * model.width + 2 * HEAD_SIZE
    return vocabulary * model.width + model.layers * (attention + feed_forward + norms) + model.width


@dataclass(frozen=True)
class Disk:
    """Bytes of a run's folder, at most: while it goes on, once it has finished, and after `rlsweep gc`."""

    running: int
    finished: int
    collected: int


def disk(recipe: Recipe) -> Disk | None:
    """What a run needs on disk; None where nobody knows the model's size.

    While a run goes on two whole checkpoints stand beside the one that is being written, and the weights of every
    step to keep; then the last one; after `rlsweep gc` its weights.
    """
    execution, steps = recipe.execution, recipe.budget.steps
    parameters = execution.parameters
    if isinstance(recipe.model, Embedded):
        parameters = embedded_parameters(recipe.model)
    if parameters is None:
        return None
    options = recipe.off_policy
    waiting = options.k if isinstance(options, Pipeline) else options.k - 1  # batches
    ahead = waiting * recipe.batch.prompts * recipe.batch.rollouts * recipe.sampling.max_tokens
    weights, resume = _WEIGHT * parameters, _MOMENTS * parameters + _TOKEN * ahead
    kept = (steps - 1) // execution.keep_every * weights if execution.keep_every else 0
    evaluations = steps // recipe.evaluation.every + 2
    files = steps // SAMPLES_EVERY + evaluations
    texts = files * SAMPLES * (_SAMPLE + _SHOWN * recipe.sampling.max_tokens)
    rows = _ROW * (steps + evaluations) + 4 * recipe.evaluation.prompts * evaluations
    rest = _FIXED + kept + texts + rows
    return Disk(rest + 3 * (weights + resume), rest + weights + resume, rest + weights)


def batches_sampled(options: OffPolicy, steps: int) -> int:
    """Batches that are sampled in `steps` steps: admission runs ahead of training, by up to k batches."""
    if isinstance(options, Pipeline):
        return steps + options.k
    return -(-steps // options.k) * options.k


def at_most(recipe: Recipe, trained: int = 0) -> dict[str, int]:
    """Upper bounds for the steps from `trained` to the budget, evaluations left out; one nobody can know is left out.

    `rollouts`, where those waiting to be trained on are sampled again; `response_tokens`, every response as long as it
    may be; `flops` = 2N x generated tokens + 6N x trained tokens, N parameters, prompts counted in both and no group
    dropped, where N is known (ours: Kaplan et al.'s rule without attention's share, as in the clock of a run).
    """
    steps = recipe.budget.steps
    batch = recipe.batch.prompts * recipe.batch.rollouts
    sampled, learned = 0, 0
    if trained < steps:
        sampled, learned = (batches_sampled(recipe.off_policy, steps) - trained) * batch, (steps - trained) * batch
    bounds = {"rollouts": sampled, "response_tokens": sampled * recipe.sampling.max_tokens}
    if isinstance(recipe.model, Embedded):
        tokens = PROMPT_TOKENS + recipe.sampling.max_tokens
        bounds["flops"] = embedded_parameters(recipe.model) * tokens * (2 * sampled + 6 * learned)
    return bounds


def expected_device_hours(recipe: Recipe, trained: int = 0) -> float | None:
    """Device-hours that the steps from `trained` to the budget are expected to take; None where nobody measured it."""
    per_rollout = recipe.execution.device_hours_per_rollout
    if per_rollout is None:
        return None
    steps = max(0, recipe.budget.steps - trained)
    return steps * recipe.batch.prompts * recipe.batch.rollouts * per_rollout

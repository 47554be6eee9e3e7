"""What a run will cost at most, known before it starts."""

from rlsweep.recipe.model import Embedded
from rlsweep.recipe.schema import Recipe

HEAD_SIZE = 32
"""Width of an attention head of the embedded model."""
VOCABULARY = 54
"""Symbols of the embedded model's tokenizer."""
PROMPT_TOKENS = 8
"""Length of a prompt of the embedded task: the state, six places for operations, the equals sign."""


def embedded_parameters(model: Embedded, vocabulary: int = VOCABULARY) -> int:
    """Parameters of the embedded model: Qwen3 with tied embeddings and no biases, norms included."""
    attention = 2 * model.width * (model.heads + model.kv_heads) * HEAD_SIZE
    feed_forward = 3 * model.width * model.feed_forward
    norms = 2 * model.width + 2 * HEAD_SIZE
    return vocabulary * model.width + model.layers * (attention + feed_forward + norms) + model.width


def planned(recipe: Recipe) -> dict[str, int | float]:
    """Upper bounds for the whole budget, evaluations left out; a bound that nobody can know is left out.

    `rollouts`; `response_tokens`, every response as long as it may be; `device_hours`, where a step's are known;
    `flops` = 2N x generated tokens + 6N x trained tokens, N parameters, prompts counted in both and no group dropped,
    where N is known (ours: Kaplan et al.'s rule without attention's share, as in the clock of a run).
    """
    rollouts = recipe.budget.steps * recipe.batch.prompts * recipe.batch.rollouts
    bounds: dict[str, int | float] = {
        "rollouts": rollouts,
        "response_tokens": rollouts * recipe.sampling.max_tokens,
    }
    if recipe.execution.device_hours_per_step is not None:
        bounds["device_hours"] = recipe.budget.steps * recipe.execution.device_hours_per_step
    if isinstance(recipe.model, Embedded):
        tokens = rollouts * (PROMPT_TOKENS + recipe.sampling.max_tokens)
        bounds["flops"] = (2 + 6) * embedded_parameters(recipe.model) * tokens
    return bounds

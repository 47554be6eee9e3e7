"""Floating-point operations of a run by the usual estimate: 2 N a token forward, 6 N a token forward and backward.

N is the number of parameters. Attention's own products and the sampler's repeated prompt are left out, as is usual;
evaluations are booked apart and not counted.
"""


def generation_flops(parameters: int, tokens: int) -> int:
    """FLOPs of generating: `tokens` counts the prompt and response tokens of every rollout."""
    return 2 * parameters * tokens


def training_flops(parameters: int, tokens: int) -> int:
    """FLOPs of training: `tokens` counts the prompt and response tokens of the rollouts that were trained on."""
    return 6 * parameters * tokens

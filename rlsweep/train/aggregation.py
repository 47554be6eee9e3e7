"""From losses of tokens to the loss of a step: one weight a rollout, with its divisor over the whole kept batch.

Notation: T_i counted tokens of rollout i, T_p of prompt p's rollouts, T of all; N rollouts, P prompts, G_p rollouts of
prompt p; L_max the token limit. All are counted over the kept batch of one optimizer step, over all ranks and
micro-batches, so weights are computed once from the whole batch and a micro-batch takes its slice. Nothing else
divides.
"""

from typing import Literal

import torch
from torch import Tensor

Aggregation = Literal["sample", "prompt", "token", "constant"]


def weights(
    kind: Aggregation, group_index: Tensor, tokens: Tensor, max_tokens: int, *, sequence_loss: bool = False
) -> Tensor:
    """Weight [N] (float64) of each token of rollout i, so that the step's loss is sum_i w_i sum_t m_it L_it.

    | kind     | w_i            | named in papers and libraries                                     |
    | -------- | -------------- | ----------------------------------------------------------------- |
    | sample   | 1 / (N T_i)    | GRPO                                                              |
    | prompt   | 1 / (P T_p)    | ScaleRL; DAPO in its paper                                        |
    | token    | 1 / T          | "DAPO" in most libraries                                          |
    | constant | 1 / (N L_max)  | Dr. GRPO                                                          |

    A sequence loss (GSPO), laid out over tokens, has sequences averaged: sample 1 / (N T_i), prompt 1 / (P G_p T_i).

    `group_index` [N] says which group a rollout belongs to, by any integers: a prompt that is asked twice in a batch
    has two groups. `tokens` [N] is T_i; `max_tokens` is L_max. A rollout without a counted token has weight 0 and
    counts in none of N, P, G_p: padding rows change nothing.
    """
    assert group_index.shape == tokens.shape and tokens.ndim == 1, (group_index.shape, tokens.shape)
    assert not sequence_loss or kind in ("sample", "prompt"), kind
    length = tokens.double()
    counted = length > 0
    rollouts = counted.sum()
    if kind == "sample":
        divisor = rollouts * length
    elif kind == "prompt":
        groups, group = torch.unique(group_index, return_inverse=True)
        empty = length.new_zeros(len(groups))
        group_tokens = empty.index_add(0, group, length)
        prompts = (group_tokens > 0).sum()
        if sequence_loss:
            group_size = empty.index_add(0, group, counted.double())
            divisor = prompts * group_size[group] * length
        else:
            divisor = prompts * group_tokens[group]
    elif kind == "token":
        divisor = length.sum().expand(len(length))
    else:
        divisor = (rollouts.double() * max_tokens).expand(len(length))
    return torch.where(counted, 1 / divisor, 0.0)


def aggregate(loss: Tensor, weight: Tensor) -> Tensor:
    """sum_i w_i sum_t L_it of a batch or a slice of it: `loss` [N, T] is 0 where it doesn't count, `weight` is [N].

    Slices add up to the whole. No rollouts at all (every group was filtered) give 0 with a graph behind it, so that
    each rank can still run its backward pass.
    """
    assert weight.shape == loss.shape[:1], (weight.shape, loss.shape)
    return (loss.sum(dim=1) * weight.to(loss.dtype)).sum()

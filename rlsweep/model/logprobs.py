"""Log-probabilities of given responses, as the trainer sees them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from rlsweep.model.context import Context
from rlsweep.model.head import body, head_logits
from rlsweep.model.padding import padded, present


@dataclass(frozen=True)
class Packed:
    """N sequences, right-padded: `ids` [N, L], and where their responses' tokens stand.

    `targets` [N, T] are the response tokens, `sources` [N, T] the positions whose hidden state predicts them, `valid`
    [N, T] false beyond the end of a response.
    """

    ids: torch.Tensor
    sources: torch.Tensor
    targets: torch.Tensor
    valid: torch.Tensor


def pack(prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], device: torch.device | str) -> Packed:
    """Pad N prompts with their responses on the right; the id of padding is never looked at."""
    ids = padded([(*prompt, *response) for prompt, response in zip(prompts, responses, strict=True)], int)
    valid = torch.from_numpy(present(responses))
    ends = torch.tensor([len(prompt) - 1 for prompt in prompts])
    sources = torch.where(valid, ends[:, None] + torch.arange(valid.shape[1]), 0)
    return Packed(*(tensor.to(device) for tensor in (ids, sources, padded(responses, int), valid)))


def response_logprobs(
    model: PreTrainedModel,
    packed: Packed,
    *,
    temperature: float,
    dtype: str,
    head_dtype: str,
    begun: tuple[torch.Tensor, Context] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability [N, T] of every response token at `temperature`, and the entropy [N, T] (no gradient) there.

    Zero where `packed.valid` is false. Where the prompts are computed already, `begun` has the hidden states [N, width]
    at their ends, and what was read so far.
    """
    # Causal attention looks left only, so padding on the right needs no mask.
    if begun is None:
        hidden = body(model, dtype, input_ids=packed.ids, attention_mask=None, use_cache=False)
        hidden = hidden[torch.arange(len(hidden), device=hidden.device)[:, None], packed.sources]
    else:
        ends, context = begun
        hidden = ends[:, None]
        if packed.targets.shape[1] > 1:  # the last token predicts nothing
            hidden = torch.cat([hidden, context.read(packed.targets[:, :-1])], 1)
    # The head is the largest product: it is made for response tokens only.
    logs = torch.log_softmax(head_logits(model, hidden[packed.valid], head_dtype) / temperature, -1)
    picked = logs.gather(-1, packed.targets[packed.valid][:, None]).squeeze(-1)
    with torch.no_grad():
        entropy = -(logs.exp() * logs).sum(-1)
    shape = packed.targets.shape
    return (
        torch.zeros(shape, device=hidden.device).masked_scatter(packed.valid, picked),
        torch.zeros(shape, device=hidden.device).masked_scatter(packed.valid, entropy),
    )

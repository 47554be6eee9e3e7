"""Log-probabilities of given responses, as the trainer sees them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from rlsweep.model.head import body, head_logits


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
    prompt_length = torch.tensor([len(prompt) for prompt in prompts])[:, None]
    length = torch.tensor([len(response) for response in responses])[:, None]
    place = torch.arange(int(length.max()))
    valid = place < length
    ids = _padded([[*prompt, *response] for prompt, response in zip(prompts, responses, strict=True)])
    sources = torch.where(valid, prompt_length - 1 + place, 0)
    return Packed(*(tensor.to(device) for tensor in (ids, sources, _padded(responses), valid)))


def _padded(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])


def response_logprobs(
    model: PreTrainedModel, packed: Packed, *, temperature: float, dtype: str, head_dtype: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability [N, T] of every response token at `temperature`, and the entropy [N, T] (no gradient) there.

    Zero where `packed.valid` is false. Causal attention looks left only, so padding on the right needs no mask.
    """
    hidden = body(model, dtype, input_ids=packed.ids, attention_mask=None, use_cache=False)
    rows = torch.arange(len(packed.ids), device=hidden.device)[:, None].expand_as(packed.sources)
    # The head is the largest product: it is made for response tokens only.
    chosen = hidden[rows[packed.valid], packed.sources[packed.valid]]
    logs = torch.log_softmax(head_logits(model, chosen, head_dtype) / temperature, -1)
    picked = logs.gather(-1, packed.targets[packed.valid][:, None]).squeeze(-1)
    with torch.no_grad():
        entropy = -(logs.exp() * logs).sum(-1)
    shape = packed.targets.shape
    return (
        torch.zeros(shape, device=hidden.device).masked_scatter(packed.valid, picked),
        torch.zeros(shape, device=hidden.device).masked_scatter(packed.valid, entropy),
    )

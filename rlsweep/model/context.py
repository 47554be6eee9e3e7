"""What a causal model has read: a prompt is computed once, and continued by all the rollouts that answer it."""

from collections.abc import Iterable, Sequence
from typing import cast

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from rlsweep.model.head import body
from rlsweep.model.padding import padded, present


class Context:
    """Keys and values of all that N rows have read so far."""

    def __init__(self, model: PreTrainedModel, dtype: str):
        self._model = model
        self._dtype = dtype
        self.cache = DynamicCache(config=model.config)
        self.attention: torch.Tensor | None = None
        """[N, tokens so far], 0 at padding; nothing where there is none, because attention is faster without a mask."""

    def read_prompts(self, prompts: Sequence[tuple[int, ...]], device: torch.device) -> torch.Tensor:
        """Hidden states [N, width] at the ends of N prompts, which are padded on the left."""
        there = torch.from_numpy(present(prompts, left=True).astype(int))
        if not there.all():
            self.attention = there.to(device)
        return self._read(padded(prompts, int, left=True).to(device))[:, -1]

    def read(self, ids: torch.Tensor) -> torch.Tensor:
        """Hidden states [N, L, width] of the next tokens `ids` [N, L]."""
        if self.attention is not None:
            self.attention = torch.cat([self.attention, self.attention.new_ones(ids.shape)], 1)
        return self._read(ids)

    def select(self, rows: torch.Tensor) -> None:
        """Go on with `rows` [M], each as often as it is named."""
        self.cache.reorder_cache(cast(torch.LongTensor, rows))
        if self.attention is not None:
            self.attention = self.attention[rows]

    def _read(self, ids: torch.Tensor) -> torch.Tensor:
        inputs: dict[str, object] = {"input_ids": ids, "past_key_values": self.cache, "use_cache": True}
        if self.attention is not None:
            places = (self.attention.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
            inputs |= {"attention_mask": self.attention, "position_ids": places}
        return body(self._model, self._dtype, **inputs)


class SharedPrompts:
    """The prompts of a batch, computed once with a graph behind them, and continued by the rows of any micro-batch.

    The backward pass of a micro-batch ends at the prompts' last hidden states, keys and values. There the gradient is
    added up, and after the last micro-batch `backward` sends it through the prompts.
    """

    def __init__(self, model: PreTrainedModel, dtype: str, prompts: Iterable[tuple[int, ...]], device: torch.device):
        self._model = model
        self._dtype = dtype
        self._places = {prompt: place for place, prompt in enumerate(dict.fromkeys(prompts))}
        context = Context(model, dtype)
        ends = context.read_prompts(list(self._places), device)
        self._attention = context.attention
        states = (state for keys, values, _ in context.cache for state in (keys, values))
        self._computed: list[torch.Tensor] = [ends, *states]
        self._cut = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in self._computed]

    def begin(self, prompts: Sequence[tuple[int, ...]]) -> tuple[torch.Tensor, Context]:
        """Hidden states [N, width] at the ends of N of the prompts, and the context that goes on from there."""
        rows = torch.tensor([self._places[prompt] for prompt in prompts], device=self._cut[0].device)
        ends, *states = (cut[rows] for cut in self._cut)
        context = Context(self._model, self._dtype)
        for layer, (keys, values) in enumerate(zip(states[::2], states[1::2], strict=True)):
            context.cache.update(keys, values, layer)
        context.attention = None if self._attention is None else self._attention[rows]
        return ends, context

    def backward(self) -> None:
        """Gradients of the parameters by way of the prompts, added to those of the micro-batches."""
        reached = [place for place, cut in enumerate(self._cut) if cut.grad is not None]
        if reached:
            torch.autograd.backward([self._computed[at] for at in reached], [self._cut[at].grad for at in reached])


def can_share_prompts(model: PreTrainedModel) -> bool:
    """Whether keys and values of full attention are all that the model remembers: nothing else is cut and rejoined."""
    return all(type(layer) is DynamicLayer for layer in DynamicCache(config=model.config).layers)

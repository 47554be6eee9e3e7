"""The engine in the trainer's process: a batched sampler with a KV cache, for any causal model of `transformers`."""

import copy
from collections.abc import Sequence

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel

from rlsweep.model.head import body, head_logits
from rlsweep.rollout.protocol import Group, Interruption, Request, Rollout

ROWS = 2048
"""Most rollouts that are sampled side by side."""
COMPACT_BELOW = 0.8
"""Finished rows are taken out of the cache once so few are left: a copy costs about as much as a step of the rest."""


class LocalEngine:
    """Samples what is submitted before `submit` returns, so that its lag is exactly what the trainer admitted."""

    def __init__(
        self, model: PreTrainedModel, *, eos: int, dtype: str, head_dtype: str, interruption: Interruption | None = None
    ):
        self._model = copy.deepcopy(model).eval().requires_grad_(False)
        self._eos = eos
        self._dtype = dtype
        self._head_dtype = head_dtype
        self._interruption = interruption
        self._version = 0
        self._finished: list[Group] = []

    def submit(self, requests: Sequence[Request]) -> None:
        """Sample at once, from what was published last: what is admitted at version v is sampled by version v."""
        waiting = list(requests)
        while waiting:
            chosen = [waiting.pop(0)]
            rows = chosen[0].count
            # A block has one temperature; groups stay whole.
            while waiting and waiting[0].temperature == chosen[0].temperature and rows + waiting[0].count <= ROWS:
                rows += waiting[0].count
                chosen.append(waiting.pop(0))
            self._finished.extend(self._sample(chosen))

    def collect(self, *, wait: bool) -> list[Group]:
        """All groups since the last call; nothing is ever waited for."""
        finished, self._finished = self._finished, []
        return finished

    def publish(self, version: int, model: torch.nn.Module) -> None:
        """Copy the weights of `model`."""
        self._model.load_state_dict(model.state_dict())
        self._version = version

    def close(self) -> None:
        """Drop what was not collected."""
        self._finished.clear()

    @torch.inference_mode()
    def _sample(self, requests: list[Request]) -> list[Group]:
        block = _Block(requests, self._model.device)
        cache = DynamicCache(config=self._model.config)
        rows = torch.arange(len(block.owner), device=block.owner.device)
        # A group's prompt is computed once, then each of its rollouts goes on from a copy.
        hidden = self._forward(block.prompts, block.attention, cache)[block.owner]
        cache.batch_select_indices(block.owner)
        attention = block.attention[block.owner]
        forced_left = torch.zeros_like(rows)
        ended = torch.zeros_like(rows, dtype=torch.bool)
        for position in range(block.longest):
            logs = torch.log_softmax(head_logits(self._model, hidden, self._head_dtype) / requests[0].temperature, -1)
            token = _draw(logs, block.noise[rows, position])
            logprob = logs.gather(-1, token[:, None]).squeeze(-1)
            forced = torch.zeros_like(ended)
            if self._interruption is not None:
                forced, token, forced_left = self._force(block, rows, position, token, ended, forced_left)
                logprob = logprob.masked_fill(forced, 0.0)
            block.record(rows, position, token, logprob, forced)
            if self._interruption is not None:
                ended = ended | _ends_with(block.tokens[rows, : position + 1], self._interruption.end)
            alive = block.finish(rows, position, stopped=(token == self._eos) & ~forced)
            left = int(alive.sum())
            if left == 0:
                break
            attention = torch.cat([attention, attention.new_ones(len(attention), 1)], 1)
            if left < COMPACT_BELOW * len(rows):
                keep = alive.nonzero().squeeze(-1)
                cache.batch_select_indices(keep)
                token, attention, rows = token[keep], attention[keep], rows[keep]
                ended, forced_left = ended[keep], forced_left[keep]
            hidden = self._forward(token[:, None], attention, cache)
        return block.groups(self._version)

    def _forward(self, ids: torch.Tensor, attention: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        """Last hidden state [N, width] after `ids` [N, L], the newest columns of `attention` [N, all tokens so far]."""
        places = (attention.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        return body(
            self._model,
            self._dtype,
            input_ids=ids,
            attention_mask=attention,
            position_ids=places,
            past_key_values=cache,
            use_cache=True,
        )[:, -1]

    def _force(
        self,
        block: "_Block",
        rows: torch.Tensor,
        position: int,
        token: torch.Tensor,
        ended: torch.Tensor,
        forced_left: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Put the phrase's tokens in the place of sampled ones where a rollout is being interrupted."""
        assert self._interruption is not None
        phrase = torch.tensor(self._interruption.phrase, device=token.device)
        starts = (block.interrupt_at[rows] == position) & ~ended
        left = torch.where(starts, len(phrase), forced_left)
        forced = left > 0
        token = torch.where(forced, phrase[(len(phrase) - left).clamp(max=len(phrase) - 1)], token)
        return forced, token, (left - 1).clamp(min=0)


class _Block:
    """Requests that are sampled side by side: one row a prompt (left-padded) and, of what is sampled, one a rollout.

    `owner` [rollouts] is the row of each rollout's prompt.
    """

    def __init__(self, requests: list[Request], device: torch.device):
        self.requests = requests
        counts = [request.count for request in requests]
        width = max(len(request.prompt) for request in requests)
        self.longest = max(request.max_tokens for request in requests)
        prompts = torch.zeros(len(requests), width, dtype=torch.long)
        attention = torch.zeros(len(requests), width, dtype=torch.long)
        noise = np.ones((sum(counts), self.longest))
        at = 0
        for row, request in enumerate(requests):
            prompts[row, width - len(request.prompt) :] = torch.tensor(request.prompt)
            attention[row, width - len(request.prompt) :] = 1
            drawn = np.random.default_rng(request.seed).random((request.count, request.max_tokens))
            noise[at : at + request.count, : request.max_tokens] = drawn
            at += request.count
        never = (self.longest,)
        positions = [p for request in requests for p in (request.interrupt_at or never * request.count)]
        rows = len(positions)
        self.prompts, self.attention = prompts.to(device), attention.to(device)
        self.owner = torch.repeat_interleave(torch.tensor(counts)).to(device)
        self.noise = torch.from_numpy(noise).to(device)
        self.limit = torch.tensor([request.max_tokens for request in requests], device=device)[self.owner]
        self.interrupt_at = torch.tensor(positions, device=device)
        self.tokens = torch.zeros(rows, self.longest, dtype=torch.long, device=device)
        self.logprobs = torch.zeros(rows, self.longest, device=device)
        self.forced = torch.zeros(rows, self.longest, dtype=torch.bool, device=device)
        self.length = torch.zeros(rows, dtype=torch.long, device=device)
        self.stopped = torch.zeros(rows, dtype=torch.bool, device=device)
        self.running = torch.ones(rows, dtype=torch.bool, device=device)

    def record(
        self, rows: torch.Tensor, position: int, token: torch.Tensor, logprob: torch.Tensor, forced: torch.Tensor
    ) -> None:
        """Write one token a row; rows that have finished but still stand in the cache write beyond their length."""
        self.tokens[rows, position] = token
        self.logprobs[rows, position] = logprob
        self.forced[rows, position] = forced

    def finish(self, rows: torch.Tensor, position: int, *, stopped: torch.Tensor) -> torch.Tensor:
        """Count the token of every row that is still running; which of `rows` go on."""
        running = self.running[rows]
        self.length[rows] = torch.where(running, position + 1, self.length[rows])
        self.stopped[rows] = self.stopped[rows] | (running & stopped)
        self.running[rows] = running & ~stopped & (position + 1 < self.limit[rows])
        return self.running[rows]

    def groups(self, version: int) -> list[Group]:
        """The finished rollouts."""
        columns = [c.tolist() for c in (self.tokens, self.logprobs, self.forced, self.length, self.stopped)]
        rollouts = [
            Rollout(
                tuple(tokens[:length]),
                tuple(logprobs[:length]),
                tuple(forced[:length]),
                ((version, 0, length),),
                "stop" if stopped else "length",
            )
            for tokens, logprobs, forced, length, stopped in zip(*columns, strict=True)
        ]
        groups, at = [], 0
        for request in self.requests:
            groups.append(Group(request.id, tuple(rollouts[at : at + request.count])))
            at += request.count
        return groups


def _draw(logs: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """One token a row [N] by inverting the distribution function of `logs` [N, V] at `noise` [N] in [0, 1)."""
    cumulated = logs.double().exp().cumsum(-1)
    wanted = noise * cumulated[:, -1]
    return torch.searchsorted(cumulated, wanted[:, None], right=True).squeeze(-1).clamp(max=logs.shape[-1] - 1)


def _ends_with(tokens: torch.Tensor, ending: tuple[int, ...]) -> torch.Tensor:
    """Which rows [N] of `tokens` [N, T] end with `ending`."""
    if tokens.shape[1] < len(ending):
        return torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
    return (tokens[:, -len(ending) :] == torch.tensor(ending, device=tokens.device)).all(1)

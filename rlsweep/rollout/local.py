"""The engine in the trainer's process: a batched sampler with a KV cache, for any causal model of `transformers`."""

import copy
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from rlsweep.model.context import Context
from rlsweep.model.head import head_logits
from rlsweep.rollout.protocol import Group, Interruption, Request, Rollout

ROWS = 2048
"""Most rollouts that are sampled side by side."""


class LocalEngine:
    """Samples what is submitted before `submit` returns, so that its lag is exactly what the trainer admitted."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        eos: int,
        dtype: str,
        head_dtype: str,
        interruption: Interruption | None = None,
        check: Callable[[], None] = lambda: None,
    ):
        """`check` is called at every token position, and what it raises ends `submit`: the engine is of no use then."""
        self._model = copy.deepcopy(model).eval().requires_grad_(False)
        self._eos = eos
        self._dtype = dtype
        self._head_dtype = head_dtype
        self._interruption = interruption
        self._check = check
        self._version = 0
        self._finished: list[Group] = []
        self._busy = 0.0

    def submit(self, requests: Sequence[Request]) -> None:
        """Sample at once, from what was published last: what is admitted at version v is sampled by version v."""
        began = time.monotonic()
        waiting = list(requests)
        while waiting:
            chosen = [waiting.pop(0)]
            rows = chosen[0].count
            # A block has one temperature; groups stay whole.
            while waiting and waiting[0].temperature == chosen[0].temperature and rows + waiting[0].count <= ROWS:
                rows += waiting[0].count
                chosen.append(waiting.pop(0))
            self._finished.extend(self._sample(chosen))
        self._busy += time.monotonic() - began

    def collect(self, *, wait: bool) -> list[Group]:
        """All groups since the last call; nothing is ever waited for."""
        finished, self._finished = self._finished, []
        return finished

    def publish(self, version: int, model: torch.nn.Module) -> None:
        """Copy the weights of `model`."""
        self._model.load_state_dict(model.state_dict())
        self._version = version

    def busy(self) -> float:
        """Seconds inside `submit` since the last call."""
        busy, self._busy = self._busy, 0.0
        return busy

    def close(self) -> None:
        """Drop what was not collected."""
        self._finished.clear()

    @torch.inference_mode()
    def _sample(self, requests: list[Request]) -> list[Group]:
        block = _Block(requests, self._model.device)
        context = Context(self._model, self._dtype)
        hidden = context.read_prompts([request.prompt for request in requests], block.owner.device)
        # Rollouts of a prompt that have said the same so far are one row of the model: `row` [running].
        running, row = torch.arange(len(block.owner), device=block.owner.device), block.owner
        forced_left = torch.zeros_like(running)
        ended = torch.zeros_like(running, dtype=torch.bool)
        for position in range(block.longest):
            self._check()
            logs = torch.log_softmax(head_logits(self._model, hidden, self._head_dtype) / requests[0].temperature, -1)
            token = _draw(logs[row], block.noise[running, position])
            logprob = logs[row, token]
            forced = torch.zeros_like(ended)
            if self._interruption is not None:
                forced, token, forced_left = self._force(block, running, position, token, ended, forced_left)
                logprob = logprob.masked_fill(forced, 0.0)
            block.record(running, position, token, logprob, forced)
            if self._interruption is not None:
                ended = ended | _ends_with(block.tokens[running, : position + 1], self._interruption.end)
            alive = block.finish(running, position, stopped=(token == self._eos) & ~forced)
            running, row, token = running[alive], row[alive], token[alive]
            ended, forced_left = ended[alive], forced_left[alive]
            if len(running) == 0:
                break
            vocabulary = logs.shape[-1]
            said, row = torch.unique(row * vocabulary + token, return_inverse=True)
            before = said // vocabulary
            if not torch.equal(before, torch.arange(len(hidden), device=before.device)):
                context.select(before)
            hidden = context.read((said % vocabulary)[:, None])[:, -1]
        return block.groups(self._version)

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
    """Requests that are sampled side by side, and what is sampled, one row a rollout.

    `owner` [rollouts] is the place of each rollout's request.
    """

    def __init__(self, requests: list[Request], device: torch.device):
        self.requests = requests
        counts = [request.count for request in requests]
        self.longest = max(request.max_tokens for request in requests)
        noise = np.ones((sum(counts), self.longest))
        at = 0
        for request in requests:
            drawn = np.random.default_rng(request.seed).random((request.count, request.max_tokens))
            noise[at : at + request.count, : request.max_tokens] = drawn
            at += request.count
        never = (self.longest,)
        positions = [p for request in requests for p in (request.interrupt_at or never * request.count)]
        rows = len(positions)
        self.owner = torch.repeat_interleave(torch.tensor(counts)).to(device)
        self.noise = torch.from_numpy(noise).to(device)
        self.limit = torch.tensor([request.max_tokens for request in requests], device=device)[self.owner]
        self.interrupt_at = torch.tensor(positions, device=device)
        self.tokens = torch.zeros(rows, self.longest, dtype=torch.long, device=device)
        self.logprobs = torch.zeros(rows, self.longest, device=device)
        self.forced = torch.zeros(rows, self.longest, dtype=torch.bool, device=device)
        self.length = torch.zeros(rows, dtype=torch.long, device=device)
        self.stopped = torch.zeros(rows, dtype=torch.bool, device=device)

    def record(
        self, rows: torch.Tensor, position: int, token: torch.Tensor, logprob: torch.Tensor, forced: torch.Tensor
    ) -> None:
        """Write one token of each of `rows`."""
        self.tokens[rows, position] = token
        self.logprobs[rows, position] = logprob
        self.forced[rows, position] = forced

    def finish(self, rows: torch.Tensor, position: int, *, stopped: torch.Tensor) -> torch.Tensor:
        """Count the token of each of `rows`; which of them go on."""
        self.length[rows] = position + 1
        self.stopped[rows] = stopped
        return ~stopped & (position + 1 < self.limit[rows])

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
    cumulated = logs.exp().cumsum(-1, dtype=torch.float64)
    wanted = noise * cumulated[:, -1]
    return torch.searchsorted(cumulated, wanted[:, None], right=True).squeeze(-1).clamp(max=logs.shape[-1] - 1)


def _ends_with(tokens: torch.Tensor, ending: tuple[int, ...]) -> torch.Tensor:
    """Which rows [N] of `tokens` [N, T] end with `ending`."""
    if tokens.shape[1] < len(ending):
        return torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
    return (tokens[:, -len(ending) :] == torch.tensor(ending, device=tokens.device)).all(1)

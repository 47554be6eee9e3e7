"""The rollout engine as the trainer sees it. Every call returns when it is done; an engine over HTTP hides its loop."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch


@dataclass(frozen=True)
class Interruption:
    """Thinking that has not come to `end` by a rollout's own position is cut: the tokens of `phrase` are forced."""

    phrase: tuple[int, ...]
    end: tuple[int, ...]


@dataclass(frozen=True)
class Request:
    """Sample one group: a response to `prompt` for each of `count` rollouts.

    `seed` decides every sampled token together with the weights, whatever else the engine works on. `interrupt_at`
    holds, for each rollout, the response position at which it may be interrupted, or nothing.
    """

    id: int
    prompt: tuple[int, ...]
    count: int
    seed: int
    temperature: float
    max_tokens: int
    interrupt_at: tuple[int, ...] = ()


@dataclass(frozen=True)
class Rollout:
    """One response: T tokens, the end-of-sequence token included, with what the behaviour policy thought of them.

    `logprobs` are at the sampling temperature; forced tokens were sampled by nobody and have 0 there. `versions` are
    spans (version, start, end) over the tokens.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    forced: tuple[bool, ...]
    versions: tuple[tuple[int, int, int], ...]
    finish: Literal["stop", "length"]


@dataclass(frozen=True)
class Group:
    """The rollouts of one request."""

    id: int
    rollouts: tuple[Rollout, ...]


class RolloutEngine(Protocol):
    """Requests in, finished groups out. An engine keeps nothing across checkpoints: the trainer submits again."""

    def submit(self, requests: Sequence[Request]) -> None:
        """Take requests; sampling may begin."""

    def collect(self, *, wait: bool) -> list[Group]:
        """Groups that are finished, in any order. With `wait`, at least one, unless nothing is outstanding."""

    def publish(self, version: int, model: torch.nn.Module) -> None:
        """What is sampled from here on comes from the weights of `model`, labelled `version`."""

    def busy(self) -> float:
        """Seconds spent sampling since the last call (the mean over devices, where there are several); waiting is none.

        0 at first.
        """

    def close(self) -> None:
        """End; outstanding requests are dropped."""

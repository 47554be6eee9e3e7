"""What a task is to the rest: prompts by index, a fixed held-out split, and a verifier of responses."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Outcome = Literal["correct", "wrong", "truncated", "unparseable"]


@dataclass(frozen=True)
class Prompt:
    """A question as the model reads it, and the reference answer that the verifier compares with."""

    text: str
    answer: str


class Task(Protocol):
    """Prompts and their verifier. Both splits depend on the task's own fields only, never on a run's seed."""

    @property
    def size(self) -> int:
        """Number of training prompts."""

    def prompt(self, index: int) -> Prompt:
        """Training prompt `index`, 0 <= index < size."""

    def held_out(self, count: int) -> Sequence[Prompt]:
        """The first `count` prompts of the evaluation split."""

    def answer(self, response: str) -> str | None:
        """The answer that the verifier finds in `response` (text without the end-of-sequence token), or None."""

    def grade(self, prompt: Prompt, response: str, *, stopped: bool) -> Outcome:
        """Outcome of `response` (text without the end-of-sequence token); `stopped` is false at the token limit."""

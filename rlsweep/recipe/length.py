"""What keeps responses from running into the token limit."""

from dataclasses import dataclass
from typing import Literal

from rlsweep.recipe.check import require


@dataclass(frozen=True, kw_only=True)
class Interrupt:
    """Thinking that goes on too long is cut by a forced phrase, after which the model answers (ScaleRL A.10).

    Forced tokens are nobody's choice: they leave loss, ratios and counts.
    """

    type: Literal["interrupt"] = "interrupt"
    """Kind of length control."""
    earliest: int = 10_000
    """First response token at which the phrase may be forced; drawn evenly for each rollout (ScaleRL A.10: 10k)."""
    latest: int = 12_000
    """Last response token at which the phrase may be forced (ScaleRL A.10: 12k)."""
    phrase: str = "Okay, time is up. Let me stop thinking and formulate a final answer now. </think>"
    """Text that is forced (ScaleRL A.10)."""
    end: str = "</think>"
    """Text that ends thinking: a response that holds it already is not interrupted."""

    def __post_init__(self) -> None:
        require(self.earliest >= 1, "earliest", self.earliest, "1 or more")
        require(self.latest >= self.earliest, "latest", self.latest, f"at least earliest ({self.earliest})", "earliest")
        require(bool(self.phrase), "phrase", self.phrase, "a text")
        require(bool(self.end), "end", self.end, "a text")
        ending = f"a text that ends with `end` ({self.end!r})"
        require(self.phrase.endswith(self.end), "phrase", self.phrase, ending, "end")


@dataclass(frozen=True, kw_only=True)
class Penalty:
    """Correct responses lose reward near the limit: clip((limit - tokens) / ramp - 1, -1, 0) (ScaleRL Eq. 9)."""

    type: Literal["penalty"] = "penalty"
    """Kind of length control."""
    limit: int = 14_336
    """Length in tokens at which the whole penalty of 1 is due (ScaleRL A.10: 14k)."""
    ramp: int = 2_048
    """Tokens over which the penalty grows from 0 to 1 (ScaleRL A.10: 2k)."""

    def __post_init__(self) -> None:
        require(self.limit >= 2, "limit", self.limit, "2 or more: at 1 all correct responses lose the same")
        require(1 <= self.ramp <= self.limit, "ramp", self.ramp, f"from 1 to limit ({self.limit})", "limit")


@dataclass(frozen=True, kw_only=True)
class NoLengthControl:
    """Responses end by themselves or at the token limit."""

    type: Literal["none"] = "none"
    """Kind of length control."""


Length = Interrupt | Penalty | NoLengthControl

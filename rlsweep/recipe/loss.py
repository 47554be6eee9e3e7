"""The policy loss of one token, before aggregation. Formulas: rlsweep/train/losses.py."""

from dataclasses import dataclass
from typing import Literal

from rlsweep.recipe.check import require


@dataclass(frozen=True, kw_only=True)
class Cispo:
    """Truncated importance weight on REINFORCE: every token keeps its gradient (ScaleRL 3.2, Eq. 4)."""

    type: Literal["cispo"] = "cispo"
    """Kind of loss."""
    eps_max: float = 5.0
    """Absolute cap of the importance ratio. The paper tries 4, 5 and 8 and doesn't say which it kept: our choice."""

    def __post_init__(self) -> None:
        require(self.eps_max > 0, "eps_max", self.eps_max, "above 0")


@dataclass(frozen=True, kw_only=True)
class Dapo:
    """PPO's clipped ratio with an asymmetric interval (ScaleRL 2.1 and A.16)."""

    type: Literal["dapo"] = "dapo"
    """Kind of loss."""
    eps_low: float = 0.2
    """The ratio is clipped below at 1 - eps_low (ScaleRL A.16: 0.2)."""
    eps_high: float = 0.26
    """The ratio is clipped above at 1 + eps_high (ScaleRL A.16: 0.26)."""

    def __post_init__(self) -> None:
        require(0 < self.eps_low <= 1, "eps_low", self.eps_low, "above 0 and at most 1")
        require(self.eps_high > 0, "eps_high", self.eps_high, "above 0")


@dataclass(frozen=True, kw_only=True)
class Gspo:
    """One clipped ratio a sequence: the geometric mean of its tokens' ratios (ScaleRL 3.2, A.17)."""

    type: Literal["gspo"] = "gspo"
    """Kind of loss."""
    eps_low: float = 3e-3
    """The sequence ratio is clipped below at 1 - eps_low (ScaleRL A.17: 3e-3). Short answers need a wider one."""
    eps_high: float = 4e-3
    """The sequence ratio is clipped above at 1 + eps_high (ScaleRL A.17: 4e-3). Short answers need a wider one."""

    def __post_init__(self) -> None:
        require(0 < self.eps_low <= 1, "eps_low", self.eps_low, "above 0 and at most 1")
        require(self.eps_high > 0, "eps_high", self.eps_high, "above 0")


@dataclass(frozen=True, kw_only=True)
class Grpo:
    """PPO's clipped ratio with a symmetric interval (ScaleRL A.16)."""

    type: Literal["grpo"] = "grpo"
    """Kind of loss."""
    eps: float = 0.2
    """The ratio is clipped to 1 - eps and 1 + eps (ScaleRL A.16: 0.2)."""

    def __post_init__(self) -> None:
        require(0 < self.eps <= 1, "eps", self.eps, "above 0 and at most 1")


@dataclass(frozen=True, kw_only=True)
class DrGrpo:
    """GRPO's clipped ratio without its two biases: only with `normalization: none` and `aggregation: constant`."""

    type: Literal["dr_grpo"] = "dr_grpo"
    """Kind of loss."""
    eps: float = 0.2
    """The ratio is clipped to 1 - eps and 1 + eps. Our choice: GRPO's."""

    def __post_init__(self) -> None:
        require(0 < self.eps <= 1, "eps", self.eps, "above 0 and at most 1")


Loss = Cispo | Dapo | Gspo | Grpo | DrGrpo

"""How rollouts are sampled for training."""

from dataclasses import dataclass

from rlsweep.recipe.check import require


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Plain sampling from the whole distribution: the trainer must be able to reproduce every probability."""

    temperature: float = 1.0
    """Softmax temperature, used by generator and trainer alike. The paper gives none: our choice."""
    max_tokens: int = 14_336
    """Longest response in tokens, thinking and answer together (ScaleRL 2.2: 12288 + 2048)."""

    def __post_init__(self) -> None:
        require(self.temperature > 0, "temperature", self.temperature, "above 0")
        require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "1 or more")

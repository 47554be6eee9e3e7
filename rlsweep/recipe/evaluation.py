"""How a policy is measured. The prompts come from the task's split and are the same for every run."""

from dataclasses import dataclass

from rlsweep.recipe.check import require


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Mean pass rate of one frozen policy version on held-out prompts (ScaleRL 2.2)."""

    every: int = 100
    """Steps between evaluations; step 0 and the last step are always measured (ScaleRL 2.2: 100)."""
    prompts: int = 1000
    """Held-out prompts (ScaleRL 2.2: 1000)."""
    samples: int = 16
    """Responses a prompt (ScaleRL 2.2: 16)."""
    temperature: float = 1.0
    """Softmax temperature. The paper gives none: our choice, as in training."""

    def __post_init__(self) -> None:
        for name in ("every", "prompts", "samples"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        require(self.temperature > 0, "temperature", self.temperature, "above 0")

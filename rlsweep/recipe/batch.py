"""How many rollouts one optimizer step sees."""

from dataclasses import dataclass

from rlsweep.recipe.check import require


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One optimizer step: `prompts` groups of `rollouts` responses each."""

    prompts: int = 48
    """Prompts a step (ScaleRL 2.2: 48)."""
    rollouts: int = 16
    """Rollouts a prompt: the size of a group (ScaleRL 2.2: 16)."""

    def __post_init__(self) -> None:
        require(self.prompts >= 1, "prompts", self.prompts, "1 or more")
        # Alone, a rollout is the mean of its group: its advantage is 0 whatever it earned.
        require(self.rollouts >= 2, "rollouts", self.rollouts, "2 or more: nothing is learnt from groups of one")

"""How long a run goes on. Not part of what a run is: raising it continues the run."""

from dataclasses import dataclass

from rlsweep.recipe.check import require


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The run ends once it has made so many steps."""

    steps: int = 6000
    """Optimizer steps. Our choice: about the length of the paper's leave-one-out runs (16,000 of its GPU-hours)."""

    def __post_init__(self) -> None:
        require(self.steps >= 1, "steps", self.steps, "1 or more")

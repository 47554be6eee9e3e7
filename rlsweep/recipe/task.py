"""What the model is trained and measured on: prompts and the verifier of their answers."""

from dataclasses import dataclass
from typing import Literal

from rlsweep.recipe.check import require


@dataclass(frozen=True, kw_only=True)
class Registers:
    """The embedded task: apply 2 to 6 operations, some wrongly believed, to a hex digit. Needs no download."""

    type: Literal["registers"] = "registers"
    """Kind of task."""
    table_seed: int = 10
    """Seed of the operations and of the misconceptions in the demonstrations. Our choice, picked for its ceiling."""
    prompts: int = 4096
    """Size of the pool of training prompts; an epoch visits each once. Our choice."""

    def __post_init__(self) -> None:
        require(self.table_seed >= 0, "table_seed", self.table_seed, "0 or more")
        require(1 <= self.prompts <= 100_000, "prompts", self.prompts, "from 1 to 100000")


@dataclass(frozen=True, kw_only=True)
class Math:
    """Mathematics with a short answer that a symbolic verifier checks (ScaleRL 2.2)."""

    type: Literal["math"] = "math"
    """Kind of task."""
    dataset: str = ""
    """Hub name of the data set, or a local file."""
    revision: str = "main"
    """Commit of the data set on the hub; `main` moves and is only good for a plan."""

    def __post_init__(self) -> None:
        require(bool(self.dataset), "dataset", self.dataset, "a hub name or a file")


Task = Registers | Math

"""Which prompts are asked, and which groups are trained on."""

from dataclasses import dataclass
from typing import Literal

from rlsweep.recipe.check import require


@dataclass(frozen=True, kw_only=True)
class Curriculum:
    """Filters. Both read the verifier's raw outcome, before rewards and penalties."""

    zero_variance: Literal["drop", "keep"] = "drop"
    """What happens to a group whose answers are all right or all wrong: dropped without refill, or kept and
    counted in the denominators (ScaleRL 3.2: drop)."""
    no_positive_resampling: float | None = 0.9
    """A prompt whose pass rate so far reaches this is not asked again from the next epoch on; null asks all prompts
    for ever (ScaleRL 3.2: 0.9)."""

    def __post_init__(self) -> None:
        rate = self.no_positive_resampling
        require(rate is None or 0 < rate <= 1, "no_positive_resampling", rate, "above 0 and at most 1, or null")

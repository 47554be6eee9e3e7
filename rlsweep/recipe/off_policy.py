"""How far the policy that sampled a rollout may lag behind the policy that is trained on it."""

from dataclasses import dataclass
from typing import Literal

from rlsweep.recipe.check import require


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Batch b is sampled once version b - k exists: a constant lag of k updates (ScaleRL 3.1, PipelineRL-k)."""

    type: Literal["pipeline"] = "pipeline"
    """Kind of scheme."""
    k: int = 8
    """Largest lag in optimizer updates; 0 is synchronous (ScaleRL 3.1: 8)."""

    def __post_init__(self) -> None:
        require(0 <= self.k <= 1024, "k", self.k, "from 0 to 1024")


@dataclass(frozen=True, kw_only=True)
class Ppo:
    """k batches are sampled with one version, then trained one after another (ScaleRL 3.1, PPO-off-policy-k)."""

    type: Literal["ppo"] = "ppo"
    """Kind of scheme."""
    k: int = 8
    """Optimizer updates a generation phase; 1 is synchronous (ScaleRL 3.1: 8)."""

    def __post_init__(self) -> None:
        require(1 <= self.k <= 1024, "k", self.k, "from 1 to 1024")


OffPolicy = Pipeline | Ppo

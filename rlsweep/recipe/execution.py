"""On what a run is executed. Not part of what a run is: the result should not depend on it."""

from dataclasses import dataclass
from typing import Literal

from rlsweep.recipe.check import require


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Engine, devices and how work is cut."""

    engine: Literal["local", "vllm"] = "vllm"
    """What samples rollouts: `local` in the trainer's process, `vllm` in servers of its own."""
    device: Literal["cpu", "cuda"] = "cuda"
    """Where the trainer computes."""
    devices: int = 80
    """Accelerators a run occupies, generators and trainers together (ScaleRL 2.2: 64 + 16). With the `local` engine
    each is a process of its own, so that a run is started as that many."""
    threads: int = 1
    """CPU threads of the trainer. Sums depend on it in their last bits, so it belongs to the run folder."""
    microbatch_tokens: int = 65_536
    """Most tokens, padding included, in one forward and backward pass."""
    checkpoint_every: int = 50
    """Steps between checkpoints. The newest two are kept whole while a run goes on, and the last one at its end."""
    checkpoint_minutes: float | None = 20.0
    """Most minutes between checkpoints, at the end of a step; null counts steps alone. It bounds what a crash
    costs: a run that is asked to stop keeps its last finished step anyway. Our choice."""
    keep_every: int | None = None
    """The weights of each step that is a multiple of this are kept for good; null keeps none but the newest."""
    parameters: int | None = None
    """Parameters of the model, where it isn't at hand to be counted: only for `plan`."""
    device_hours_per_rollout: float | None = None
    """What a rollout is expected to cost, its share of training included, in device-hours, where somebody has measured
    it: only for `plan`."""

    def __post_init__(self) -> None:
        for name in ("devices", "threads", "microbatch_tokens", "checkpoint_every"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        for name in ("checkpoint_minutes", "keep_every", "parameters", "device_hours_per_rollout"):
            value = getattr(self, name)
            require(value is None or value > 0, name, value, "above 0, or null")

"""The optimizer: AdamW at a constant rate, so that no schedule depends on the budget."""

from dataclasses import dataclass

from rlsweep.recipe.check import require


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """AdamW with a linear warm-up and a constant learning rate after it."""

    lr: float = 5e-7
    """Learning rate (ScaleRL 2.2: 5e-7)."""
    warmup_steps: int = 100
    """Steps over which the rate grows linearly from 0 (ScaleRL 2.2: 100)."""
    weight_decay: float = 0.01
    """Decoupled weight decay (ScaleRL 2.2: 0.01)."""
    beta1: float = 0.9
    """Decay of the first moment. The paper gives none: our choice."""
    beta2: float = 0.95
    """Decay of the second moment. The paper gives none: our choice."""
    eps: float = 1e-15
    """Added to the root of the second moment; small, so that tiny gradients count (ScaleRL 2.2: 1e-15)."""
    grad_clip: float = 1.0
    """Largest norm of the gradient. The paper gives none: our choice."""

    def __post_init__(self) -> None:
        require(self.lr > 0, "lr", self.lr, "above 0: nothing is learnt at 0")
        require(self.lr <= 1e6, "lr", self.lr, "at most 1e6: float32 holds no weights beyond")
        require(self.warmup_steps >= 0, "warmup_steps", self.warmup_steps, "0 or more")
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "0 or more")
        for name in ("beta1", "beta2"):
            require(0 <= getattr(self, name) < 1, name, getattr(self, name), "from 0 to below 1")
        require(self.eps > 0, "eps", self.eps, "above 0")
        require(self.grad_clip > 0, "grad_clip", self.grad_clip, "above 0")

"""Policy losses before aggregation, and what is measured on the way.

Notation: l is the log-probability of a sampled token under the policy that is trained, b under the policy that sampled
it (as the sampler recorded it), A the rollout's advantage, r = exp(l - b) with the exponent clamped to +-20 (beyond it
the ratio is constant, so its gradient is 0), sg a stop-gradient. All losses are minimised. A loss of a token knows no
divisor: rlsweep/train/aggregation.py yields the weights that make one number of them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rlsweep.recipe.loss import Cispo, Dapo, DrGrpo, Grpo, Gspo, Loss

EXPONENT_LIMIT = 20.0


@dataclass(frozen=True)
class LossStatistics:
    """Sums over counted tokens, so that those of micro-batches and ranks add up. The default is the sum over nothing.

    The ratio is r of the token for every loss, GSPO included, so that recipes can be compared.
    """

    tokens: int = 0
    clipped: int = 0
    mismatch: float = 0.0
    mismatch_max: float = 0.0
    ratio: float = 0.0
    ratio_squared: float = 0.0

    def merge(self, other: "LossStatistics") -> "LossStatistics":
        """Statistics of both sets of tokens together."""
        return LossStatistics(
            tokens=self.tokens + other.tokens,
            clipped=self.clipped + other.clipped,
            mismatch=self.mismatch + other.mismatch,
            mismatch_max=max(self.mismatch_max, other.mismatch_max),
            ratio=self.ratio + other.ratio,
            ratio_squared=self.ratio_squared + other.ratio_squared,
        )

    def metrics(self) -> dict[str, float]:
        """The journal's metrics of one step; none where no token was counted (all of its groups were filtered).

        `train/clip_fraction`: share of tokens whose ratio was capped (CISPO, either sign of A) or whose gradient was
        cut (the others). `train/mismatch_*`: |l - b| in nats. `train/effective_sample_size`: (sum r)^2 / (n sum r^2),
        from 1/n to 1; 1 where trainer and sampler agree.
        """
        if self.tokens == 0:
            return {}
        return {
            "train/clip_fraction": self.clipped / self.tokens,
            "train/mismatch_mean": self.mismatch / self.tokens,
            "train/mismatch_max": self.mismatch_max,
            "train/effective_sample_size": self.ratio**2 / (self.tokens * self.ratio_squared),
        }


def policy_loss(
    options: Loss, logp: Tensor, behaviour_logp: Tensor, advantage: Tensor, mask: Tensor
) -> tuple[Tensor, LossStatistics]:
    """Loss of every token [N, T] and statistics over the counted ones.

    `logp` [N, T] is l, with gradient; `behaviour_logp` [N, T] is b; `advantage` [N] is A; `mask` [N, T] is True where
    the token was sampled and counts. A row is a whole rollout. Where the mask is False the loss is 0 and sends no
    gradient, whatever stands there. Non-finite values in counted positions stay visible in the loss.
    """
    assert logp.ndim == 2 and logp.shape == behaviour_logp.shape == mask.shape, (logp.shape, mask.shape)
    assert advantage.shape == logp.shape[:1], (advantage.shape, logp.shape)
    assert mask.dtype == torch.bool, mask.dtype
    # Selected before any arithmetic: 0 * nan is nan, in the forward and in the backward pass.
    logp = torch.where(mask, logp, 0.0)
    log_ratio = logp - torch.where(mask, behaviour_logp.detach(), 0.0).to(logp.dtype)
    loss, clipped = _LOSSES[type(options)](options, logp, log_ratio, advantage.detach().to(logp.dtype)[:, None], mask)
    return torch.where(mask, loss, 0.0), _statistics(log_ratio.detach(), clipped & mask, mask)


def is_sequence_loss(options: Loss) -> bool:
    """Whether the loss has one ratio a sequence, so that aggregation weighs sequences and not tokens."""
    return isinstance(options, Gspo)


def _cispo(options: Cispo, logp: Tensor, log_ratio: Tensor, advantage: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """L = -sg(min(r, eps_max)) A l: every token keeps its gradient (ScaleRL Eq. 4). The value means nothing."""
    ratio = _exp(log_ratio.detach())
    return -ratio.clamp(max=options.eps_max) * advantage * logp, ratio > options.eps_max


def _dapo(options: Dapo, logp: Tensor, log_ratio: Tensor, advantage: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """L = -min(r A, clip(r, 1 - eps_low, 1 + eps_high) A) (ScaleRL Eq. 8; arXiv 2503.14476)."""
    return _clip(_exp(log_ratio), advantage, options.eps_low, options.eps_high)


def _grpo(
    options: Grpo | DrGrpo, logp: Tensor, log_ratio: Tensor, advantage: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """L = -min(r A, clip(r, 1 - eps, 1 + eps) A). Dr. GRPO differs by advantages and divisor, not here."""
    return _clip(_exp(log_ratio), advantage, options.eps, options.eps)


def _gspo(options: Gspo, logp: Tensor, log_ratio: Tensor, advantage: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The sequence's -min(s A, clip(s, 1 - eps_low, 1 + eps_high) A) at each of its tokens, s = exp(mean of l - b).

    Laid out over tokens (arXiv 2507.18071, GSPO-token): log s_t = l - sg(l) + sg(log s), so that with a sequence's
    weight divided by its length both value and gradient are those of the sequence's loss.
    """
    tokens = mask.sum(dim=1, keepdim=True).clamp(min=1)
    log_sequence_ratio = log_ratio.detach().sum(dim=1, keepdim=True) / tokens
    # In this order: the small difference first, the large constant last.
    return _clip(_exp((logp - logp.detach()) + log_sequence_ratio), advantage, options.eps_low, options.eps_high)


_LOSSES: dict[type, Callable[..., tuple[Tensor, Tensor]]] = {
    Cispo: _cispo,
    Dapo: _dapo,
    Gspo: _gspo,
    Grpo: _grpo,
    DrGrpo: _grpo,
}


def _exp(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-EXPONENT_LIMIT, EXPONENT_LIMIT).exp()


def _clip(ratio: Tensor, advantage: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """PPO's pessimistic bound [N, T], and where it cuts the gradient."""
    loss = -torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
    return loss, ((advantage > 0) & (ratio > 1 + high)) | ((advantage < 0) & (ratio < 1 - low))


def _statistics(log_ratio: Tensor, clipped: Tensor, mask: Tensor) -> LossStatistics:
    log_ratio = log_ratio.double()
    mismatch = log_ratio.abs()
    ratio = torch.where(mask, _exp(log_ratio), 0.0)
    largest = mismatch.max() if mismatch.numel() else mismatch.sum()
    # One transfer from the device, not six.
    tokens, cut, *sums = torch.stack(
        [mask.sum().double(), clipped.sum().double(), mismatch.sum(), largest, ratio.sum(), ratio.square().sum()]
    ).tolist()
    return LossStatistics(int(tokens), int(cut), *sums)

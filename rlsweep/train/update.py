"""One optimizer step on a batch of graded groups: filters, advantages, weights, micro-batches, gradient."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from transformers import PreTrainedModel

from rlsweep.model.context import SharedPrompts, can_share_prompts
from rlsweep.model.logprobs import pack, response_logprobs
from rlsweep.model.padding import padded
from rlsweep.recipe.schema import Recipe
from rlsweep.rollout.protocol import Rollout
from rlsweep.train.advantages import advantages, zero_variance
from rlsweep.train.aggregation import aggregate, weights
from rlsweep.train.intake import Graded
from rlsweep.train.losses import LossStatistics, is_sequence_loss, policy_loss
from rlsweep.train.ranks import ALONE, Ranks
from rlsweep.train.rewards import correct, reward

SHARED_FROM = 0.2
"""Share of a batch's tokens, all in repeated prompts, from which each prompt is computed only once: attention to what
is computed already needs a mask, and that costs the more the longer responses are."""


class Diverged(Exception):
    """A loss, gradient or policy that is not finite: the run ends, its last good checkpoint stays."""


@dataclass(frozen=True)
class TrainingBatch:
    """N rollouts that are trained on, with one advantage [N] and one aggregation weight [N] each."""

    prompts: list[tuple[int, ...]]
    rollouts: list[Rollout]
    advantage: torch.Tensor
    weight: torch.Tensor

    @property
    def tokens(self) -> int:
        """Prompt and response tokens."""
        return sum(map(len, self.prompts)) + sum(len(rollout.tokens) for rollout in self.rollouts)


def select(recipe: Recipe, groups: Sequence[Graded]) -> tuple[TrainingBatch, dict[str, float]]:
    """Filter groups, reward what is left, and give each rollout its advantage and weight over the whole batch.

    Diverged where the policy that sampled them was broken: its log-probabilities are not finite.
    """
    outcomes = [outcome for group in groups for outcome in group.outcomes]
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    # What stands at forced tokens counts for nothing, here as in the loss.
    sampled = [sum(v for v, forced in zip(r.logprobs, r.forced, strict=True) if not forced) for r in rollouts]
    if not all(map(math.isfinite, sampled)):
        raise Diverged("the policy's log-probabilities are not finite")
    group_index = torch.tensor([place for place, group in enumerate(groups) for _ in group.rollouts])
    rewards = reward(recipe.reward, recipe.length, outcomes, [len(rollout.tokens) for rollout in rollouts])
    flat = zero_variance(correct(outcomes), group_index)
    kept = torch.ones_like(flat) if recipe.curriculum.zero_variance == "keep" else ~flat
    chosen = kept[group_index].nonzero().squeeze(-1)
    trained = [rollouts[row] for row in chosen.tolist()]
    counted = torch.tensor([len(rollout.tokens) - sum(rollout.forced) for rollout in trained], dtype=torch.long)
    batch = TrainingBatch(
        prompts=[groups[int(group_index[row])].prompt for row in chosen.tolist()],
        rollouts=trained,
        advantage=advantages(recipe.normalization, rewards[chosen], group_index[chosen]).float(),
        weight=weights(
            recipe.aggregation,
            group_index[chosen],
            counted,
            recipe.sampling.max_tokens,
            sequence_loss=is_sequence_loss(recipe.loss),
        ),
    )
    return batch, {
        "train/reward": float(rewards.mean()),
        "train/pass_rate": outcomes.count("correct") / len(outcomes),
        "train/groups_generated": len(groups),
        "train/groups_trained": int(kept.sum()),
        "train/groups_zero_variance": int(flat.sum()),
        "train/response_tokens": sum(len(rollout.tokens) for rollout in rollouts) / len(rollouts),
        "train/truncated": sum(rollout.finish == "length" for rollout in rollouts) / len(rollouts),
        "train/interrupted": sum(True in rollout.forced for rollout in rollouts) / len(rollouts),
        "train/verifier_errors": sum(group.verifier_errors for group in groups),
    }


def update(
    recipe: Recipe,
    model: PreTrainedModel,
    optimizer: AcceleratedOptimizer,
    accelerator: Accelerator,
    batch: TrainingBatch,
    version: int,
    ranks: Ranks = ALONE,
) -> dict[str, float]:
    """Train policy `version` on the batch and return what was measured. Diverged if anything is not finite.

    A batch without rollouts (every group was filtered) leaves weights and moments as they are. Each of the ranks
    computes its share of the micro-batches; gradients and measurements are those of all. Asked, with nothing but
    gradients changed, where they are asked to stop before the optimizer's step.
    """
    if not batch.rollouts:
        return {"train/loss": 0.0, "train/lr": learning_rate(recipe, version)}
    statistics, loss_sum, entropy_sum, device = LossStatistics(), 0.0, 0.0, accelerator.device
    shared = None
    parts = share(micro_batches(batch, recipe.execution.microbatch_tokens), ranks)
    own = [batch.prompts[row] for row in sorted(row for part in parts for row in part)]
    if own and shares_prompts(batch, recipe.execution.microbatch_tokens) and can_share_prompts(model):
        shared = SharedPrompts(model, recipe.model.dtype, own, device)
    for part in parts:
        ranks.check()
        if not part:
            continue
        equal = equal_rows(batch, part)
        firsts, rows = [copies[0] for copies in equal], [row for copies in equal for row in copies]
        prompts = [batch.prompts[row] for row in firsts]
        packed = pack(prompts, [batch.rollouts[row].tokens for row in firsts], device)
        logp, entropy = response_logprobs(
            model,
            packed,
            temperature=recipe.sampling.temperature,
            dtype=recipe.model.dtype,
            head_dtype=recipe.model.head_dtype,
            begun=shared.begin(prompts) if shared else None,
        )
        copy = torch.repeat_interleave(torch.tensor(list(map(len, equal)))).to(device)
        logp, entropy = logp[copy], entropy[copy]
        rollouts = [batch.rollouts[row] for row in rows]
        behaviour = padded([r.logprobs for r in rollouts], float).to(logp)
        mask = packed.valid[copy] & ~padded([r.forced for r in rollouts], bool).to(device)
        loss, measured = policy_loss(recipe.loss, logp, behaviour, batch.advantage[rows].to(logp.device), mask)
        total = aggregate(loss, batch.weight[rows].to(logp.device))
        accelerator.backward(total)
        statistics = statistics.merge(measured)
        loss_sum += float(total.detach())
        entropy_sum += float(entropy[mask].sum())
    if shared is not None:
        shared.backward()
    # Summed and not averaged: the weights already hold the whole batch's divisor.
    ranks.add_gradients(model)
    statistics, loss_sum, entropy_sum = _of_all(ranks, statistics, loss_sum, entropy_sum)
    norm = float(accelerator.clip_grad_norm_(model.parameters(), recipe.optimizer.grad_clip))
    if not math.isfinite(loss_sum) or not math.isfinite(norm):
        raise Diverged(f"loss {loss_sum}, gradient norm {norm} at step {version + 1}")
    ranks.check()  # for the last time: from here on weights and moments are those of the next step
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(recipe, version)
    optimizer.step()
    optimizer.zero_grad()
    # Forced tokens are trained on nowhere: they have no age.
    lags = [(version - v, r.forced[start:end].count(False)) for r in batch.rollouts for v, start, end in r.versions]
    return {
        "train/loss": loss_sum,
        "train/grad_norm": norm,
        "train/lr": learning_rate(recipe, version),
        "train/entropy": entropy_sum / max(statistics.tokens, 1),
        "train/lag_mean": sum(lag * tokens for lag, tokens in lags) / max(sum(tokens for _, tokens in lags), 1),
        "train/lag_max": max((lag for lag, tokens in lags if tokens), default=0),
        **statistics.metrics(),
    }


def share(parts: list[list[int]], ranks: Ranks) -> list[list[int]]:
    """The micro-batches of a rank, as many on each: one that has fewer gets empty ones."""
    most = -(-len(parts) // ranks.world)
    own = parts[ranks.rank :: ranks.world]
    return own + [[] for _ in range(most - len(own))]


def _of_all(
    ranks: Ranks, statistics: LossStatistics, loss: float, entropy: float
) -> tuple[LossStatistics, float, float]:
    """Statistics, loss and entropy of all ranks together."""
    if ranks.world == 1:
        return statistics, loss, entropy
    told = ranks.gather([loss, entropy, *astuple(statistics)])
    statistics = LossStatistics()
    for _, _, tokens, clipped, *sums in told:
        statistics = statistics.merge(LossStatistics(int(tokens), int(clipped), *sums))
    return statistics, sum(each[0] for each in told), sum(each[1] for each in told)


def learning_rate(recipe: Recipe, version: int) -> float:
    """Rate of the step that trains policy `version`: linear warm-up, then constant."""
    return recipe.optimizer.lr * min(1.0, (version + 1) / max(recipe.optimizer.warmup_steps, 1))


def shares_prompts(batch: TrainingBatch, most_tokens: int) -> bool:
    """Whether prompts are computed once for the whole batch: it saves enough, and they fit a micro-batch."""
    prompts = set(batch.prompts)
    saved = sum(map(len, batch.prompts)) - sum(map(len, prompts))
    return saved >= SHARED_FROM * batch.tokens and len(prompts) * max(map(len, prompts)) <= most_tokens


def micro_batches(batch: TrainingBatch, most_tokens: int) -> list[list[int]]:
    """Rows in micro-batches of at most `most_tokens` padded tokens (one row at least), like lengths together.

    Equal rows stand side by side and count as one.
    """
    lengths = [len(p) + len(r.tokens) for p, r in zip(batch.prompts, batch.rollouts, strict=True)]
    parts: list[list[list[int]]] = []
    for copies in sorted(equal_rows(batch, range(len(lengths))), key=lambda rows: (-lengths[rows[0]], rows[0])):
        # Rows come longest first, so the first row of a part is its width.
        if parts and (len(parts[-1]) + 1) * lengths[parts[-1][0][0]] <= most_tokens:
            parts[-1].append(copies)
        else:
            parts.append([copies])
    return [[row for copies in part for row in copies] for part in parts]


def equal_rows(batch: TrainingBatch, rows: Iterable[int]) -> list[list[int]]:
    """`rows` with the same prompt and response together. Their log-probabilities are the same and computed once: the
    lower the entropy, the more often the rollouts of a prompt are equal."""
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for row in rows:
        found.setdefault((batch.prompts[row], batch.rollouts[row].tokens), []).append(row)
    return list(found.values())

"""Losses against the hand-checkable example, a slow reference, and what must not change them."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlsweep.recipe.loss import Cispo, Dapo, DrGrpo, Grpo, Gspo, Loss
from rlsweep.train.advantages import advantages
from rlsweep.train.aggregation import aggregate, weights
from rlsweep.train.losses import LossStatistics, is_sequence_loss, policy_loss

LOSSES: list[Loss] = [
    Cispo(eps_max=1.5),
    Dapo(eps_low=0.2, eps_high=0.28),
    Gspo(eps_low=0.1, eps_high=0.15),
    Grpo(eps=0.2),
    DrGrpo(eps=0.2),
]
COMBINATIONS = [
    (loss, kind)
    for loss in LOSSES
    for kind in ("sample", "prompt", "token", "constant")
    if not (is_sequence_loss(loss) and kind in ("token", "constant"))
]
MAX_TOKENS = 9


def double(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def one_rollout(loss: Loss, logp: list[float], behaviour: list[float], advantage: float) -> tuple[Tensor, Tensor]:
    """Losses and gradients of the sum of the tokens of one rollout."""
    l = double(logp).requires_grad_()  # noqa: E741
    value, _ = policy_loss(loss, l, double(behaviour), double(advantage), torch.ones_like(l, dtype=torch.bool))
    (gradient,) = torch.autograd.grad(value.sum(), l)
    return value.detach()[0], gradient[0]


def test_example_cispo_token() -> None:
    value, gradient = one_rollout(Cispo(eps_max=1.5), [-1.0], [-1.5], 2.0)
    assert value.tolist() == pytest.approx([3.0])
    assert gradient.tolist() == pytest.approx([-3.0])


def test_example_dapo_token() -> None:
    value, gradient = one_rollout(Dapo(eps_low=0.2, eps_high=0.28), [-1.0], [-1.5], 2.0)
    assert value.tolist() == pytest.approx([-2.56])
    assert gradient.tolist() == [0.0]


def test_example_gspo_sequence() -> None:
    options = Gspo(eps_low=0.5, eps_high=0.5)
    behaviour = [-1.0, -2.0, -0.7]
    value, gradient = one_rollout(
        options, [b + d for b, d in zip(behaviour, (0.2, -0.1, 0.5), strict=True)], behaviour, 1
    )
    weight = weights("sample", torch.tensor([0]), torch.tensor([3]), 8, sequence_loss=True)
    assert (value * weight).sum().item() == pytest.approx(-1.221403, abs=1e-6)
    assert (gradient * weight).tolist() == pytest.approx([-0.407134] * 3, abs=1e-6)


# --- a slow, obvious reference ---------------------------------------------------------------------------------------


class Ragged:
    """Rollouts as lists: group, reward, tokens as (l, b, counts)."""

    def __init__(self, seed: int, groups: int = 4, largest_group: int = 4) -> None:
        rng = torch.Generator().manual_seed(seed)

        def uniform(low: float, high: float) -> float:
            return low + (high - low) * float(torch.rand((), generator=rng, dtype=torch.float64))

        self.group: list[int] = []
        self.reward: list[float] = []
        self.tokens: list[list[tuple[float, float, bool]]] = []
        for group in range(groups):
            for _ in range(int(uniform(1, largest_group + 0.999))):
                length = int(uniform(1, MAX_TOKENS + 0.999))
                row = []
                for _ in range(length):
                    b = uniform(-3, -0.1)
                    # Wide enough that each clip and cap is met on both sides.
                    row.append((b + uniform(-0.7, 0.7), b, uniform(0, 1) < 0.8))
                self.group.append(10 * group + 3)
                self.reward.append(1.0 if uniform(0, 1) < 0.5 else -1.0)
                self.tokens.append(row)

    def padded(self, width: int = MAX_TOKENS, garbage: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
        """l, b and mask [N, width]; what doesn't count is `garbage`."""
        shape = (len(self.tokens), width)
        logp = torch.full(shape, garbage, dtype=torch.float64)
        behaviour = torch.full(shape, garbage, dtype=torch.float64)
        mask = torch.zeros(shape, dtype=torch.bool)
        for i, row in enumerate(self.tokens):
            for t, (l, b, counts) in enumerate(row):  # noqa: E741
                if counts:
                    logp[i, t], behaviour[i, t], mask[i, t] = l, b, True
        return logp, behaviour, mask


def reference_advantages(batch: Ragged, kind: str) -> list[float]:
    def std(values: list[float]) -> float:
        mean = sum(values) / len(values)
        return math.sqrt(sum((v - mean) ** 2 for v in values) / len(values))

    of_group = {g: [r for r, h in zip(batch.reward, batch.group, strict=True) if h == g] for g in set(batch.group)}
    centred = [r - sum(of_group[g]) / len(of_group[g]) for r, g in zip(batch.reward, batch.group, strict=True)]
    if kind == "none":
        return centred
    if kind == "batch":
        return [a / (std(centred) + 1e-6) for a in centred]
    return [a / (std(of_group[g]) + 1e-6) for a, g in zip(centred, batch.group, strict=True)]


def reference(loss: Loss, kind: str, batch: Ragged, advantage: list[float]) -> tuple[float, list[list[float]], int]:
    """Loss of the step, dloss/dl of each token by the closed form, number of clipped tokens. Loops only."""
    kept = [i for i, row in enumerate(batch.tokens) if any(counts for *_, counts in row)]
    length = {i: sum(counts for *_, counts in batch.tokens[i]) for i in kept}
    prompts = {batch.group[i] for i in kept}
    value, clipped = 0.0, 0
    gradient = [[0.0] * MAX_TOKENS for _ in batch.tokens]

    def clip(ratio: float, a: float, low: float, high: float) -> tuple[float, float, bool]:
        """-min(r a, clip(r) a), its derivative by log r, and whether the gradient is cut."""
        if a > 0 and ratio > 1 + high:
            return -(1 + high) * a, 0.0, True
        if a < 0 and ratio < 1 - low:
            return -(1 - low) * a, 0.0, True
        return -ratio * a, -ratio * a, False

    for i in kept:
        same = [j for j in kept if batch.group[j] == batch.group[i]]
        a = advantage[i]
        if isinstance(loss, Gspo):
            weight = 1 / len(kept) if kind == "sample" else 1 / (len(prompts) * len(same))
            mean = sum(l - b for l, b, counts in batch.tokens[i] if counts) / length[i]  # noqa: E741
            term, slope, cut = clip(math.exp(mean), a, loss.eps_low, loss.eps_high)
            value += weight * term
            clipped += length[i] if cut else 0
            for t, (_, _, counts) in enumerate(batch.tokens[i]):
                if counts:
                    gradient[i][t] = weight * slope / length[i]
            continue
        divisor = {
            "sample": len(kept) * length[i],
            "prompt": len(prompts) * sum(length[j] for j in same),
            "token": sum(length.values()),
            "constant": len(kept) * MAX_TOKENS,
        }[kind]
        for t, (l, b, counts) in enumerate(batch.tokens[i]):  # noqa: E741
            if not counts:
                continue
            ratio = math.exp(l - b)
            if isinstance(loss, Cispo):
                capped = min(ratio, loss.eps_max)
                term, slope, cut = -capped * a * l, -capped * a, ratio > loss.eps_max
            else:
                low = loss.eps_low if isinstance(loss, Dapo) else loss.eps
                high = loss.eps_high if isinstance(loss, Dapo) else loss.eps
                term, slope, cut = clip(ratio, a, low, high)
            value += term / divisor
            gradient[i][t] = slope / divisor
            clipped += cut
    return value, gradient, clipped


def step(
    loss: Loss, kind: Any, batch: Ragged, advantage: Tensor, width: int = MAX_TOKENS, garbage: float = 0.0
) -> tuple[float, Tensor, LossStatistics]:
    """Loss of the step and its gradient [N, width], by the functions under test."""
    logp, behaviour, mask = batch.padded(width, garbage)
    logp.requires_grad_()
    value, statistics = policy_loss(loss, logp, behaviour, advantage, mask)
    weight = weights(kind, torch.tensor(batch.group), mask.sum(dim=1), MAX_TOKENS, sequence_loss=is_sequence_loss(loss))
    total = aggregate(value, weight)
    (gradient,) = torch.autograd.grad(total, logp)
    return total.item(), gradient, statistics


@pytest.mark.parametrize("normalization", ["prompt", "batch", "none"])
@pytest.mark.parametrize(("loss", "kind"), COMBINATIONS, ids=str)
def test_equals_the_slow_reference(loss: Loss, kind: str, normalization: Any) -> None:
    clipped_somewhere = False
    for seed in range(8):
        batch = Ragged(seed)
        expected_advantage = reference_advantages(batch, normalization)
        advantage = advantages(normalization, double(*batch.reward), torch.tensor(batch.group))
        assert advantage.tolist() == pytest.approx(expected_advantage, rel=1e-9, abs=1e-12)
        value, gradient, statistics = step(loss, kind, batch, advantage)
        expected, expected_gradient, clipped = reference(loss, kind, batch, expected_advantage)
        assert value == pytest.approx(expected, rel=1e-9, abs=1e-12)
        torch.testing.assert_close(gradient, double(*expected_gradient), rtol=1e-9, atol=1e-12)
        assert statistics.clipped == clipped
        clipped_somewhere |= clipped > 0
    assert clipped_somewhere


# --- what must not change gradients ----------------------------------------------------------------------------------


def example(seed: int) -> tuple[Ragged, Tensor]:
    batch = Ragged(seed)
    return batch, advantages("batch", double(*batch.reward), torch.tensor(batch.group))


@pytest.mark.parametrize(("loss", "kind"), COMBINATIONS, ids=str)
def test_order_of_rollouts_is_immaterial(loss: Loss, kind: str) -> None:
    batch, advantage = example(1)
    value, gradient, statistics = step(loss, kind, batch, advantage)
    order = torch.randperm(len(batch.group), generator=torch.Generator().manual_seed(0)).tolist()
    assert order != sorted(order)
    shuffled = Ragged(1)
    shuffled.group = [batch.group[i] for i in order]
    shuffled.reward = [batch.reward[i] for i in order]
    shuffled.tokens = [batch.tokens[i] for i in order]
    again, gradient_again, statistics_again = step(loss, kind, shuffled, advantage[order])
    assert again == pytest.approx(value)
    torch.testing.assert_close(gradient_again, gradient[order], rtol=1e-12, atol=1e-15)
    assert statistics_again.metrics() == pytest.approx(statistics.metrics())


@pytest.mark.parametrize("garbage", [0.0, math.nan, math.inf, -math.inf, 1e9])
@pytest.mark.parametrize(("loss", "kind"), COMBINATIONS, ids=str)
def test_padding_and_what_stands_in_it_are_immaterial(loss: Loss, kind: str, garbage: float) -> None:
    batch, advantage = example(2)
    value, gradient, statistics = step(loss, kind, batch, advantage)
    width = MAX_TOKENS + 5
    again, wide, statistics_again = step(loss, kind, batch, advantage, width, garbage)
    assert again == pytest.approx(value, rel=1e-12)
    torch.testing.assert_close(wide[:, :MAX_TOKENS], gradient, rtol=1e-12, atol=1e-15)
    assert torch.count_nonzero(wide[:, MAX_TOKENS:]) == 0
    assert torch.count_nonzero(wide[~batch.padded(width)[2]]) == 0
    assert statistics_again.metrics() == pytest.approx(statistics.metrics())


@pytest.mark.parametrize(("loss", "kind"), COMBINATIONS, ids=str)
def test_micro_batches_add_up(loss: Loss, kind: Any) -> None:
    batch, advantage = example(3)
    value, gradient, statistics = step(loss, kind, batch, advantage)
    logp, behaviour, mask = batch.padded()
    logp.requires_grad_()
    weight = weights(kind, torch.tensor(batch.group), mask.sum(dim=1), MAX_TOKENS, sequence_loss=is_sequence_loss(loss))
    total, merged = 0.0, LossStatistics()
    for rows in (slice(0, 1), slice(1, 4), slice(4, None)):
        # A micro-batch is as wide as its longest rollout.
        width = int(mask[rows].any(dim=0).nonzero().max()) + 1
        part, part_statistics = policy_loss(
            loss, logp[rows, :width], behaviour[rows, :width], advantage[rows], mask[rows, :width]
        )
        partial = aggregate(part, weight[rows])
        partial.backward()
        total += partial.item()
        merged = merged.merge(part_statistics)
    assert total == pytest.approx(value)
    assert logp.grad is not None
    torch.testing.assert_close(logp.grad, gradient, rtol=1e-12, atol=1e-15)
    assert merged.metrics() == pytest.approx(statistics.metrics())


@pytest.mark.parametrize(("loss", "kind"), COMBINATIONS, ids=str)
def test_padding_rows_are_immaterial(loss: Loss, kind: Any) -> None:
    batch, advantage = example(4)
    value, gradient, _ = step(loss, kind, batch, advantage)
    batch.group += [batch.group[0], 99]
    batch.tokens += [[], []]
    again, padded, _ = step(loss, kind, batch, torch.cat([advantage, double(math.nan, 1.0)]), garbage=math.nan)
    assert again == pytest.approx(value)
    torch.testing.assert_close(padded[:-2], gradient, rtol=1e-12, atol=1e-15)
    assert torch.count_nonzero(padded[-2:]) == 0


# --- stop-gradients --------------------------------------------------------------------------------------------------


def detached_loss(loss: Loss, logp: list[float], at: list[float], behaviour: list[float], a: float) -> float:
    """The sum over a rollout's tokens of the loss as a function of `logp`, with all that is stopped held at `at`."""
    total = 0.0
    mean = sum(x - b for x, b in zip(at, behaviour, strict=True)) / len(at)
    for l, x, b in zip(logp, at, behaviour, strict=True):  # noqa: E741
        if isinstance(loss, Cispo):
            total -= min(math.exp(x - b), loss.eps_max) * a * l
            continue
        ratio = math.exp(l - x + mean) if isinstance(loss, Gspo) else math.exp(l - b)
        low, high = (loss.eps, loss.eps) if isinstance(loss, Grpo | DrGrpo) else (loss.eps_low, loss.eps_high)
        total -= min(ratio * a, min(max(ratio, 1 - low), 1 + high) * a)
    return total


@pytest.mark.parametrize("advantage", [1.3, -0.7])
@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_gradient_is_that_of_the_form_with_stops(loss: Loss, advantage: float) -> None:
    logp = [-0.3, -1.0, -2.0, -0.5]
    behaviour = [-0.9, -1.1, -1.6, -0.52]
    _, gradient = one_rollout(loss, logp, behaviour, advantage)
    step_size = 1e-6
    for t in range(len(logp)):
        up, down = list(logp), list(logp)
        up[t] += step_size
        down[t] -= step_size
        slope = detached_loss(loss, up, logp, behaviour, advantage) - detached_loss(
            loss, down, logp, behaviour, advantage
        )
        assert gradient[t].item() == pytest.approx(slope / (2 * step_size), abs=1e-8)


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_no_gradient_reaches_behaviour_or_advantage(loss: Loss) -> None:
    logp = double([-0.3, -1.0]).requires_grad_()
    behaviour = double([-0.4, -0.9]).requires_grad_()
    advantage = double(1.0).requires_grad_()
    value, _ = policy_loss(loss, logp, behaviour, advantage, torch.ones(1, 2, dtype=torch.bool))
    value.sum().backward()
    assert logp.grad is not None
    assert behaviour.grad is None
    assert advantage.grad is None


# --- corners ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(0, 5), (0, 0), (3, 0), (3, 5)], ids=str)
@pytest.mark.parametrize(("loss", "kind"), COMBINATIONS, ids=str)
def test_nothing_to_train_on_still_has_a_graph(loss: Loss, kind: Any, shape: tuple[int, int]) -> None:
    logp = torch.full(shape, math.nan, requires_grad=True)
    mask = torch.zeros(shape, dtype=torch.bool)
    value, statistics = policy_loss(loss, logp, logp.detach(), torch.zeros(shape[0]), mask)
    group = torch.zeros(shape[0], dtype=torch.long)
    total = aggregate(value, weights(kind, group, mask.sum(dim=1), 8, sequence_loss=is_sequence_loss(loss)))
    total.backward()
    assert total.item() == 0.0
    assert logp.grad is not None
    assert torch.count_nonzero(logp.grad) == 0
    assert statistics == LossStatistics()
    assert statistics.metrics() == {}


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_on_policy_gradient_is_minus_the_advantage(loss: Loss) -> None:
    for advantage in (2.0, -1.0, 0.0):
        _, gradient = one_rollout(loss, [-0.3, -1.0], [-0.3, -1.0], advantage)
        assert gradient.tolist() == pytest.approx([-advantage] * 2)


def test_dapo_with_equal_widths_is_grpo() -> None:
    batch, advantage = example(5)
    dapo, grpo, dr_grpo = (
        step(loss, "prompt", batch, advantage)
        for loss in (Dapo(eps_low=0.2, eps_high=0.2), Grpo(eps=0.2), DrGrpo(eps=0.2))
    )
    assert dapo[0] == grpo[0] == dr_grpo[0]
    assert torch.equal(dapo[1], grpo[1])
    assert torch.equal(grpo[1], dr_grpo[1])
    assert dapo[2] == grpo[2] == dr_grpo[2]


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_sequence_ratio_does_not_leak_between_rollouts(loss: Loss) -> None:
    alone = one_rollout(loss, [-0.3, -1.0], [-0.4, -0.9], 1.0)[0]
    logp, behaviour = double([-0.3, -1.0], [-2.0, -3.0]), double([-0.4, -0.9], [-5.0, -0.5])
    together, _ = policy_loss(loss, logp, behaviour, double(1.0, -3.0), torch.ones(2, 2, dtype=torch.bool))
    assert together[0].tolist() == pytest.approx(alone.tolist())


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_exponent_is_clamped(loss: Loss) -> None:
    for difference in (1000.0, -1000.0):
        value, gradient = one_rollout(loss, [-1.0], [-1.0 - difference], -1.0)
        assert torch.isfinite(value).all()
        assert torch.isfinite(gradient).all()
        if isinstance(loss, Grpo):
            assert value.item() == pytest.approx(math.exp(20) if difference > 0 else 0.8)


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_a_counted_nan_is_not_hidden(loss: Loss) -> None:
    value, _ = one_rollout(loss, [math.nan, -1.0], [-1.0, -1.0], 1.0)
    assert torch.isnan(value[0])


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_float32_stays_float32_and_agrees(loss: Loss) -> None:
    batch, advantage = example(6)
    logp, behaviour, mask = batch.padded()
    single, statistics = policy_loss(loss, logp.float(), behaviour.float(), advantage, mask)
    expected, expected_statistics = policy_loss(loss, logp, behaviour, advantage, mask)
    weight = weights("sample", torch.tensor(batch.group), mask.sum(dim=1), MAX_TOKENS)
    assert single.dtype == aggregate(single, weight).dtype == torch.float32
    torch.testing.assert_close(single.double(), expected, rtol=1e-5, atol=1e-6)
    assert statistics.metrics() == pytest.approx(expected_statistics.metrics(), rel=1e-5)


def test_statistics_by_hand() -> None:
    # Ratios 2, 1/2, 1; a masked token with a ratio of e^9 has no part in anything.
    behaviour = double([-2.0, -1.0], [-3.0, -9.0])
    logp = behaviour + double([math.log(2), -math.log(2)], [0.0, 9.0])
    mask = torch.tensor([[True, True], [True, False]])
    _, statistics = policy_loss(Cispo(eps_max=1.5), logp, behaviour, double(-1.0, 1.0), mask)
    assert statistics.metrics() == pytest.approx(
        {
            "train/clip_fraction": 1 / 3,
            "train/mismatch_mean": 2 * math.log(2) / 3,
            "train/mismatch_max": math.log(2),
            "train/effective_sample_size": 3.5**2 / (3 * 5.25),
        }
    )


@pytest.mark.parametrize(
    ("advantage", "eps", "clipped"), [(1, 0.4, 1), (1, 1.0, 0), (-1, 0.4, 2), (-1, 0.6, 0), (0, 0.1, 0)]
)
def test_a_clip_cuts_on_the_side_of_the_advantage(advantage: float, eps: float, clipped: int) -> None:
    # Ratios 1.9, .5, .5: one to cut for A > 0, two for A < 0, and nothing to cut for A = 0.
    logp = double([math.log(1.9), math.log(0.5), math.log(0.5)])
    zeros = torch.zeros_like(logp)
    _, statistics = policy_loss(Grpo(eps=eps), logp, zeros, double(advantage), torch.ones(1, 3, dtype=torch.bool))
    assert statistics.clipped == clipped


@settings(max_examples=60, deadline=None)
@given(
    loss=st.sampled_from([loss for loss in LOSSES if not isinstance(loss, Cispo)]),
    difference=st.floats(-3, 3),
    advantage=st.floats(-3, 3),
)
def test_clip_is_a_pessimistic_bound(loss: Loss, difference: float, advantage: float) -> None:
    value, _ = one_rollout(loss, [-1.0 + difference], [-1.0], advantage)
    assert value[0].item() >= -math.exp(difference) * advantage - 1e-12

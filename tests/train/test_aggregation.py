"""Weights of tokens: the hand-checkable example, sums, and rollouts that count for nothing."""

from typing import Any

import pytest
import torch

from rlsweep.train.aggregation import aggregate, weights

KINDS: list[Any] = ["sample", "prompt", "token", "constant"]

# P: y1 (2 tokens, L = 1), y2 (4, L = 2); Q: y3 (1, L = 3), y4 (3, L = 5); Z: two of 2 tokens without variance, L = 0.
GROUP = torch.tensor([0, 0, 1, 1, 2, 2])
TOKENS = torch.tensor([2, 4, 1, 3, 2, 2])
LOSS = torch.tensor([1.0, 2, 3, 5, 0, 0], dtype=torch.float64)[:, None] * (torch.arange(4) < TOKENS[:, None])


@pytest.mark.parametrize(
    ("kind", "dropped", "counted"),
    [
        ("sample", 2.75, 1.833333),
        ("prompt", 3.083333, 2.055556),
        ("token", 2.8, 2.0),
        ("constant", 1.75, 1.166667),
    ],
)
def test_example(kind: Any, dropped: float, counted: float) -> None:
    assert aggregate(LOSS[:4], weights(kind, GROUP[:4], TOKENS[:4], 4)).item() == pytest.approx(dropped, abs=1e-6)
    assert aggregate(LOSS, weights(kind, GROUP, TOKENS, 4)).item() == pytest.approx(counted, abs=1e-6)


def test_example_is_not_a_mean_of_rank_means() -> None:
    weight = weights("token", GROUP[:4], TOKENS[:4], 4)
    ranks = [aggregate(LOSS[:2], weight[:2]), aggregate(LOSS[2:4], weight[2:4])]
    assert sum(ranks).item() == pytest.approx(2.8)


def test_sequence_weights() -> None:
    # Three rollouts of one prompt, one of another: sequences alike, or prompts alike and their sequences alike.
    group, tokens = torch.tensor([0, 0, 0, 1]), torch.tensor([1, 2, 5, 4])
    sample = weights("sample", group, tokens, 8, sequence_loss=True) * tokens
    prompt = weights("prompt", group, tokens, 8, sequence_loss=True) * tokens
    assert sample.tolist() == pytest.approx([1 / 4] * 4)
    assert prompt.tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2])


@pytest.mark.parametrize("kind", ["token", "constant"])
def test_sequence_losses_refuse_token_weights(kind: Any) -> None:
    with pytest.raises(AssertionError):
        weights(kind, GROUP, TOKENS, 4, sequence_loss=True)


@pytest.mark.parametrize(
    ("kind", "sequence_loss"),
    [("sample", False), ("prompt", False), ("token", False), ("sample", True), ("prompt", True)],
)
def test_means_have_weights_that_sum_to_one(kind: Any, sequence_loss: bool) -> None:
    rng = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 9, (40,), generator=rng)
    group = torch.randint(-3, 9, (40,), generator=rng)
    weight = weights(kind, group, tokens, 8, sequence_loss=sequence_loss)
    assert (weight * tokens).sum().item() == pytest.approx(1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_rollouts_without_counted_tokens_change_nothing(kind: Any) -> None:
    group = torch.cat([GROUP, torch.tensor([0, 1, 7])])
    tokens = torch.cat([TOKENS, torch.zeros(3, dtype=torch.long)])
    weight = weights(kind, group, tokens, 4)
    assert weight[6:].tolist() == [0.0] * 3
    assert torch.equal(weight[:6], weights(kind, GROUP, TOKENS, 4))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [0, 3])
def test_a_batch_without_tokens_has_no_weight(kind: Any, count: int) -> None:
    zeros = torch.zeros(count, dtype=torch.long)
    assert weights(kind, zeros, zeros, 4).tolist() == [0.0] * count


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_partition_into_groups_matters(kind: Any) -> None:
    renamed = torch.tensor([40, 40, -1, -1, 5, 5])
    assert torch.equal(weights(kind, renamed, TOKENS, 4), weights(kind, GROUP, TOKENS, 4))


def test_constant_ignores_the_width_of_the_batch() -> None:
    wide = torch.cat([LOSS, torch.zeros(6, 10, dtype=torch.float64)], dim=1)
    weight = weights("constant", GROUP, TOKENS, 4)
    assert aggregate(wide, weight).item() == aggregate(LOSS, weight).item()


def test_groups_of_one_make_prompt_the_same_as_sample() -> None:
    group = torch.arange(6)
    torch.testing.assert_close(weights("prompt", group, TOKENS, 4), weights("sample", group, TOKENS, 4))

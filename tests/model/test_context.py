"""Prompts that are computed once and continued: nothing may tell them from rows computed from their beginning."""

from collections.abc import Sequence

import pytest
import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from rlsweep.model.context import Context, SharedPrompts, can_share_prompts
from rlsweep.model.load import load_model
from rlsweep.model.logprobs import pack, response_logprobs

CPU = torch.device("cpu")
# Unequal lengths, so that prompts are padded on the left; two prompts stand twice, and two responses are one token.
PROMPTS = [(6, 29), (3, 4, 5, 6, 7), (6, 29), (9,), (3, 4, 5, 6, 7), (8, 8, 8)]
RESPONSES = [(10, 11, 1), (12,), (13, 14, 15, 16, 17, 1), (4, 4), (7, 8, 9), (2,)]
EQUAL = [(6, 29), (3, 4), (6, 29), (9, 9), (3, 4), (8, 8)]


def gradient(
    model: PreTrainedModel, prompts: Sequence[tuple[int, ...]], parts: list[list[int]], *, shared: bool
) -> tuple[dict[int, torch.Tensor], torch.Tensor]:
    """Log-probabilities and entropies of each row, and the gradient of a sum that weighs each token differently."""
    model.zero_grad()
    begun = SharedPrompts(model, "float32", prompts, CPU) if shared else None
    seen = {}
    for rows in parts:
        mine = [prompts[row] for row in rows]
        packed = pack(mine, [RESPONSES[row] for row in rows], CPU)
        logp, entropy = response_logprobs(
            model,
            packed,
            temperature=0.8,
            dtype="float32",
            head_dtype="float32",
            begun=begun.begin(mine) if begun else None,
        )
        weight = torch.tensor([row + 1.0 for row in rows])[:, None] * torch.arange(1, 1 + logp.shape[1])
        (logp * weight).sum().backward()
        for place, row in enumerate(rows):
            seen[row] = torch.stack([logp.detach(), entropy])[:, place, : len(RESPONSES[row])]
    if begun:
        begun.backward()
    return seen, torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("prompts", [PROMPTS, EQUAL])
@pytest.mark.parametrize("parts", [[[0, 1, 2, 3, 4, 5]], [[5, 1], [2], [4, 0], [3]]])
def test_shared_prompts_are_those_computed_for_each_row(
    random_model_folder: str, prompts: list[tuple[int, ...]], parts: list[list[int]]
) -> None:
    model, _ = load_model(random_model_folder)
    alone, expected = gradient(model, prompts, [[row] for row in range(6)], shared=False)
    seen, found = gradient(model, prompts, parts, shared=True)
    assert all(torch.allclose(seen[row], alone[row], atol=1e-4) for row in range(6))
    assert (found - expected).norm() < 1e-5 * expected.norm()


def test_a_model_of_which_only_the_head_is_trained(random_model_folder: str) -> None:
    model, _ = load_model(random_model_folder)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    model.base_model.requires_grad_(False)
    _, expected = gradient(model, PROMPTS, [[row] for row in range(6)], shared=False)
    _, found = gradient(model, PROMPTS, [[0, 1, 2], [3, 4, 5]], shared=True)
    assert found.shape == model.lm_head.weight.flatten().shape
    assert (found - expected).norm() < 1e-5 * expected.norm()


def test_a_context_can_be_split_joined_and_dropped(random_model_folder: str) -> None:
    """Rows are named several times, in any order, or not at all, between one token and the next."""
    model, _ = load_model(random_model_folder)
    with torch.no_grad():
        context = Context(model, "float32")
        context.read_prompts(PROMPTS[:4], CPU)
        texts = [list(prompt) for prompt in PROMPTS[:4]]
        for rows, said in (([3, 0, 0, 1], [5, 6, 7, 8]), ([2, 1, 2], [9, 10, 11]), ([0, 1, 2], [12, 13, 14])):
            context.select(torch.tensor(rows))
            hidden = context.read(torch.tensor(said)[:, None])[:, -1]
            texts = [[*texts[row], token] for row, token in zip(rows, said, strict=True)]
            for text, state in zip(texts, hidden, strict=True):
                alone = model.base_model(input_ids=torch.tensor([text])).last_hidden_state[0, -1]
                assert torch.allclose(state, alone, atol=1e-4)


def test_only_full_attention_is_shared(random_model_folder: str) -> None:
    """What a sliding window has forgotten can't be cut out of a graph and put back as keys and values."""
    model, _ = load_model(random_model_folder)
    assert can_share_prompts(model)
    config = Qwen3Config(
        vocab_size=9,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        use_sliding_window=True,
        sliding_window=3,
        layer_types=["full_attention", "sliding_attention"],
    )
    assert not can_share_prompts(Qwen3ForCausalLM(config))

"""Log-probabilities, padding and the embedded model's folder."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rlsweep.errors import RecipeError
from rlsweep.model.flops import generation_flops, training_flops
from rlsweep.model.load import load_model, parameter_count
from rlsweep.model.logprobs import pack, response_logprobs
from rlsweep.recipe.compute import embedded_parameters
from rlsweep.recipe.model import Embedded
from rlsweep.tasks.registers import ALPHABET


def test_padding_and_company_change_neither_logprobs_nor_gradients(random_model_folder: str) -> None:
    model, _ = load_model(random_model_folder)
    prompts = [(6, 29), (3, 4, 5, 6, 7), (9,)]
    responses = [(10, 11, 1), (12,), (13, 14, 15, 16, 17, 1)]

    def gradient(rows: list[int]) -> tuple[list[torch.Tensor], torch.Tensor]:
        model.zero_grad()
        packed = pack([prompts[r] for r in rows], [responses[r] for r in rows], "cpu")
        logp, _ = response_logprobs(model, packed, temperature=0.8, dtype="float32", head_dtype="float32")
        assert (logp[~packed.valid] == 0).all()
        logp.sum().backward()
        values = [logp[place, : len(responses[r])].detach() for place, r in enumerate(rows)]
        return values, torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    together, whole = gradient([0, 1, 2])
    parts = [gradient([row]) for row in range(3)]
    for row, (values, _) in enumerate(parts):
        assert torch.allclose(values[0], together[row], atol=1e-5)
    assert torch.allclose(sum(part for _, part in parts), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_stands_in_padding_is_never_looked_at(random_model_folder: str, dtype: str) -> None:
    """Any ids beyond the ends, and any targets there, give the same log-probabilities, entropies and gradients."""
    model, _ = load_model(random_model_folder)
    prompts, responses = [(6, 29), (3, 4, 5, 6, 7), (9,)], [(10, 11, 1), (12,), (13, 14, 15, 16, 17, 1)]
    clean = pack(prompts, responses, "cpu")
    beyond = torch.ones_like(clean.ids, dtype=torch.bool)
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        beyond[row, : len(prompt) + len(response)] = False
    assert beyond.any() and not clean.valid.all()
    found = []
    for ids, targets in ((clean.ids, clean.targets), (clean.ids + 7 * beyond, clean.targets + 9 * ~clean.valid)):
        model.zero_grad()
        packed = replace(clean, ids=ids, targets=targets)
        logp, entropy = response_logprobs(model, packed, temperature=0.8, dtype=dtype, head_dtype=dtype)
        logp.sum().backward()
        found.append([logp, entropy, *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


@pytest.mark.parametrize(
    ("dtype", "head"), [("float32", "bfloat16"), ("bfloat16", "float32"), ("bfloat16", "bfloat16")]
)
def test_precision_is_where_the_recipe_puts_it(random_model_folder: str, dtype: str, head: str) -> None:
    """A bfloat16 head rounds its two factors and its result, nothing else; a bfloat16 body is autocast, and a float32
    head after it rounds nothing more. Parameters stay float32."""
    model, _ = load_model(random_model_folder)
    prompt, response = (6, 29, 24, 39), (10, 11, 12, 13, 14)
    packed = pack([prompt], [response], "cpu")
    with torch.no_grad():
        logp, _ = response_logprobs(model, packed, temperature=0.7, dtype=dtype, head_dtype=head)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            hidden = model.model(input_ids=packed.ids).last_hidden_state[0, 3:-1].double()
        weight = model.lm_head.weight.double()
        if head == "bfloat16":
            hidden, weight = hidden.bfloat16().double(), weight.bfloat16().double()
        logits = hidden @ weight.T
        if head == "bfloat16":
            logits = logits.bfloat16().double()
        expected = torch.log_softmax(logits / 0.7, -1)[range(5), response]
        exact, _ = response_logprobs(model, packed, temperature=0.7, dtype="float32", head_dtype="float32")
    assert (logp[0] - expected).abs().max() < 1e-3
    assert (logp - exact).abs().max() > 5e-3
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_entropy_is_that_of_the_whole_distribution(random_model_folder: str) -> None:
    model, _ = load_model(random_model_folder)
    packed = pack([(6, 29)], [(10, 11)], "cpu")
    _, entropy = response_logprobs(model, packed, temperature=1.0, dtype="float32", head_dtype="float32")
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[6, 29, 10, 11]])).logits[0, 1:3]
    expected = torch.distributions.Categorical(logits=logits).entropy()
    assert torch.allclose(entropy[0], expected, atol=1e-4) and not entropy.requires_grad


def test_the_embedded_model_is_an_ordinary_folder(model_folder: str) -> None:
    model, tokenizer = load_model(model_folder)
    config = json.loads((Path(model_folder) / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"] and config["head_dim"] == 32
    assert tokenizer.eos_token_id == 1 and tokenizer.pad_token_id == 0
    text = "4rm    =\n12..#a"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert [ALPHABET[i] for i in ids] == list(text)
    assert tokenizer.decode(ids) == text
    assert parameter_count(model) == embedded_parameters(Embedded(warm_start_steps=30), len(ALPHABET))


def test_flops_by_hand() -> None:
    assert generation_flops(1000, 20) == 40_000
    assert training_flops(1000, 20) == 120_000


@pytest.mark.parametrize("content", [None, {}, {"config.json": "{}", "tokenizer.json": "{}"}])
def test_a_folder_that_holds_no_model_is_refused(tmp_path: Path, content: dict[str, str] | None) -> None:
    for name, text in (content or {}).items():
        (tmp_path / name).write_text(text)
    with pytest.raises(RecipeError, match="holds no causal language model"):
        load_model(tmp_path if content is not None else tmp_path / "missing")


def test_a_model_without_tokenizer_is_refused(tmp_path: Path, random_model_folder: str) -> None:
    model, _ = load_model(random_model_folder)
    model.save_pretrained(tmp_path)
    with pytest.raises(RecipeError, match="holds no tokenizer"):
        load_model(tmp_path)

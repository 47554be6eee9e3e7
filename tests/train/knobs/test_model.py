"""Knobs of the model: its size, its warm start, its precision and where it comes from."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen3ForCausalLM

from rlsweep.errors import RecipeError
from rlsweep.model.embedded import new_config
from rlsweep.model.load import load_model
from rlsweep.recipe.budget import Budget
from rlsweep.recipe.key import run_key
from rlsweep.recipe.model import Embedded, Pretrained
from rlsweep.tasks.registers import ALPHABET
from rlsweep.train import warm_start


@pytest.mark.drives(
    "model[embedded]",
    "model[embedded].width",
    "model[embedded].layers",
    "model[embedded].heads",
    "model[embedded].kv_heads",
    "model[embedded].feed_forward",
)
@pytest.mark.parametrize(
    "change",
    [{}, {"width": 48}, {"layers": 2}, {"heads": 4}, {"heads": 4, "kv_heads": 2}, {"feed_forward": 96}],
    ids=str,
)
def test_the_size_of_the_model(lab: Any, change: dict[str, int]) -> None:
    section = replace(lab.base.model, warm_start_steps=1, **change)
    run = lab.run(replace(lab.base, model=section, budget=Budget(steps=1)))
    assert isinstance(section, Embedded)
    w, heads, kv = section.width, section.heads * 32, section.kv_heads * 32
    block = w * heads + 2 * w * kv + heads * w + 3 * w * section.feed_forward + 2 * w + 2 * 32
    parameters = len(ALPHABET) * w + section.layers * block + w
    assert len(run.flat(0)) == parameters
    tokens = sum(len(r.tokens) + 8 for b in (0, 1) for g in run.batch(b) for r in g.rollouts)
    trained = sum(len(r.tokens) + 8 for g in run.batch(0) if 0 < g.outcomes.count("correct") < 12 for r in g.rollouts)
    assert run.steps[0]["clock/flops"] == parameters * (2 * tokens + 6 * trained)


@pytest.mark.drives("model[embedded].warm_start_steps")
def test_warm_start_steps(lab: Any) -> None:
    """AdamW's first step moves every weight that has a gradient by the rate, the second by half of it at most."""
    section = replace(lab.base.model, warm_start_steps=1)
    runs = [
        lab.run(replace(lab.base, model=replace(section, warm_start_steps=n), budget=Budget(steps=1))) for n in (1, 2)
    ]
    with torch.random.fork_rng():
        torch.manual_seed(lab.base.task.table_seed)
        fresh = Qwen3ForCausalLM(new_config(section, len(ALPHABET)))
    start = torch.cat([p.detach().flatten() for p in fresh.parameters()])
    one, two = ((run.flat(0) - start).abs() for run in runs)
    rate, decay = 4e-3, 4e-3 * 0.01 * start.abs()
    assert (one <= rate * 1.001 + decay).all() and float(one.median()) == pytest.approx(rate, rel=0.05)
    assert (two <= rate * 1.6 + 2 * decay).all() and float(two.max()) > 1.4 * rate


@pytest.mark.drives(
    "model[embedded].dtype[float32]",
    "model[embedded].dtype[bfloat16]",
    "model[embedded].head_dtype[float32]",
    "model[embedded].head_dtype[bfloat16]",
    "model[pretrained].dtype[float32]",
    "model[pretrained].dtype[bfloat16]",
    "model[pretrained].head_dtype[float32]",
    "model[pretrained].head_dtype[bfloat16]",
)
@pytest.mark.parametrize("pretrained", [False, True])
@pytest.mark.parametrize(("dtype", "head"), [("float32", "float32"), ("bfloat16", "float32"), ("float32", "bfloat16")])
def test_precision(lab: Any, written_out: Any, pretrained: bool, dtype: Any, head: Any) -> None:
    """What the engine records is the log-probability in the recipe's precision, off float32's by the size of bfloat16's
    rounding; the trainer computes in the same, so that ratios of a batch without lag stay near 1."""
    section: Any = Pretrained(path=source(lab)) if pretrained else lab.base.model
    recipe = replace(lab.base, model=replace(section, dtype=dtype, head_dtype=head), budget=Budget(steps=1))
    run = lab.run(recipe)
    model, exact = run.model(0), replace(recipe, model=replace(section, dtype="float32", head_dtype="float32"))
    same, off, bound = [], [], []
    for group in run.batch(0)[:3]:
        for rollout in group.rollouts:
            recorded, rows = torch.tensor(rollout.logprobs), range(len(rollout.tokens))
            with torch.no_grad():
                logs, reference = (
                    written_out.distributions(each, model, group.prompt, rollout.tokens) for each in (recipe, exact)
                )
                hidden = model.model(input_ids=torch.tensor([[*group.prompt, *rollout.tokens]])).last_hidden_state[0]
                largest = (hidden[len(group.prompt) - 1 : -1].abs() @ model.lm_head.weight.abs().T).max(-1).values
            same += (recorded - logs[rows, rollout.tokens]).abs().tolist()
            off += (recorded - reference[rows, rollout.tokens]).abs().tolist()
            # A logit is off by at most three roundings of 2^-8 (input, weight, result), a log-probability by two such.
            bound += (2 * 3 * 2**-8 * largest).tolist()
    mismatch = run.steps[0]["train/mismatch_mean"]
    if (dtype, head) == ("float32", "float32"):
        assert max(off) < 1e-4 and mismatch < 1e-5
        return
    mean = sum(off) / len(off)
    if head == "bfloat16":
        assert all(gap <= most for gap, most in zip(off, bound, strict=True))
    assert 2**-10 < mean < 2**-4
    # Kernels sum in different orders, and a sum on the edge of two bfloat16 numbers goes either way.
    assert sum(same) / len(same) < mean / 4 and mismatch < mean / 2


@pytest.mark.drives("model[pretrained]", "model[pretrained].path")
def test_a_run_starts_from_the_folder_it_names(lab: Any, random_model_folder: str) -> None:
    folders = [source(lab), random_model_folder]
    for folder in folders:
        recipe = replace(lab.base, model=Pretrained(path=folder, dtype="float32"), budget=Budget(steps=1))
        run = lab.run(recipe)
        stored = load_file(Path(folder) / "model.safetensors")
        assert all(torch.equal(run.weights[0][name], value) for name, value in stored.items())
    assert lab.run(recipe).engine.groups[0] != lab.run(replace(lab.base, budget=Budget(steps=1))).engine.groups[0]


def source(lab: Any) -> str:
    """Folder of the base recipe's initial model."""
    return warm_start.model_source(lab.base, lab.models)[0]


def test_a_revision_is_handed_to_the_hub_and_part_of_the_key(monkeypatch: pytest.MonkeyPatch, lab: Any) -> None:
    asked: list[tuple[Any, Any]] = []

    def refuse(name: Any, *, revision: Any, **_: Any) -> Any:
        asked.append((name, revision))
        raise OSError("no hub here")

    monkeypatch.setattr("rlsweep.model.load.AutoTokenizer.from_pretrained", refuse)
    keys = set()
    for revision in ("abc", "def"):
        recipe = replace(lab.base, model=Pretrained(path="some/model", revision=revision))
        keys.add(run_key(recipe))
        with pytest.raises(RecipeError, match="no hub here"):
            load_model(*warm_start.model_source(recipe, lab.models))
    assert asked == [("some/model", "abc"), ("some/model", "def")] and len(keys) == 2

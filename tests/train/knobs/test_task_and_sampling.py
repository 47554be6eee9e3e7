"""Knobs of the task, the batch and sampling."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rlsweep.errors import RecipeError
from rlsweep.recipe.batch import Batch
from rlsweep.recipe.budget import Budget
from rlsweep.recipe.check import FieldError
from rlsweep.recipe.key import run_key
from rlsweep.recipe.model import Pretrained
from rlsweep.recipe.off_policy import Pipeline
from rlsweep.recipe.sampling import Sampling
from rlsweep.recipe.task import Math, Registers
from rlsweep.store import attempts
from rlsweep.store.layout import Root
from rlsweep.tasks.registers import RegisterTask
from rlsweep.train.state import build


@pytest.mark.drives("task[registers]", "task[registers].prompts")
def test_the_pool(lab: Any) -> None:
    """An epoch asks each prompt of the pool once, so a pool of 6 ends with each batch of 6; a pool grows at its end."""
    small, large = (
        lab.run(replace(lab.base, task=Registers(prompts=n), off_policy=Pipeline(k=0), budget=Budget(steps=3)))
        for n in (6, 12)
    )
    assert [row["curriculum/epoch"] for row in small.steps] == [0, 1, 2]
    assert [row["curriculum/epoch"] for row in large.steps] == [0, 0, 1]
    pool = [RegisterTask(Registers(prompts=12)).prompt(i).text for i in range(12)]
    for number in range(3):
        assert sorted(lab.text(g.prompt) for g in small.batch(number)) == sorted(pool[:6])
    assert sorted(lab.text(g.prompt) for n in (0, 1) for g in large.batch(n)) == sorted(pool)


@pytest.mark.drives("task[registers].table_seed")
def test_the_table(lab: Any) -> None:
    """The prompts, the right answers and the initial model are the table's own."""
    runs = []
    for seed in (10, 11):
        recipe = replace(lab.base, task=replace(lab.base.task, table_seed=seed), budget=Budget(steps=1))
        run = lab.run(replace(recipe, model=replace(lab.base.model, warm_start_steps=1)))
        runs.append(run)
        task = RegisterTask(Registers(table_seed=seed, prompts=24))
        for group in run.batch(0):
            question = lab.text(group.prompt)
            state = int(question[0], 16)
            for letter in question[1:7].strip():
                state = int(task.table["ghijklmn".index(letter), state])
            for rollout, outcome in zip(group.rollouts, group.outcomes, strict=True):
                right = rollout.finish == "stop" and lab.text(rollout.tokens).endswith(f"#{state:x}^")
                assert (outcome == "correct") == right
    one, two = runs
    assert {lab.text(g.prompt) for g in one.batch(0)} != {lab.text(g.prompt) for g in two.batch(0)}
    assert lab.apart(one.flat(0), two.flat(0)) > 0.1
    assert not (RegisterTask(Registers(table_seed=10)).table == RegisterTask(Registers(table_seed=11)).table).all()


def test_what_cannot_be_trained_here_is_checked_before_a_run(lab: Any, tmp_path: Path) -> None:
    with pytest.raises(FieldError, match="dataset: '' is not valid"):
        Math()
    recipe = replace(lab.base, model=Pretrained(path="some/model"), task=Math(dataset="some/data"))
    with pytest.raises(FieldError, match="only knows the task registers, not math"):
        replace(recipe, model=lab.base.model)
    folder = Root(tmp_path).run("0123456789ab")
    folder.path.mkdir(parents=True)
    with pytest.raises(RecipeError, match="'math' can be planned but not trained"):
        build(recipe, folder, attempts.claim(folder), lambda: ("", None), time.monotonic())
    others = [Math(dataset="some/data", revision="1"), Math(dataset="other/data")]
    assert len({run_key(recipe), *(run_key(replace(recipe, task=each)) for each in others)}) == 3


@pytest.mark.drives("batch.prompts", "batch.rollouts")
@pytest.mark.parametrize(("prompts", "rollouts"), [(6, 12), (3, 12), (6, 4)])
def test_the_size_of_a_batch(lab: Any, prompts: int, rollouts: int) -> None:
    run = lab.run(replace(lab.base, batch=Batch(prompts=prompts, rollouts=rollouts)))
    assert len(run.engine.requests) == 3 * prompts  # one batch is on its way when the second step is made
    assert all(len(group.rollouts) == rollouts for group in run.engine.groups.values())
    for number, row in enumerate(run.steps):
        assert row["train/groups_generated"] == prompts
        assert row["clock/samples"] == (number + 2) * prompts * rollouts


@pytest.mark.drives("sampling.temperature")
def test_temperature(lab: Any, learned: Any, written_out: Any) -> None:
    """Tokens are drawn from softmax(logits / T) and recorded so; the trainer computes the same: ratios are 1."""
    entropies = []
    for temperature in (0.5, 1.0, 1.7):
        run = lab.run(replace(lab.base, sampling=Sampling(max_tokens=12, temperature=temperature)))
        model = run.model(0)
        for group in run.batch(0):
            for rollout in group.rollouts[:3]:
                with torch.no_grad():
                    logits = model(input_ids=torch.tensor([[*group.prompt, *rollout.tokens]])).logits[0, 7:-1]
                expected = torch.log_softmax(logits / temperature, -1)[range(len(rollout.tokens)), rollout.tokens]
                assert (torch.tensor(rollout.logprobs) - expected).abs().max() < 1e-4
        assert run.steps[0]["train/mismatch_max"] < 1e-4
        learned(run, 1)
        entropies.append(run.steps[0]["train/entropy"])
        # What is drawn has the surprise that its distribution predicts.
        values = [
            v for g in run.batch(0) if 0 < g.outcomes.count("correct") < 12 for r in g.rollouts for v in r.logprobs
        ]
        assert -sum(values) / len(values) == pytest.approx(entropies[-1], rel=0.15)
    assert entropies == sorted(entropies)


@pytest.mark.drives("sampling.max_tokens")
def test_the_token_limit(lab: Any, learned: Any) -> None:
    """No response is longer, those that get there say so, and `constant` divides by rollouts x limit."""
    gradients = []
    for limit in (6, 12):
        recipe = replace(lab.base, sampling=Sampling(max_tokens=limit), aggregation="constant")
        run = lab.run(recipe)
        rollouts = [r for g in run.engine.groups.values() for r in g.rollouts]
        assert max(len(r.tokens) for r in rollouts) == limit
        for rollout in rollouts:
            at_limit = len(rollout.tokens) == limit and rollout.tokens[-1] != 1
            assert (rollout.finish == "length") == at_limit
        expected = learned(run, 0)
        gradients.append(expected.gradient)
        first = [r for g in run.batch(0) for r in g.rollouts]
        assert run.steps[0]["train/truncated"] == sum(r.finish == "length" for r in first) / len(first)
    assert lab.apart(*gradients) > 0.1

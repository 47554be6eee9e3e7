"""Knobs of the reward and the curriculum: what earns what, and what is trained on and asked again."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from rlsweep.recipe.batch import Batch
from rlsweep.recipe.budget import Budget
from rlsweep.recipe.curriculum import Curriculum
from rlsweep.recipe.sampling import Sampling
from rlsweep.recipe.task import Registers
from rlsweep.rollout.protocol import Group, Request, Rollout
from rlsweep.store.outcome import Outcome
from rlsweep.tasks.registers import ALPHABET, RegisterTask


@pytest.mark.drives("reward.correct", "reward.wrong", "reward.truncated", "reward.unparseable")
@pytest.mark.parametrize("name", ["correct", "wrong", "truncated", "unparseable"])
def test_rewards(lab: Any, learned: Any, name: str) -> None:
    """The mean reward moves by the share of the outcome times the change; advantages and gradient follow; the same
    groups are kept."""
    recipe = replace(lab.base, sampling=Sampling(max_tokens=8, temperature=1.3), batch=Batch(prompts=6, rollouts=24))
    before, after = lab.run(recipe), lab.run(replace(recipe, reward=replace(recipe.reward, **{name: 0.25})))
    old, new = learned(before, 0), learned(after, 0)
    outcomes = [outcome for group in before.batch(0) for outcome in group.outcomes]
    assert before.batch(0) == after.batch(0)
    share = outcomes.count(name) / len(outcomes)
    assert share > 0
    moved = after.steps[0]["train/reward"] - before.steps[0]["train/reward"]
    assert moved == pytest.approx(share * (0.25 - getattr(recipe.reward, name)))
    assert old.kept == new.kept
    # Right and not right are all that rewards of +-1 tell apart, and a batch's deviation undoes their scale.
    assert (lab.apart(old.gradient, new.gradient) > 1e-3) == (name != "correct")


@pytest.mark.drives("curriculum.zero_variance[drop]", "curriculum.zero_variance[keep]")
def test_zero_variance(lab: Any, learned: Any) -> None:
    """A group of one reward has no gradient; kept it is counted in the divisors and in the batch's deviation."""
    dropped = lab.run(lab.base)
    kept = lab.run(replace(lab.base, curriculum=replace(lab.base.curriculum, zero_variance="keep")))
    assert dropped.batch(0) == kept.batch(0)
    mixed = [len({outcome == "correct" for outcome in group.outcomes}) == 2 for group in dropped.batch(0)]
    assert 0 < sum(mixed) < 6
    assert learned(dropped, 0).kept == mixed and learned(kept, 0).kept == [True] * 6
    assert dropped.steps[0]["train/groups_trained"] == sum(mixed) and kept.steps[0]["train/groups_trained"] == 6
    assert kept.steps[0]["train/groups_zero_variance"] == 6 - sum(mixed)
    # 1/P of 6 prompts instead of those mixed, and a deviation over 6 groups instead of those mixed.
    share = sum(mixed) / 6
    assert lab.apart(kept.gradients[0], dropped.gradients[0] * share / math.sqrt(share)) < 1e-3


@pytest.fixture
def right(lab: Any) -> Callable[[Request, Group], Group]:
    """A script that puts the right answer in the place of each response."""
    task = RegisterTask(lab.base.task)
    answers = {each.text: each.answer for each in map(task.prompt, range(task.size))}

    def script(request: Request, group: Group) -> Group:
        tokens = (ALPHABET.index("#"), ALPHABET.index(answers[lab.text(request.prompt)]), 1)
        rollout = Rollout(tokens, (-0.5,) * 3, (False,) * 3, ((group.rollouts[0].versions[0][0], 0, 3),), "stop")
        return Group(group.id, (rollout,) * len(group.rollouts))

    return script


def test_a_batch_that_is_filtered_away_is_a_step_that_changes_nothing(lab: Any, right: Any) -> None:
    """The second of three batches is all right: weights and moments stay, bit for bit; the step counts."""
    recipe = replace(
        lab.base, budget=Budget(steps=3), optimizer=replace(lab.base.optimizer, warmup_steps=4, weight_decay=0.5)
    )

    def script(request: Request, group: Group) -> Group:
        return right(request, group) if 6 <= group.id < 12 else group

    run = lab.run(recipe, script)
    assert run.outcome == Outcome("finished", 3, "reached its budget")
    assert sorted(run.gradients) == [0, 2]
    assert torch.equal(run.flat(1), run.flat(2)) and not torch.equal(run.flat(0), run.flat(1))
    assert run.moments[1] and run.moments[1].keys() == run.moments[2].keys()
    assert all(torch.equal(value, run.moments[2][name]) for name, value in run.moments[1].items())
    assert [row["train/groups_trained"] for row in run.steps][1] == 0
    assert [row["train/lr"] for row in run.steps] == pytest.approx([0.25 * 2e-3, 0.5 * 2e-3, 0.75 * 2e-3])
    assert [row["step"] for row in run.rows("step")] == [1, 2, 3]


@pytest.mark.drives("curriculum.no_positive_resampling")
def test_no_positive_resampling(lab: Any) -> None:
    """An epoch asks the prompts whose pooled pass rate lay below the threshold when its first prompt was asked. What
    had been trained by then follows from admission: batch b + 2 is asked once batch b is trained."""
    recipe = replace(lab.base, task=Registers(prompts=8), batch=Batch(prompts=4, rollouts=24), budget=Budget(steps=8))
    excluded_in_all = []
    for threshold in (None, 0.08, 0.03):
        run = lab.run(replace(recipe, curriculum=Curriculum(no_positive_resampling=threshold)))
        pool = {lab.text(run.engine.requests[i].prompt) for i in range(8)}
        assert len(pool) == 8
        passed, total = dict.fromkeys(pool, 0), dict.fromkeys(pool, 0)
        left, excluded, epoch, asked = set(pool), set[str](), 0, 0
        for version, row in enumerate(run.steps):
            while asked < 4 * (version + 2):
                if not left:
                    excluded = {p for p in pool if threshold is not None and passed[p] >= threshold * max(total[p], 1)}
                    left, epoch = pool - excluded, epoch + 1
                assert lab.text(run.engine.requests[asked].prompt) in left
                left.remove(lab.text(run.engine.requests[asked].prompt))
                asked += 1
            for group in run.batch(version):
                passed[lab.text(group.prompt)] += group.outcomes.count("correct")
                total[lab.text(group.prompt)] += 24
            assert (row["curriculum/epoch"], row["curriculum/excluded_prompts"]) == (epoch, len(excluded))
        assert epoch > 2
        excluded_in_all.append(sum(row["curriculum/excluded_prompts"] for row in run.steps))
    assert 0 == excluded_in_all[0] < excluded_in_all[1] < excluded_in_all[2]


@pytest.mark.timeout(60)  # a stream over an empty pool would look for a prompt for ever
def test_the_pool_cannot_be_emptied(lab: Any, right: Any) -> None:
    """Every answer is right, so every prompt reaches the threshold: all are asked again, and the journal says so."""
    recipe = replace(
        lab.base, task=Registers(prompts=6), curriculum=Curriculum(no_positive_resampling=0.9), budget=Budget(steps=5)
    )
    run = lab.run(recipe, right)
    assert run.outcome.state == "finished" and run.gradients == {}
    assert [row["curriculum/exclusion_lifted"] for row in run.steps] == [0, 1, 1, 1, 1]
    assert all(row["curriculum/excluded_prompts"] == 0 for row in run.steps)
    assert torch.equal(run.flat(0), run.flat(5))

"""What changes nothing: by hand, by brute force, and against what real runs learn."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsweep.errors import RecipeError
from rlsweep.recipe.batch import Batch
from rlsweep.recipe.budget import Budget
from rlsweep.recipe.curriculum import Curriculum
from rlsweep.recipe.effect import effective_form, idle, why_the_same
from rlsweep.recipe.evaluation import Evaluation
from rlsweep.recipe.key import run_key
from rlsweep.recipe.length import NoLengthControl, Penalty
from rlsweep.recipe.load import load_recipe
from rlsweep.recipe.loss import Cispo, Dapo, DrGrpo, Grpo, Gspo
from rlsweep.recipe.off_policy import OffPolicy, Pipeline, Ppo
from rlsweep.recipe.optimizer import Optimizer
from rlsweep.recipe.reward import Reward
from rlsweep.recipe.schema import Recipe
from rlsweep.recipe.task import Registers
from rlsweep.train.admission import admissible
from rlsweep.train.curriculum import PromptStream


def tiny(*overrides: str) -> Recipe:
    return load_recipe("scalerl", scale="tiny", overrides=overrides)


def same(one: Recipe, other: Recipe) -> bool:
    return effective_form(one) == effective_form(other)


SYNC = "off_policy=pipeline-0"
THREE = "reward={correct: 2.1213203, wrong: 0, truncated: 0, unparseable: 0}"
BINARY = "reward={correct: 1, wrong: 0, truncated: 0, unparseable: 0}"


@pytest.mark.parametrize(
    ("base", "one", "other", "equal"),
    [
        # A ratio of 1 is inside every cap and clip that holds 1 ...
        ([SYNC], "loss.eps_max=4", "loss.eps_max=5", True),
        ([SYNC], "loss.eps_max=1", "loss.eps_max=5", True),
        ([SYNC], "loss=dapo", "loss=cispo", True),
        ([SYNC], "loss={type: grpo, eps: .1}", "loss={type: dapo, eps_low: .3}", True),
        (["off_policy=ppo-1"], "loss=grpo", "loss=cispo", True),
        ([SYNC, "aggregation=sample"], "loss=gspo", "loss=cispo", True),
        ([SYNC, "aggregation=constant", "normalization=none"], "loss=dr_grpo", "loss=cispo", True),
        # ... but not where the cap lies below 1, the clip is as narrow as rounding, or the ratio isn't 1.
        ([SYNC], "loss.eps_max=0.9", "loss.eps_max=5", False),
        ([SYNC], "loss.eps_max=0.9", "loss.eps_max=0.8", False),
        ([SYNC], "loss={type: dapo, eps_low: 1e-4}", "loss=cispo", False),
        ([SYNC], "loss={type: dapo, eps_high: 1e-4}", "loss=cispo", False),
        ([SYNC], "loss=gspo", "loss=cispo", False),  # prompts alike: their sequences, or their tokens
        ([SYNC, "execution.engine=vllm"], "loss=dapo", "loss=cispo", False),
        ([SYNC, "model.head_dtype=bfloat16"], "loss=dapo", "loss=cispo", False),
        ([SYNC, "model.dtype=bfloat16"], "loss.eps_max=4", "loss.eps_max=5", False),
        (["off_policy=pipeline-1"], "loss.eps_max=4", "loss.eps_max=5", False),
        (["off_policy=ppo-2"], "loss=dapo", "loss=cispo", False),
        # One formula under several names.
        ([], "loss={type: grpo, eps: .2}", "loss={type: dapo, eps_low: .2, eps_high: .2}", True),
        ([], "loss={type: grpo, eps: .2}", "loss={type: dapo, eps_low: .2, eps_high: .3}", False),
        (["aggregation=constant", "normalization=none"], "loss=grpo", "loss=dr_grpo", True),
        ([], "off_policy=ppo-1", "off_policy=pipeline-0", True),
        ([], "off_policy=ppo-2", "off_policy=pipeline-1", False),
        ([], "optimizer.warmup_steps=0", "optimizer.warmup_steps=1", True),
        ([], "optimizer.warmup_steps=1", "optimizer.warmup_steps=2", False),
        # Within the budget all batches are the first policy's: version b - k is of 0 for b <= k, nk of 0 for b < k.
        (["budget.steps=3"], "off_policy=pipeline-2", "off_policy=pipeline-6", True),
        (["budget.steps=4"], "off_policy=pipeline-2", "off_policy=pipeline-6", False),
        (["budget.steps=3"], "off_policy=ppo-3", "off_policy=ppo-7", True),
        (["budget.steps=4"], "off_policy=ppo-3", "off_policy=ppo-7", False),
        (["budget.steps=3"], "off_policy=pipeline-2", "off_policy=ppo-3", True),
        (["budget.steps=3"], "off_policy=pipeline-1", "off_policy=ppo-2", False),
        (["budget.steps=4"], "off_policy=pipeline-8", "off_policy=ppo-8", True),
        (["budget.steps=9"], "off_policy=pipeline-8", "off_policy=ppo-8", False),
        (["budget.steps=1"], "off_policy=pipeline-0", "off_policy=ppo-8", True),
        (["budget.steps=1"], "off_policy=ppo-1", "off_policy=pipeline-5", True),
        (["budget.steps=2"], "off_policy=ppo-1", "off_policy=pipeline-5", False),
        (["budget.steps=4", "execution.engine=vllm"], "off_policy=pipeline-8", "off_policy=ppo-8", False),
        (["budget.steps=1"], "loss=dapo", "loss=cispo", True),
        (["budget.steps=2"], "loss=dapo", "loss=cispo", False),
        (["budget.steps=1", "loss.eps_max=0.9"], "loss.eps_max=0.8", "loss.eps_max=0.9", False),
        # Averages.
        (["loss=gspo"], "aggregation=sample", "aggregation=prompt", True),
        ([], "aggregation=sample", "aggregation=prompt", False),
        (["batch.prompts=1"], "aggregation=token", "aggregation=prompt", True),
        (["batch.prompts=1"], "aggregation=token", "aggregation=sample", False),
        (["batch.prompts=2"], "aggregation=token", "aggregation=prompt", False),
        (["batch.prompts=1"], "normalization=prompt", "normalization=batch", True),
        (["batch.prompts=1"], "normalization=none", "normalization=batch", False),
        (["batch.rollouts=2"], "normalization=prompt", "normalization=batch", True),
        (["batch.rollouts=3"], "normalization=prompt", "normalization=batch", True),
        (["batch.rollouts=4"], "normalization=prompt", "normalization=batch", False),
        (["batch.rollouts=2", "reward.truncated=0"], "normalization=prompt", "normalization=batch", False),
        (["batch.rollouts=2", "length=penalty"], "normalization=prompt", "normalization=batch", False),
        (["batch.rollouts=2", "curriculum.zero_variance=keep"], "normalization=prompt", "normalization=batch", False),
        # Of two rewards 2 apart the deviation is 1; of three, two of them alike, where they are 3 / sqrt 2 apart.
        (["batch.rollouts=2"], "normalization=none", "normalization=batch", True),
        (["batch.rollouts=2"], "normalization=none", "normalization=prompt", True),
        (["batch.rollouts=2", "batch.prompts=1"], "normalization=none", "normalization=prompt", True),
        (["batch.rollouts=3"], "normalization=none", "normalization=batch", False),
        (["batch.rollouts=3", THREE], "normalization=none", "normalization=batch", True),
        (["batch.rollouts=4"], "normalization=none", "normalization=batch", False),
        (["batch.rollouts=2", BINARY], "normalization=none", "normalization=batch", False),
        (["batch.rollouts=2", "reward.truncated=0"], "normalization=none", "normalization=batch", False),
        (["batch.rollouts=2", "length=penalty"], "normalization=none", "normalization=batch", False),
        (["batch.rollouts=2", "curriculum.zero_variance=keep"], "normalization=none", "normalization=batch", False),
        (["batch.rollouts=2", "normalization=none"], BINARY, "reward.correct=1", False),
        # Rewards count by their distances, under a normalization by their ratios.
        ([], BINARY, "reward.correct=1", True),
        ([], BINARY, "reward={correct: 3, wrong: 2.7, truncated: 2.7, unparseable: 2.7}", True),
        ([], BINARY, "reward={correct: .01, wrong: 0, truncated: 0, unparseable: 0}", False),  # beside the 1e-6
        ([], BINARY, "reward={correct: 0, wrong: 1, truncated: 1, unparseable: 1}", False),
        ([], BINARY, "reward={correct: 1, wrong: 0, truncated: -1, unparseable: 0}", False),
        (["normalization=none"], BINARY, "reward.correct=1", False),
        (["normalization=none"], BINARY, "reward={correct: 2, wrong: 1, truncated: 1, unparseable: 1}", True),
        (["length=penalty"], BINARY, "reward.correct=1", False),
        (["length=penalty"], BINARY, "reward={correct: 2, wrong: 1, truncated: 1, unparseable: 1}", True),
        # The budget: 64 batches of 64 train on all of a pool of 4096; what is sampled ahead of the end has no say.
        (["budget.steps=64"], "curriculum.no_positive_resampling=0.9", "curriculum.no_positive_resampling=null", True),
        (["budget.steps=64"], "curriculum.no_positive_resampling=0.9", "curriculum.no_positive_resampling=0.5", True),
        (["budget.steps=65"], "curriculum.no_positive_resampling=0.9", "curriculum.no_positive_resampling=null", False),
        (["budget.steps=30"], "evaluation.every=31", "evaluation.every=32", True),
        (["budget.steps=30"], "evaluation.every=30", "evaluation.every=31", False),  # the last is off the schedule
        # Never the same.
        ([], "seed=1", "seed=2", False),
        ([], "budget.steps=100", "budget.steps=200", False),
        ([], "evaluation.prompts=100", "evaluation.prompts=200", False),
        ([], "curriculum.zero_variance=keep", "curriculum.zero_variance=drop", False),
    ],
)
def test_by_hand(base: list[str], one: str, other: str, equal: bool) -> None:
    recipes = tiny(*base, one), tiny(*base, other)
    assert same(*recipes) is equal
    if equal:
        why = why_the_same(*recipes)
        assert one.partition("=")[0] in why or one.partition("=")[0] in ("reward", "loss", "off_policy")
        assert "nothing here: " in why and not why.endswith("nothing here: ")


def test_no_name_device_or_pool_of_unknown_size_matters() -> None:
    recipe = load_recipe("scalerl", scale="8b", overrides=["budget.steps=1"])
    assert same(recipe, replace(recipe, name="other", execution=replace(recipe.execution, devices=1, threads=7)))
    assert not same(recipe, replace(recipe, curriculum=Curriculum(no_positive_resampling=None)))


def test_a_local_folder_has_no_revision(tmp_path: Path) -> None:
    base = load_recipe("scalerl", scale="8b")
    hub = [replace(base, model=replace(base.model, revision=each)) for each in ("a", "b")]
    local = [replace(each, model=replace(each.model, path=str(tmp_path))) for each in hub]
    data = [replace(base, task=replace(base.task, dataset=str(tmp_path), revision=each)) for each in ("a", "b")]
    assert (same(*hub), same(*local), same(*data)) == (False, True, True)


def test_why_names_leaves_values_reason_and_budget() -> None:
    steps = "budget.steps=20"
    why = why_the_same(tiny(steps), tiny(steps, "curriculum.no_positive_resampling=null"))
    assert why == (
        "curriculum.no_positive_resampling (0.9 and null) changes nothing here: no prompt comes up twice, 20 steps "
        "train on 1,280 of the pool's 4,096; budget.steps=65 or more would do"
    )
    # Where one alone would need more, the first number with which they part; none where no number would do.
    for one, other, steps, first in (
        ("pipeline-3", "pipeline-6", 3, 5),
        ("pipeline-2", "pipeline-6", 3, 4),
        ("pipeline-8", "ppo-8", 4, 9),
        ("ppo-1", "pipeline-5", 1, 2),
        ("ppo-1", "pipeline-0", 1, None),
    ):
        why = why_the_same(*(tiny(f"budget.steps={steps}", f"off_policy={each}") for each in (one, other)))
        assert why.endswith(f"; budget.steps={first} or more would do") if first else "budget.steps" not in why
    why = why_the_same(tiny(SYNC, "loss=dapo"), tiny(SYNC))
    assert why.startswith("loss.type (dapo and cispo), loss.eps_low (0.2 and -), loss.eps_high (0.26 and -), loss.eps_")
    assert why.count("importance ratios are 1") == 1


schemes = st.one_of(st.integers(0, 20).map(lambda k: Pipeline(k=k)), st.integers(1, 20).map(lambda k: Ppo(k=k)))


def trained(scheme: OffPolicy, prompts: int, pool: int, steps: int, threshold: float | None, easy: int) -> list[Any]:
    """Batches that are trained and the versions that sample them; prompt `easy` is right and all others are wrong."""
    stream = PromptStream(Curriculum(no_positive_resampling=threshold), pool, seed=0)
    admitted: list[Any] = []
    for version in range(steps):
        while len(admitted) < admissible(scheme, version):
            admitted.append((version, stream.next_batch(prompts)))
        for prompt in admitted[version][1]:
            stream.observe(prompt, int(prompt == easy), 1)
    return admitted[:steps]


@settings(deadline=None, max_examples=100)
@given(schemes, st.integers(1, 9), st.integers(2, 30), st.integers(1, 20))
def test_a_prompt_is_excluded_in_vain_until_a_later_policy_asks_it_again(
    scheme: OffPolicy, prompts: int, pool: int, steps: int
) -> None:
    """A simulation in which each prompt in turn has become easy."""
    recipe = replace(tiny(), off_policy=scheme, task=Registers(prompts=pool), batch=Batch(prompts=prompts, rollouts=2))

    def counts(steps: int) -> bool:
        runs = [[trained(scheme, prompts, pool, steps, each, easy) for each in (0.9, None)] for easy in range(pool)]
        return any(first != second for first, second in runs)

    found = [
        each.budget
        for each in idle(replace(recipe, budget=Budget(steps=steps)))
        if "curriculum.no_positive_resampling" in each.leaves
    ]
    if not found:
        # The next prompt in line may not have been seen; by two more rounds of the pool and the lag one has.
        assert counts(steps + 2 * pool + 2 * scheme.k)
        return
    (first,) = found
    assert first is not None and steps < first
    assert not counts(steps) and not counts(first - 1)
    # With the budget that is named, a batch holds a prompt of a later epoch, after a step.
    last, _ = trained(scheme, prompts, pool, first, None, 0)[-1]
    assert last > 0 and first * prompts > pool
    shorter = replace(recipe, budget=Budget(steps=first))
    assert not [each for each in idle(shorter) if "curriculum.no_positive_resampling" in each.leaves]


@settings(deadline=None, max_examples=100)
@given(schemes, schemes, st.integers(1, 24))
def test_schemes_are_one_where_the_same_versions_sample_all_batches(
    one: OffPolicy, other: OffPolicy, steps: int
) -> None:
    recipes = [replace(tiny(), off_policy=each, budget=Budget(steps=steps)) for each in (one, other)]
    versions = [[version for version, _ in trained(each, 1, 2, steps, None, 0)] for each in (one, other)]
    assert same(*recipes) is (versions[0] == versions[1])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("batch.rollouts=1", "batch.rollouts: 1 is not valid; it must be 2 or more"),
        ("optimizer.lr=0", "optimizer.lr: 0.0 is not valid; it must be above 0"),
        ("length={type: penalty, limit: 1, ramp: 1}", "length.limit: 1 is not valid"),
        (
            "reward={correct: 1, wrong: 1, truncated: 1, unparseable: 1}",
            "reward.correct: every outcome earns 1.0, so there is nothing to learn",
        ),
    ],
)
def test_a_recipe_that_can_learn_nothing_is_refused(override: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        tiny(override)


def test_equal_rewards_under_a_length_penalty_can_still_teach_brevity() -> None:
    equal = "reward={correct: 1, wrong: 1, truncated: 1, unparseable: 1}"
    assert tiny(equal, "length=penalty").reward == Reward(correct=1.0, wrong=1.0, truncated=1.0, unparseable=1.0)


# What real runs learn


Learn = Callable[[Recipe], Any]

GSPO = Gspo(eps_low=0.2, eps_high=0.2)
CONSTANT: dict[str, Any] = {"aggregation": "constant", "normalization": "none"}
SPREAD = Reward(correct=1.0, wrong=0.0, truncated=-0.5, unparseable=-1.0)
NEAR: dict[str, Any] = {"loss": Dapo(eps_low=0.001, eps_high=0.002)}
TWO: dict[str, Any] = {
    "batch": Batch(prompts=16, rollouts=2),
    "curriculum": Curriculum(zero_variance="drop"),
    "reward": Reward(),
    "length": NoLengthControl(),
}
POOL: dict[str, Any] = {
    "task": Registers(prompts=16),
    "batch": Batch(prompts=16, rollouts=8),
    "off_policy": Pipeline(k=0),
}
AHEAD: dict[str, Any] = {"batch": Batch(prompts=8, rollouts=8), "off_policy": Pipeline(k=6)}
BY_ONE = Reward(correct=1.0, wrong=0.0, truncated=0.0, unparseable=0.0)
UNCLIPPED: dict[str, Any] = {"optimizer": Optimizer(lr=1e-3, warmup_steps=0, eps=1e-3, grad_clip=1e3)}
EASY = Curriculum(zero_variance="keep", no_positive_resampling=0.01)
ALL = Curriculum(zero_variance="keep", no_positive_resampling=None)


@pytest.fixture(scope="module")
def learn(small_recipe: Recipe, model_folder: str, tmp_path_factory: pytest.TempPathFactory) -> Learn:
    """The change of all weights over the run of a recipe, as one vector."""
    import torch

    from rlsweep.store import attempts
    from rlsweep.store.layout import Root
    from rlsweep.train.loop import train
    from rlsweep.train.state import build

    @cache
    def learn(recipe: Recipe) -> Any:
        run = Root(tmp_path_factory.mktemp("learn")).run(run_key(recipe))
        run.path.mkdir(parents=True)
        state = build(recipe, run, attempts.claim(run), lambda: (model_folder, None), time.monotonic())

        def weights() -> Any:
            return torch.cat([p.detach().flatten().double() for p in state.model.parameters()])

        before = weights()
        assert train(state, lambda text: None).state == "finished"
        return weights() - before

    return learn


@pytest.fixture(scope="module")
def base(small_recipe: Recipe) -> Recipe:
    """Every group is trained on and hardly any two rewards of a group are alike."""
    return replace(
        small_recipe,
        reward=SPREAD,
        curriculum=ALL,
        # Much beside the gradients: AdamW makes a whole step of a gradient that is 0 but for rounding.
        optimizer=Optimizer(lr=1e-3, warmup_steps=0, eps=1e-3),
        evaluation=Evaluation(every=100, prompts=1, samples=1),
        budget=Budget(steps=3),
    )


@pytest.mark.parametrize(
    ("common", "one", "other"),
    [
        ({"off_policy": Pipeline(k=0)}, {"loss": Cispo(eps_max=1.0)}, {"loss": Cispo(eps_max=8.0)}),
        ({"off_policy": Pipeline(k=0)}, {"loss": Dapo()}, {"loss": Cispo()}),
        ({"off_policy": Pipeline(k=0)}, {"loss": Dapo(eps_low=1e-3, eps_high=1e-3)}, {"loss": Grpo(eps=0.5)}),
        ({"off_policy": Pipeline(k=0), "aggregation": "sample"}, {"loss": GSPO}, {"loss": Dapo()}),
        ({"off_policy": Pipeline(k=0)}, {"loss": GSPO}, {"loss": Dapo()}),
        ({"off_policy": Pipeline(k=0)}, {"loss": Cispo(eps_max=0.5)}, {"loss": Cispo()}),
        ({"off_policy": Pipeline(k=0), **CONSTANT}, {"loss": DrGrpo()}, {"loss": Cispo()}),
        ({}, {"loss": Grpo(eps=0.01)}, {"loss": Dapo(eps_low=0.01, eps_high=0.01)}),
        (CONSTANT, {"loss": Grpo(eps=0.01)}, {"loss": DrGrpo(eps=0.01)}),
        ({}, {"loss": Cispo(eps_max=1.0)}, {"loss": Cispo()}),
        (NEAR, {"off_policy": Ppo(k=1)}, {"off_policy": Pipeline(k=0)}),
        (NEAR, {"off_policy": Ppo(k=2)}, {"off_policy": Pipeline(k=1)}),
        ({"loss": GSPO}, {"aggregation": "sample"}, {"aggregation": "prompt"}),
        ({}, {"aggregation": "sample"}, {"aggregation": "prompt"}),
        ({"batch": Batch(prompts=1, rollouts=8)}, {"aggregation": "token"}, {"aggregation": "prompt"}),
        ({"batch": Batch(prompts=1, rollouts=8)}, {"aggregation": "sample"}, {"aggregation": "prompt"}),
        ({}, {"aggregation": "token"}, {"aggregation": "prompt"}),
        ({**TWO, **UNCLIPPED}, {"normalization": "none"}, {"normalization": "batch"}),
        ({**TWO, **UNCLIPPED, "reward": BY_ONE}, {"normalization": "none"}, {"normalization": "batch"}),
        (NEAR, {"off_policy": Pipeline(k=3)}, {"off_policy": Pipeline(k=6)}),
        (NEAR, {"off_policy": Pipeline(k=2)}, {"off_policy": Ppo(k=7)}),
        (NEAR, {"off_policy": Pipeline(k=1)}, {"off_policy": Pipeline(k=2)}),
        ({**NEAR, "budget": Budget(steps=1)}, {"off_policy": Pipeline(k=0)}, {"off_policy": Ppo(k=3)}),
        ({"budget": Budget(steps=1)}, {"loss": Dapo()}, {"loss": Cispo()}),
        ({"batch": Batch(prompts=1, rollouts=8)}, {"normalization": "prompt"}, {"normalization": "batch"}),
        (TWO, {"normalization": "prompt"}, {"normalization": "batch"}),
        ({}, {"normalization": "prompt"}, {"normalization": "batch"}),
        ({}, {"reward": SPREAD}, {"reward": Reward(correct=5.0, wrong=3.0, truncated=2.0, unparseable=1.0)}),
        (CONSTANT, {"reward": SPREAD}, {"reward": Reward(correct=2.0, wrong=1.0, truncated=0.5, unparseable=0.0)}),
        (CONSTANT, {"reward": SPREAD}, {"reward": Reward(correct=5.0, wrong=3.0, truncated=2.0, unparseable=1.0)}),
        ({}, {"optimizer": Optimizer(warmup_steps=0, lr=1e-3)}, {"optimizer": Optimizer(warmup_steps=1, lr=1e-3)}),
        ({}, {"optimizer": Optimizer(warmup_steps=1, lr=1e-3)}, {"optimizer": Optimizer(warmup_steps=2, lr=1e-3)}),
        ({}, {"evaluation": Evaluation(every=4, prompts=1)}, {"evaluation": Evaluation(every=5, prompts=1)}),
        ({**POOL, "budget": Budget(steps=1)}, {"curriculum": EASY}, {"curriculum": ALL}),
        ({**POOL, "budget": Budget(steps=2)}, {"curriculum": EASY}, {"curriculum": ALL}),
        ({**POOL, "budget": Budget(steps=2), "off_policy": Pipeline(k=1)}, {"curriculum": EASY}, {"curriculum": ALL}),
        ({**AHEAD, "task": Registers(prompts=40)}, {"curriculum": EASY}, {"curriculum": ALL}),
        ({"length": Penalty(limit=12, ramp=6)}, {"reward": SPREAD}, {"reward": replace(SPREAD, correct=1.5)}),
    ],
)
def test_runs_learn_the_same_where_the_form_is_the_same(
    base: Recipe, learn: Learn, common: dict[str, Any], one: dict[str, Any], other: dict[str, Any]
) -> None:
    recipes = [replace(base, **{**common, **change}) for change in (one, other)]
    first, second = map(learn, recipes)
    assert first.norm() > 0
    apart = float((first - second).norm() / first.norm())
    # Nothing lies between: rounding is far below 1e-4, and what counts is far above.
    assert apart < 1e-4 if same(*recipes) else apart > 1e-3, apart

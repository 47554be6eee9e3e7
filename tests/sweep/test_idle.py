"""What a sweep would train twice, and what is stated in vain."""

from pathlib import Path

import pytest

from rlsweep.errors import RecipeError
from rlsweep.recipe import shipped
from rlsweep.recipe.fields import sections, top_leaves
from rlsweep.recipe.key import NOT_IDENTITY
from rlsweep.sweep.expand import Sweep, expand


def tiny(*overrides: str, recipe: str | Path = "scalerl", **more: object) -> Sweep:
    return expand(recipe, scale="tiny", overrides=overrides, **more)


def refusal(*overrides: str, recipe: str | Path = "scalerl", **more: object) -> str:
    with pytest.raises(RecipeError) as caught:
        tiny(*overrides, recipe=recipe, **more)
    return str(caught.value)


SYNC = "off_policy=pipeline-0"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """The path of a recipe to be written."""
    return tmp_path / "mine.yaml"


@pytest.mark.parametrize("scale", shipped.names("scale"))
@pytest.mark.parametrize("recipe", shipped.names("recipe"))
def test_what_ships_states_nothing_in_vain(recipe: str, scale: str) -> None:
    assert expand(recipe, scale=scale).notes == ()
    assert expand(recipe, scale=scale, leave_one_out=True, seeds=2).runs


# Two variants, one run


@pytest.mark.parametrize(
    ("overrides", "vary", "parts"),
    [
        (
            ["budget.steps=20"],
            ["curriculum.no_positive_resampling=0.9,null"],
            [
                "variants curriculum.no_positive_resampling=0.9 and curriculum.no_positive_resampling=null would train",
                "(0.9 and null) changes nothing here: no prompt comes up twice",
                "budget.steps=65 or more would do",
            ],
        ),
        (
            [SYNC],
            ["loss=dapo,cispo"],
            ["variants loss=dapo and loss=cispo", "loss.eps_max (- and 5.0)", "ratios are 1"],
        ),
        ([], ["off_policy=ppo-1,pipeline-0"], ["off_policy.k (1 and 0)", "as pipeline-0 does"]),
        (["loss=gspo"], ["aggregation=sample,prompt"], ["aggregation (sample and prompt)", "groups are of one size"]),
        (
            [],
            ["loss=gspo,dapo", "optimizer.lr=1e-4,3e-4", "aggregation=token,sample,prompt"],
            ["'token' weighs tokens"],
        ),
        (
            [],
            ["optimizer.lr=1e-4,3e-4", "loss=dapo,gspo", "aggregation=sample,prompt"],
            ["optimizer.lr=0.0001,loss=gspo,aggregation=sample and optimizer.lr=0.0001,loss=gspo,aggregation=prompt"],
        ),
        (
            ["budget.steps=4"],
            ["off_policy=pipeline-8,ppo-8"],
            ["off_policy.type (pipeline and ppo)", "all batches of 4 steps are", "budget.steps=9 or more would do"],
        ),
        (["batch.rollouts=2"], ["normalization=none,batch"], ["(none and batch)", "have one deviation, and it is 1"]),
        (["budget.steps=30"], ["evaluation.every=50,70"], ["(50 and 70)", "budget.steps=50 or more would do"]),
    ],
)
def test_variants_that_would_train_the_same_run(overrides: list[str], vary: list[str], parts: list[str]) -> None:
    for seeds in (None, 2):
        message = refusal(*overrides, vary=vary, seeds=seeds)
        for part in parts:
            assert part in message


def test_leave_one_out_leaves_an_arm_like_the_base_out_and_says_why() -> None:
    for override, arm in ((SYNC, "loss"), ("budget.steps=20", "curriculum.no_positive_resampling")):
        sweep = tiny(override, leave_one_out=True)
        assert len(sweep.runs) == 8 and not any(run.variant.startswith(f"{arm}=") for run in sweep.runs)
        (note,) = [note for note in sweep.notes if note.startswith(f"leave-one-out: {arm} stays as it is: ")]
        assert "nothing here" in note


def test_a_small_budget_refuses_no_recipe_for_its_staleness(mine: Path) -> None:
    mine.write_text("extends: scalerl\noff_policy: ppo-7\nbudget: {steps: 4}")
    for sweep in (tiny(recipe=mine), tiny("budget.steps=2"), tiny("budget.steps=4", vary=["loss=dapo,cispo"])):
        assert sweep.runs and not any("off_policy" in note for note in sweep.notes)
    sweep = tiny("budget.steps=4", leave_one_out=True)
    (note,) = [note for note in sweep.notes if note.startswith("leave-one-out: off_policy stays as it is: ")]
    assert note.endswith("budget.steps=9 or more would do")
    assert tiny("budget.steps=4", "off_policy=ppo-8").runs


def test_an_override_that_counts_once_the_budget_is_raised_is_noted() -> None:
    """A person may begin with few steps, look, and go on."""
    for override in ("curriculum.no_positive_resampling=0.5", "evaluation.every=30"):
        sweep = tiny("budget.steps=20", override)
        path = override.partition("=")[0]
        (note,) = [note for note in sweep.notes if note.startswith(f"{path} changes nothing here: ")]
        assert "or more would do" in note
    assert tiny("budget.steps=20", "curriculum.no_positive_resampling=null").runs


def test_zipped_variants_like_each_other() -> None:
    assert "would train the same run" in refusal(zip_=["loss=dapo,cispo", "off_policy=pipeline-0,ppo-1"])
    assert len(tiny(zip_=["loss=dapo,cispo", "off_policy=pipeline-0,ppo-2"]).runs) == 2


# An override that changes nothing


@pytest.mark.parametrize(
    ("recipe", "overrides", "parts"),
    [
        ("", ["optimizer.warmup_steps=1"], ["--set optimizer.warmup_steps=1: ", "(0 and 1) changes nothing here"]),
        ("off_policy: ppo-1", ["seed=3", SYNC], [f"--set {SYNC}: off_policy.type (ppo and pipeline), off_policy.k"]),
        ("off_policy: ppo-1", ["loss=dapo"], ["--set loss=dapo: loss.type (cispo and dapo)"]),
        ("loss: gspo", ["aggregation=sample"], ["--set aggregation=sample: aggregation (prompt and sample)"]),
        (
            "",
            [f"reward.{outcome}=0" for outcome in ("wrong", "truncated", "unparseable")],
            ["--set reward.wrong=0, --set reward.truncated=0, --set reward.unparseable=0: ", "centred"],
        ),
        ("", [SYNC, "loss={type: grpo}"], ["--set loss={type: grpo}: loss.type"]),
    ],
)
def test_an_override_that_changes_nothing(mine: Path, recipe: str, overrides: list[str], parts: list[str]) -> None:
    mine.write_text(f"extends: scalerl\noptimizer: {{warmup_steps: 0}}\n{recipe}")
    message = refusal(*overrides, recipe=mine)
    for part in parts:
        assert part in message


def test_a_recipe_of_only_a_name_has_an_axis_in_every_leaf_and_section(mine: Path) -> None:
    mine.write_text("name: p")
    values = {"aggregation": "prompt,sample", "normalization": "batch,prompt", "model": "{width: 64},{width: 128}"}
    values |= {"task": "{prompts: 64},{prompts: 128}", "reward": "{correct: 1},{correct: .5, wrong: .1}"}
    values |= {"sampling": "{temperature: .9},{temperature: 1}", "batch": "{rollouts: 4},{rollouts: 8}"}
    values |= {"loss": "cispo,dapo", "curriculum": "{zero_variance: keep},{zero_variance: drop}"}
    values |= {"off_policy": "pipeline-8,ppo-8", "length": "none,penalty", "optimizer": "{lr: 1e-4},{lr: 2e-4}"}
    values |= {"evaluation": "{samples: 1},{samples: 2}"}
    assert values.keys() == {*sections(), *top_leaves()} - {"name", "seed", *NOT_IDENTITY}
    for key, given in values.items():
        assert len(tiny(recipe=mine, vary=[f"{key}={given}"]).runs) == 2
    for override in ("aggregation=prompt", "normalization=batch"):
        assert len(tiny(override, recipe=mine, vary=["aggregation=prompt,sample"]).runs) == 2
    assert len(tiny(recipe=mine, leave_one_out=True).runs) == 9
    assert [run.seed for run in tiny(recipe=mine, seeds=2).runs] == [0, 1]


@pytest.mark.parametrize(
    ("overrides", "more"),
    [
        (["budget.steps=100", "execution.threads=2", "seed=3", "execution.engine=local"], {}),
        (["loss.eps_max=5"], {}),  # the key is the same too: a default may be written out
        (["loss=dapo"], {"vary": ["loss=cispo,gspo"]}),  # an axis lies over it
        (["loss=dapo", "loss.eps_low=.1"], {}),  # without the first the second would not be valid
        (["optimizer.warmup_steps=1"], {}),
        # It counts in one of the variants.
        (["loss=dapo"], {"vary": ["off_policy=pipeline-0,pipeline-8"]}),
        (["loss=dapo"], {"vary": ["off_policy=pipeline-8,pipeline-0"]}),
        (["aggregation=sample"], {"vary": ["loss=gspo,dapo"]}),
        (["loss=dapo"], {"leave_one_out": True}),
        ([SYNC, "loss=dapo"], {"leave_one_out": True}),  # it takes the arm away that would be like the base
    ],
)
def test_an_override_that_is_not_in_vain(overrides: list[str], more: dict[str, object]) -> None:
    assert tiny(*overrides, **more).runs


def test_an_override_that_only_adds_an_arm_is_not_in_vain(mine: Path) -> None:
    mine.write_text("extends: scalerl\nloss: {type: dapo, eps_low: 0.2, eps_high: 0.2}")
    grpo = "loss={type: grpo, eps: 0.2}"
    assert "dapo with eps_low and eps_high alike" in refusal(grpo, recipe=mine)
    assert len(tiny(grpo, recipe=mine, leave_one_out=True).runs) == 9


# A line that changes nothing


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            "off_policy: pipeline-0\nloss:\n  type: cispo\n  eps_max: 4",
            ["mine.yaml:5: loss.eps_max: 4.0 changes nothing"],
        ),
        (
            "loss: {type: gspo, eps_high: 0.1}\noff_policy: ppo-1",
            ["mine.yaml:2: loss.eps_high: 0.1 changes", "leave it"],
        ),
        (
            "loss: {eps_max: 4}\nextends: parent.yaml",
            ["mine.yaml:2: loss.eps_max: 4.0 changes nothing here: pipeline-0"],
        ),
    ],
)
def test_a_line_in_vain_is_refused_where_its_author_could_know(mine: Path, text: str, parts: list[str]) -> None:
    (mine.parent / "parent.yaml").write_text("extends: scalerl\noff_policy: pipeline-0")
    mine.write_text(f"scale: tiny\n{text}" + ("\nextends: scalerl" if "extends" not in text else ""))
    message = refusal(recipe=mine)
    for part in parts:
        assert part in message
    for more in ({"vary": ["optimizer.lr=1e-4,3e-4"]}, {"seeds": 2}):
        assert refusal(recipe=mine, **more) == message
    assert expand(mine, scale="8b").notes == ()  # vLLM's numbers are not the trainer's


@pytest.mark.parametrize("vary", ["loss.eps_max=4", "loss={type: cispo, eps_max: 4},gspo"])
def test_an_axis_that_states_a_value_in_vain(vary: str) -> None:
    assert "loss.eps_max: 4.0 changes nothing here" in refusal(SYNC, vary=[vary])


def test_a_line_made_idle_from_above_is_noted(mine: Path) -> None:
    mine.write_text("extends: scalerl\noff_policy: pipeline-0")
    (note,) = tiny(recipe=mine).notes
    assert note.startswith("loss.eps_max changes nothing here: pipeline-0 with the local engine in float32")
    assert tiny(SYNC).notes == (note,)
    (note,) = tiny(vary=["off_policy=pipeline-8,ppo-1"]).notes
    assert note.startswith("loss.eps_max changes nothing in variant off_policy=ppo-1: ppo-1 with")
    (note,) = tiny(vary=["off_policy=pipeline-8,pipeline-0", "optimizer.lr=1e-4,3e-4"], seeds=2).notes
    assert note.startswith(
        "loss.eps_max changes nothing in variant off_policy=pipeline-0,optimizer.lr=0.0001 and 1 more"
    )


def test_what_the_budget_makes_idle_is_noted_wherever_it_stands(mine: Path) -> None:
    mine.write_text("curriculum: {no_positive_resampling: 0.5}\nbudget: {steps: 20}\nevaluation: {every: 30}")
    resampling, every = tiny(recipe=mine).notes
    assert resampling.startswith("curriculum.no_positive_resampling changes nothing here: no prompt comes up twice")
    assert resampling.endswith("budget.steps=65 or more would do")
    assert every.startswith("evaluation.every changes nothing here: ") and every.endswith("30 or more would do")
    mine.write_text("curriculum: {no_positive_resampling: null}\nbudget: {steps: 20}")
    assert tiny(recipe=mine).notes == ()


def test_a_default_of_schema_or_scale_is_neither_refused_nor_noted(mine: Path) -> None:
    mine.write_text("off_policy: pipeline-0\nloss: gspo\nbudget: {steps: 9}")
    assert tiny(recipe=mine).notes == ()  # loss.eps_low and evaluation.every are the scale's
    scale = mine.parent / "own.yaml"
    scale.write_text("loss: {eps_max: 4}\nexecution: {engine: local}")
    mine.write_text("off_policy: pipeline-0")
    assert expand(mine, scale=str(scale)).notes == ()


def test_a_line_that_counts_in_another_variant_is_kept(mine: Path) -> None:
    mine.write_text("extends: scalerl\noff_policy: pipeline-0\nloss: {eps_max: 4}")
    (note,) = tiny(recipe=mine, vary=["off_policy=pipeline-0,pipeline-8"]).notes
    assert note.startswith("loss.eps_max changes nothing in variant off_policy=pipeline-0: ")
    # The order of the axes says nothing.
    for axes in (
        ["loss.eps_max=4", "off_policy=pipeline-0,pipeline-8"],
        ["off_policy=pipeline-0,ppo-8", "loss.eps_max=4"],
    ):
        assert len(tiny(vary=axes).notes) == 1


def test_a_revision_of_a_local_folder(mine: Path) -> None:
    (mine.parent / "weights").mkdir()
    for name in ("config.json", "tokenizer.json"):
        (mine.parent / "weights" / name).touch()
    model = "model: {type: pretrained, path: ./weights"
    mine.write_text(f"extends: scalerl\n{model}, revision: v1}}")
    with pytest.raises(RecipeError, match=r"mine\.yaml:2: model\.revision: v1 changes nothing here: a local folder"):
        expand(mine)
    mine.write_text(f"extends: scalerl\n{model}}}")
    assert expand(mine).notes == ()  # the revision is the scale's

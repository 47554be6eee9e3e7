import json
from pathlib import Path

import pytest

from rlsweep.errors import RecipeError
from rlsweep.recipe import shipped
from rlsweep.recipe.key import difference, run_key, variant_key
from rlsweep.recipe.load import load_recipe
from rlsweep.recipe.loss import Cispo, Dapo, Gspo
from rlsweep.recipe.off_policy import Ppo
from rlsweep.sweep.axes import COMPONENTS
from rlsweep.sweep.expand import BASE, Sweep, differences, expand


def tiny(*vary: str, **more: object) -> Sweep:
    return expand("scalerl", scale="tiny", vary=vary, **more)


def variants(sweep: Sweep) -> list[str]:
    return [run.variant for run in sweep.runs]


def refusal(*vary: str, **more: object) -> str:
    with pytest.raises(RecipeError) as caught:
        tiny(*vary, **more)
    return str(caught.value)


# What comes out


def test_no_axis_gives_the_recipe_itself() -> None:
    sweep = tiny()
    assert variants(sweep) == [BASE]
    assert sweep.runs[0].recipe == load_recipe("scalerl", scale="tiny")
    assert (sweep.name, sweep.recipe_name, sweep.scale) == ("scalerl-tiny", "scalerl", "tiny")


def test_the_demo() -> None:
    sweep = tiny("loss=dapo,cispo,gspo", seeds=2)
    assert sweep.name == "scalerl-tiny-loss"
    assert variants(sweep) == ["loss=dapo", "loss=dapo", "loss=cispo", "loss=cispo", "loss=gspo", "loss=gspo"]
    assert [run.seed for run in sweep.runs] == [0, 1] * 3
    assert [run.recipe.loss for run in sweep.runs[::2]] == [Dapo(), Cispo(), Gspo(eps_low=0.05, eps_high=0.07)]
    assert len({run.key for run in sweep.runs}) == 6
    assert len({run.variant_key for run in sweep.runs}) == 3
    assert differences(sweep) == {
        "loss=dapo": {"loss.type": "dapo", "loss.eps_low": 0.2, "loss.eps_high": 0.26},
        "loss=cispo": {},
        "loss=gspo": {"loss.type": "gspo", "loss.eps_low": 0.05, "loss.eps_high": 0.07},
    }


def test_a_run_is_what_loading_with_overrides_gives() -> None:
    sweep = tiny("loss=dapo,{type: gspo, eps_low: .1}", "optimizer.lr=1e-4,3e-4", "aggregation=sample", seeds="7,")
    for run in sweep.runs:
        overrides = ["seed=7", "aggregation=sample"]
        overrides.append("loss=dapo" if isinstance(run.recipe.loss, Dapo) else "loss={type: gspo, eps_low: .1}")
        overrides.append(f"optimizer.lr={run.recipe.optimizer.lr}")
        again = load_recipe("scalerl", scale="tiny", overrides=overrides)
        assert run.recipe == again
        assert (run.key, run.variant_key) == (run_key(again), variant_key(again))
        assert run.difference == difference(again, load_recipe("scalerl", scale="tiny", overrides=["seed=7"]))


def test_axes_multiply_and_variants_name_all_their_values() -> None:
    """The value that the recipe has anyway is named like the others: a table then says what each row is."""
    assert variants(tiny("loss=cispo,dapo", "optimizer.lr=3e-4,1e-4")) == [
        "loss=cispo,optimizer.lr=0.0003",
        "loss=cispo,optimizer.lr=0.0001",
        "loss=dapo,optimizer.lr=0.0003",
        "loss=dapo,optimizer.lr=0.0001",
    ]


def test_values_are_normalised_in_names() -> None:
    found = variants(tiny("loss={type: cispo, eps_max: 4}, { type: dapo , eps_low: .1 }", "off_policy=ppo-4"))
    assert found == [
        "loss={type: cispo, eps_max: 4.0},off_policy=ppo-4",
        "loss={type: dapo, eps_low: 0.1},off_policy=ppo-4",
    ]
    assert variants(tiny("curriculum.no_positive_resampling=null,8e-1")) == [
        "curriculum.no_positive_resampling=null",
        "curriculum.no_positive_resampling=0.8",
    ]


def test_two_fields_of_one_section_vary_together() -> None:
    sweep = tiny("length.earliest=5,12", "length.latest=12,15")
    found = [(run.recipe.length.earliest, run.recipe.length.latest) for run in sweep.runs]
    assert found == [(5, 12), (5, 15), (12, 12), (12, 15)]


def test_a_value_may_need_its_partner() -> None:
    zipped = ["length.earliest=5,15", "length.latest=8,18"]
    assert len(tiny(zip_=zipped).runs) == 2


def test_the_type_of_a_section_is_the_section() -> None:
    assert tiny("loss.type=dapo,gspo").name == "scalerl-tiny-loss"
    assert "inside" not in refusal("loss.type=dapo", "loss=gspo")
    assert "an axis twice" in refusal("loss.type=dapo", "loss=gspo")


def test_a_quoted_comma_doesnt_separate() -> None:
    sweep = tiny('length.phrase="a, #","b #"')
    assert variants(sweep) == ['length.phrase="a, #"', 'length.phrase="b #"']
    assert expand(**sweep.spec) == sweep


def test_zipped_axes_advance_together() -> None:
    sweep = tiny(zip_=["loss=cispo,dr_grpo", "aggregation=prompt,constant", "normalization=batch,none"])
    assert sweep.name == "scalerl-tiny-loss-aggregation-normalization"
    assert variants(sweep) == [
        "loss=cispo,aggregation=prompt,normalization=batch",
        "loss=dr_grpo,aggregation=constant,normalization=none",
    ]


def test_zip_multiplies_with_vary() -> None:
    sweep = tiny("optimizer.lr=1e-4,2e-4,3e-4", zip_=["loss=cispo,dapo", "off_policy=pipeline-8,ppo-8"])
    assert len(sweep.runs) == 6


@pytest.mark.parametrize("scale", ["tiny", "8b"])
def test_leave_one_out(scale: str) -> None:
    sweep = expand("scalerl", scale=scale, leave_one_out=True)
    assert sweep.name == f"scalerl-{scale}-leave-one-out"
    assert variants(sweep) == [BASE, *(f"{key}={value}" for key, value in COMPONENTS.items())]
    assert sweep.notes == ()
    assert sweep.runs[4].recipe.off_policy == Ppo(k=8)
    assert all(run.difference for run in sweep.runs[1:])


def test_leave_one_out_names_what_has_nothing_to_revert() -> None:
    sweep = expand("dapo-qwen", scale="tiny", leave_one_out=True)
    assert "loss=dapo" not in variants(sweep)
    assert "leave-one-out: loss is dapo already, nothing to revert" in sweep.notes
    assert len(sweep.runs) + len(sweep.notes) == 1 + len(COMPONENTS)


def test_leave_one_out_multiplies_with_an_axis() -> None:
    assert len(tiny("optimizer.lr=1e-4,3e-4", leave_one_out=True).runs) == 18


@pytest.mark.parametrize("loss", ["cispo", "dapo", "gspo", "grpo"])
def test_every_loss_is_valid_at_tiny(loss: str) -> None:
    assert tiny(f"loss={loss}").runs[0].recipe.loss.type == loss


def test_overrides_lie_under_the_axes() -> None:
    sweep = tiny("loss=dapo,cispo", overrides=["optimizer.lr=1e-3", "loss.eps_max=4"])
    assert {run.recipe.optimizer.lr for run in sweep.runs} == {1e-3}
    assert variants(sweep) == ["loss=dapo", "loss=cispo"]
    assert sweep.runs[1].recipe.loss == Cispo(eps_max=4.0)


@pytest.mark.parametrize(
    ("seeds", "found"),
    [(None, [0]), (3, [0, 1, 2]), ("3", [0, 1, 2]), ("0,3,7", [0, 3, 7]), ("3,", [3]), ([5], [5]), ((2, 1), [2, 1])],
)
def test_seeds(seeds: object, found: list[int]) -> None:
    assert [run.seed for run in tiny(seeds=seeds).runs] == found


def test_the_recipes_own_seed_is_kept() -> None:
    assert [run.seed for run in tiny(overrides=["seed=4"]).runs] == [4]


def test_a_spec_is_json_and_makes_the_same_sweep(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("extends: scalerl\nscale: tiny")
    sweeps = [
        tiny("loss=dapo,{type: cispo, eps_max: 4}", "off_policy=ppo-4,pipeline-2", seeds="3,"),
        tiny(zip_=["loss=dapo,gspo", "off_policy=ppo-8,ppo-4"], overrides=["optimizer.lr=1e-3"]),
        tiny(leave_one_out=True, name="mine"),
        expand(file, vary=["aggregation=token,sample"]),
        expand(sweep="loss", scale="tiny"),
    ]
    for sweep in sweeps:
        assert expand(**json.loads(json.dumps(sweep.spec))) == sweep


def test_adding_a_value_keeps_the_name_and_the_runs() -> None:
    before, after = tiny("loss=dapo,cispo"), tiny("loss=dapo,cispo,gspo")
    assert before.name == after.name
    assert {run.key for run in before.runs} < {run.key for run in after.runs}


def test_a_base_that_is_not_run_need_not_be_valid() -> None:
    sweep = tiny("loss=cispo,dapo", overrides=["aggregation=token", "loss=gspo"])
    assert variants(sweep) == ["loss=cispo", "loss=dapo"]


def test_a_thousand_combinations_have_a_key_each() -> None:
    rates = ",".join(str(number * 1e-6) for number in range(1, 33))
    lags = ",".join(f"pipeline-{number}" for number in range(32))
    assert len({run.key for run in tiny(f"optimizer.lr={rates}", f"off_policy={lags}").runs}) == 1024


# Refusals


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        (["loss"], "--vary loss: no values; write loss=value,value"),
        (["loss="], "--vary loss: an axis without values"),
        (["loss=dapo,"], "--vary loss: loss: an empty value"),
        (["los=dapo"], "--vary los: los: unknown key; did you mean loss?"),
        (["lr=1e-4"], "did you mean optimizer.lr?"),
        (["loss.eps_mx=4"], "loss.eps_mx: unknown key; did you mean eps_max?"),
        (["loss.eps_low=.1"], "eps_low belongs to dapo and gspo"),
        (["loss=dpo,cispo"], "--vary loss: loss: 'dpo' is not valid; it must be one of cispo, dapo"),
        (["loss=dapoo"], "did you mean dapo?"),
        (
            ["optimizer.lr=1e-4,fast"],
            "--vary optimizer.lr: optimizer.lr: fast (a text) is not valid; it must be a number",
        ),
        (["optimizer.lr=-1"], "--vary optimizer.lr: optimizer.lr: -1.0 is not valid; it must be above 0"),
        (["off_policy=pipeline-8,ppo-0"], "off_policy.k: 0 is not valid"),
        (["loss={type: cispo, eps_max: -4}"], "--vary loss: loss.eps_max: -4.0 is not valid"),
        (["loss=dapo", "loss=cispo"], "--vary loss: loss: an axis twice"),
        (["loss=dapo", "loss.eps_max=4"], "loss.eps_max lies inside loss"),
        (["loss=dapo,dapo"], "--vary loss: loss: a value twice: dapo"),
        (["optimizer.lr=3e-4,0.0003"], "a value twice: 0.0003"),
        (["off_policy=pipeline,pipeline-8"], "a value twice: pipeline and pipeline-8"),
        (["seed=1,2"], "use --seeds"),
        (["name=a,b"], "name: can't be set here"),
        (["scale=tiny,8b"], "use --scale"),
        (["extends=a"], "can't be set here"),
        (["loss={type: cispo"], "no '}' in"),
        (["budget.steps=10,20"], "are the same run"),
        (["budget.steps=10,20"], "budget and execution are not part of what a run is"),
        (["loss=cispo,gspo", "aggregation=token"], "'token' weighs tokens, but loss gspo"),
        (["loss=cispo,gspo", "aggregation=token"], "(variant loss=gspo,aggregation=token)"),
        (["length.earliest=5,15"], "length.latest: 12 is not valid; it must be at least earliest (15)"),
    ],
)
def test_a_bad_axis(vary: list[str], message: str) -> None:
    assert message in refusal(*vary)


def test_zipped_axes_of_unequal_length() -> None:
    message = refusal(zip_=["loss=dapo,cispo", "optimizer.lr=1e-4"])
    assert "need as many values each; loss has 2, optimizer.lr has 1" in message


def test_a_zipped_combination_twice() -> None:
    assert "a combination twice" in refusal(zip_=["loss=dapo,dapo", "optimizer.lr=1e-4,1e-4"])
    assert len(tiny(zip_=["loss=dapo,dapo", "optimizer.lr=1e-4,2e-4"]).runs) == 2


def test_an_axis_in_vary_and_zip() -> None:
    assert "--zip loss: loss: an axis twice; --vary loss varies it already" in refusal("loss=dapo", zip_=["loss=gspo"])


def test_leave_one_out_over_an_axis_of_its_own() -> None:
    assert "--vary loss varies" in refusal("loss=dapo,cispo", leave_one_out=True)


def test_the_same_run_under_two_names() -> None:
    message = refusal(zip_=["loss=dapo,dapo", "budget.steps=100,300"])
    assert "variants loss=dapo,budget.steps=100 and loss=dapo,budget.steps=300 are the same run" in message


@pytest.mark.parametrize("seeds", [0, -1, "0", "x", "1,1", "1,,2", "", "-1", "1.5", [], [1, 1], [-1]])
def test_bad_seeds(seeds: object) -> None:
    assert refusal(seeds=seeds).startswith("--seeds: ")


@pytest.mark.parametrize("name", ["a/b", ".hidden", "a b", "x" * 101])
def test_a_bad_name(name: str) -> None:
    assert "is no name for a sweep" in refusal(name=name)


def test_no_recipe() -> None:
    with pytest.raises(RecipeError, match="no recipe; give its file or a shipped name: dapo-qwen"):
        expand()


# Sweep files


@pytest.mark.parametrize("name", shipped.names("sweep"))
@pytest.mark.parametrize("scale", ["tiny", "8b"])
def test_what_ships_is_valid(name: str, scale: str) -> None:
    sweep = expand(sweep=name, scale=scale)
    assert len(sweep.runs) > 1
    varies_another_base = name in ("dapo-clip", "gspo-clip") or (scale == "tiny" and name in ("batch", "generations"))
    assert ({} in list(differences(sweep).values())) is not varies_another_base


def test_no_two_shipped_sweeps_have_one_name() -> None:
    names = [expand(sweep=name, scale="tiny").name for name in shipped.names("sweep")]
    assert len(set(names)) == len(names)


def test_how_rollouts_are_spread_leaves_the_batch_as_large() -> None:
    batches = [run.recipe.batch for run in expand(sweep="generations", scale="8b").runs]
    assert [batch.rollouts for batch in batches] == [8, 16, 24, 32]
    assert {batch.prompts * batch.rollouts for batch in batches} == {768}


def test_the_command_line_lies_over_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "recipe: scalerl\nscale: tiny\nname: mine\nseeds: 2\n"
        "vary:\n  loss: [dapo, {type: cispo, eps_max: 4}]\n  optimizer.lr: [1e-4, 3e-4]\n"
    )
    assert len(expand(sweep=file).runs) == 8
    sweep = expand("minimax", sweep=file, vary=["loss=dapo", "aggregation=sample,prompt"], seeds="5,", name="other")
    assert (sweep.name, sweep.recipe_name) == ("other", "minimax")
    assert variants(sweep) == [
        "optimizer.lr=0.0001,loss=dapo,aggregation=sample",
        "optimizer.lr=0.0001,loss=dapo,aggregation=prompt",
        "optimizer.lr=0.0003,loss=dapo,aggregation=sample",
        "optimizer.lr=0.0003,loss=dapo,aggregation=prompt",
    ]
    assert [run.seed for run in sweep.runs] == [5] * 4


def test_a_files_recipe_is_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: scalerl\nscale: tiny")
    (tmp_path / "sweep.yaml").write_text("recipe: ./mine.yaml\nleave_one_out: true\nseeds: [3]")
    sweep = expand(sweep=tmp_path / "sweep.yaml")
    assert (sweep.name, len(sweep.runs)) == ("mine-tiny-leave-one-out", 9)
    assert expand(**sweep.spec) == sweep


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("recipe: scalerl\nvry: {}", "s.yaml:2: vry: unknown key; did you mean vary?"),
        ("recipe: scalrl", "s.yaml:1: recipe: 'scalrl': no such recipe"),
        ("recipe: [a]", "s.yaml:1: recipe: a list is not valid; it must be a text"),
        ("scale: tny", "s.yaml:1: scale: 'tny': no such scale"),
        ("vary: [loss]", "vary: a list is not valid; it must be a map from path to a list of values"),
        ("vary:\n  loss: dapo", "s.yaml:2: vary.loss: dapo is not valid; it must be a list of values"),
        ("vary:\n  loss: []", "s.yaml:2: loss: an axis without values"),
        ("vary:\n  loss: [dapo,\n    dpo]", "s.yaml:3: loss: 'dpo' is not valid"),
        ("vary:\n  optimizer.lr: ['1e-4']", "s.yaml:2: optimizer.lr: '1e-4' (a text) is not valid"),
        ("vary:\n  los: [dapo]", "s.yaml:2: los: unknown key; did you mean loss?"),
        ("vary:\n  loss: [dapo]\n  loss: [cispo]", "s.yaml:3: loss: stated twice"),
        ("leave_one_out: yes", "leave_one_out: yes is not valid; it must be true or false"),
        ("seeds: '3'", "seeds: '3' is not valid"),
        ("seeds: [a]", "seeds: a is not valid"),
        ("seeds: 0", "s.yaml:1: 0 is not valid"),
        ("- a", "s.yaml:1: a list stands at the top"),
        ("", "the file is empty"),
    ],
)
def test_a_bad_sweep_file(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(text)
    with pytest.raises(RecipeError) as caught:
        expand("scalerl" if "recipe" not in text else None, sweep=file, scale=None if "scale" in text else "tiny")
    assert message in str(caught.value)


def test_an_unknown_sweep_names_what_ships() -> None:
    with pytest.raises(RecipeError, match=r"'los': no such sweep; shipped sweeps: .*did you mean loss"):
        expand(sweep="los")


def test_a_sweep_has_an_end() -> None:
    with pytest.raises(RecipeError, match="more than 1000 seeds"):
        tiny(seeds=1_000_000_000)
    lists = [f"optimizer.{name}={','.join(str(0.1 + i / 1000) for i in range(400))}" for name in ("beta1", "beta2")]
    with pytest.raises(RecipeError, match="160,000 runs; a sweep has at most 100,000"):
        tiny(*lists)

from collections.abc import Callable
from pathlib import Path

import pytest

from rlsweep.errors import RecipeError
from rlsweep.recipe.length import Interrupt, NoLengthControl, Penalty
from rlsweep.recipe.load import load_recipe
from rlsweep.recipe.loss import Cispo, Dapo, Gspo
from rlsweep.recipe.model import Embedded, Pretrained
from rlsweep.recipe.off_policy import Pipeline, Ppo
from rlsweep.recipe.optimizer import Optimizer
from rlsweep.recipe.task import Registers

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str, name: str = "mine.yaml") -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    return write


def refusal(file: Path | str, *overrides: str, scale: str | None = None) -> str:
    with pytest.raises(RecipeError) as caught:
        load_recipe(file, scale=scale, overrides=overrides)
    return str(caught.value)


# Layers


def test_a_stated_line_wins_over_the_scale_and_the_scale_over_the_schema(write: Write) -> None:
    file = write("scale: tiny\noptimizer: {lr: 1e-3}")
    assert load_recipe(file).optimizer == Optimizer(lr=1e-3, warmup_steps=5, eps=1e-8)


def test_the_scale_asked_for_wins_over_the_recipes_own(write: Write) -> None:
    file = write("scale: 8b")
    assert isinstance(load_recipe(file).model, Pretrained)
    assert isinstance(load_recipe(file, scale="tiny").model, Embedded)


def test_without_a_scale_the_schema_stands(write: Write) -> None:
    assert load_recipe(write("name: plain")).optimizer == Optimizer()


def test_extends_stands_between_scale_and_recipe(write: Write) -> None:
    write("scale: tiny\nbatch: {prompts: 10, rollouts: 4}\nseed: 3", "parent.yaml")
    recipe = load_recipe(write("extends: parent.yaml\nbatch: {prompts: 20}"))
    assert (recipe.batch.prompts, recipe.batch.rollouts, recipe.seed) == (20, 4, 3)
    assert recipe.optimizer.lr == 3e-4
    assert recipe.name == "mine"


def test_extends_is_relative_to_its_file_and_knows_shipped_names(write: Write) -> None:
    write("extends: scalerl\nseed: 5", "deep/parent.yaml")
    recipe = load_recipe(write("extends: deep/parent.yaml"), scale="tiny")
    assert recipe.seed == 5
    assert recipe.off_policy == Pipeline(k=8)


def test_a_circle_is_refused_with_its_chain(write: Write) -> None:
    write("extends: c.yaml", "b.yaml")
    write("extends: a.yaml", "c.yaml")
    message = refusal(write("extends: b.yaml", "a.yaml"))
    assert "a circle" in message
    assert [part.rpartition("/")[2] for part in message.partition("circle: ")[2].split(" extends ")] == [
        "a.yaml",
        "b.yaml",
        "c.yaml",
        "a.yaml",
    ]


def test_overrides_win_and_the_last_wins_among_them(write: Write) -> None:
    file = write("scale: tiny\nloss: cispo")
    assert load_recipe(file, overrides=["loss=dapo", "loss.eps_low=.1", "loss.eps_low=.15"]).loss == Dapo(eps_low=0.15)
    assert load_recipe(file, overrides=["loss={type: cispo, eps_max: 4}"]).loss == Cispo(eps_max=4.0)
    assert load_recipe(file, overrides=["curriculum.no_positive_resampling=null"]).curriculum == (
        load_recipe(write("scale: tiny\ncurriculum: {no_positive_resampling: null}", "b.yaml")).curriculum
    )


# Types and short forms


def test_short_forms(write: Write) -> None:
    text = "loss: dapo\noff_policy: ppo-4\nlength: none\nmodel: embedded\ntask: registers"
    recipe = load_recipe(write(text))
    assert recipe.loss == Dapo()
    assert recipe.off_policy == Ppo(k=4)
    assert recipe.length == NoLengthControl()
    assert (recipe.model, recipe.task) == (Embedded(), Registers())


def test_the_same_type_or_none_merges_onto_the_layer_below(write: Write) -> None:
    write("loss: {type: dapo, eps_low: 0.1}", "parent.yaml")
    assert load_recipe(write("extends: parent.yaml\nloss: {eps_high: 0.3}")).loss == Dapo(eps_low=0.1, eps_high=0.3)
    assert load_recipe(write("extends: parent.yaml\nloss: dapo")).loss == Dapo(eps_low=0.1)


def test_another_type_starts_afresh(write: Write) -> None:
    write("loss: {type: dapo, eps_low: 0.1}", "parent.yaml")
    file = write("extends: parent.yaml\nloss: cispo")
    assert load_recipe(file).loss == Cispo()
    assert load_recipe(file, overrides=["loss=dapo"]).loss == Dapo()


def test_a_types_defaults_at_a_scale_stand_below_what_is_stated(write: Write) -> None:
    file = write("scale: tiny\nloss: {type: gspo, eps_low: 0.02}")
    assert load_recipe(file).loss == Gspo(eps_low=0.02, eps_high=0.07)
    assert load_recipe(file, scale="8b").loss == Gspo(eps_low=0.02, eps_high=4e-3)
    assert load_recipe(file, overrides=["length=penalty"]).length == Penalty(limit=20, ramp=10)
    assert load_recipe(file, overrides=["length=interrupt"]).length == Interrupt(
        earliest=10, latest=12, phrase="#", end="#"
    )


def test_a_whole_number_stands_for_a_number(write: Write) -> None:
    loss = load_recipe(write("loss: {eps_max: 4}")).loss
    assert isinstance(loss, Cispo)
    assert type(loss.eps_max) is float


def test_on_the_command_line_a_text_needs_no_quotes(write: Write) -> None:
    model = load_recipe(write("model: {type: pretrained, path: a/b}"), overrides=["model.revision=1234567"]).model
    assert isinstance(model, Pretrained)
    assert model.revision == "1234567"


def test_a_local_folder_is_made_absolute_relative_to_its_file(write: Write, tmp_path: Path) -> None:
    weights = tmp_path / "there" / "weights"
    weights.mkdir(parents=True)
    file = write("model: {type: pretrained, path: ./weights}", "there/mine.yaml")
    for name, message in (("config.json", "holds no config.json"), ("tokenizer.json", "holds no tokenizer")):
        with pytest.raises(RecipeError, match=rf"mine\.yaml:1: model\.path: './weights' .*{message}"):
            load_recipe(file)
        (weights / name).touch()
    model = load_recipe(file).model
    assert isinstance(model, Pretrained)
    assert model.path == str((tmp_path / "there" / "weights").resolve())


# Refusals: file, line, path, what was given, what is valid, the nearest


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("scale: tiny\nlos: cispo", ["mine.yaml:2: los: unknown key; did you mean loss?", "valid: ", "aggregation"]),
        ("eps_max: 4", ["mine.yaml:1: eps_max: unknown key; did you mean loss.eps_max?"]),
        ("nam: x", ["mine.yaml:1: nam: unknown key; did you mean name?"]),
        ("loss:\n  type: cispo\n  eps_mx: 4", ["mine.yaml:3: loss.eps_mx: ", "did you mean eps_max?", "type, eps_max"]),
        ("loss: {type: cispo, eps_low: 4}", ["loss.eps_low: unknown key; eps_low belongs to dapo and gspo"]),
        ("loss: cispoo", ["mine.yaml:1: loss: 'cispoo' is not valid", "one of cispo, dapo", "did you mean cispo?"]),
        ("loss: {type: no}", ["loss: 'no' is not valid"]),
        ("off_policy: pipelin-8", ["off_policy: 'pipelin' is not valid", "such as pipeline-8", "mean pipeline?"]),
        ("off_policy: ppo-0", ["mine.yaml:1: off_policy.k: 0 is not valid; it must be from 1 to 1024"]),
        ("aggregation: promt", ["mine.yaml:1: aggregation: 'promt' is not valid; it must be one of", "mean prompt?"]),
        ("batch: 8", ["batch: 8 is not valid; it must be a map of prompts, rollouts"]),
        ("batch: [8]", ["batch: a list is not valid"]),
        ("batch:", ["batch: null is not valid"]),
        ("loss: [dapo, cispo]", ["loss: a list is not valid; it must be a map or one of cispo"]),
        ("- loss", ["mine.yaml:1: a list stands at the top; it must be a map"]),
        ("loss", ["mine.yaml:1: loss stands at the top"]),
        (
            'batch:\n  prompts: "8"',
            ["mine.yaml:2: batch.prompts: '8' (a text)", "a whole number; leave the quotes out"],
        ),
        ("batch: {prompts: 8.0}", ["batch.prompts: 8.0 (a number) is not valid; it must be a whole number"]),
        ("batch: {prompts: 1e3}", ["batch.prompts: 1e3 (a number) is not valid; it must be a whole number"]),
        ("batch: {prompts: true}", ["batch.prompts: true (true or false) is not valid"]),
        ("optimizer: {lr: true}", ["optimizer.lr: true (true or false) is not valid; it must be a number"]),
        ("optimizer: {lr: fast}", ["optimizer.lr: fast (a text) is not valid; it must be a number"]),
        ("optimizer: {lr: null}", ["optimizer.lr: null is not valid"]),
        ("optimizer: {lr: {a: 1}}", ["optimizer.lr: a map is not valid"]),
        ("model: {type: pretrained, path: a/b, revision: 123}", ["model.revision: 123", "a text; put it in quotes"]),
        ("curriculum: {no_positive_resampling: no}", ["no (a text) is not valid; it must be a number or null"]),
        (
            "curriculum: {no_positive_resampling: 2}",
            ["mine.yaml:1: curriculum.no_positive_resampling: 2.0 is not valid"],
        ),
        ("name: a/b", ["mine.yaml:1: name: a/b is not valid"]),
        ("name: 3", ["mine.yaml:1: name: 3 is not valid"]),
        ("scale: tin", ["mine.yaml:1: scale: 'tin': no such scale; shipped scales: 8b, tiny; did you mean tiny?"]),
        ("extends: scalrl", ["mine.yaml:1: extends: 'scalrl': no such recipe", "did you mean scalerl?"]),
        ("extends: ./none.yaml", ["mine.yaml:1: extends: ", "none.yaml: no such file"]),
        ("model: {type: pretrained, path: ./none}", ["mine.yaml:1: model.path: './none': no such file or folder"]),
        ("model: {type: pretrained}", ["mine.yaml:1: model.path: '' is not valid"]),
        ("length: {phrase: '${oc.env:HOME}'}", ["length.phrase: ", "must not be ??? or hold ${"]),
        ("length: {phrase: '???'}", ["length.phrase: '???' is not valid"]),
        ("seed: -1", ["mine.yaml:1: seed: -1 is not valid"]),
    ],
)
def test_a_bad_file(write: Write, text: str, parts: list[str]) -> None:
    message = refusal(write(text))
    assert message.count("mine.yaml") >= 1
    for part in parts:
        assert part in message


def test_a_clash_between_sections_names_the_line_of_the_last_statement(write: Write) -> None:
    write("loss: gspo\naggregation: prompt", "parent.yaml")
    message = refusal(write("name: mine\nextends: parent.yaml\naggregation: token"))
    assert "mine.yaml:3: aggregation: 'token' weighs tokens" in message
    message = refusal(write("extends: scalerl\nseed: 1\nsampling: {max_tokens: 12}"), scale="tiny")
    assert "mine.yaml:3: length.latest: 12 leaves no room for an answer" in message


def test_a_clash_within_a_section_names_the_line_that_was_changed(write: Write) -> None:
    message = refusal(write("scale: tiny\nlength:\n  type: interrupt\n  earliest: 15"))
    assert "mine.yaml:4: length.latest: 12 is not valid; it must be at least earliest (15)" in message


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("loss", "--set loss: no value; write loss=value"),
        ("loss=", "--set loss=: loss: empty"),
        ("los=dapo", "--set los=dapo: los: unknown key; did you mean loss?"),
        ("lr=1", "did you mean optimizer.lr?"),
        ("optimizer.lrr=1", "--set optimizer.lrr=1: optimizer.lrr: unknown key; did you mean lr?"),
        ("optimizer.=1", "--set optimizer.=1: optimizer.: unknown key; did you mean optimizer?"),
        ("=1", "--set =1: unknown key; valid: model"),
        ("optimizer.lr.x=1", "optimizer.lr.x: unknown key"),
        ("aggregation.x=1", "aggregation has no fields"),
        ("optimizer.lr=fast", "optimizer.lr: fast (a text) is not valid; it must be a number"),
        ("loss=dapo,cispo", "'dapo,cispo' is not valid; it must be one of cispo"),
        ("name=x", "--set name=x: name: can't be set here"),
        ("scale=8b", "use --scale"),
        ("extends=x", "can't be set here"),
        ("loss={type: cispo", "--set loss={type: cispo: not valid YAML"),
        ("batch.prompts=0", "--set batch.prompts=0: batch.prompts: 0 is not valid; it must be 1 or more"),
    ],
)
def test_a_bad_override(override: str, message: str) -> None:
    assert message in refusal("scalerl", override, scale="tiny")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x", "s.yaml:1: name: can't be set here"),
        ("types: {loss: {gspoo: {eps_low: 1}}}", "'gspoo' is not valid"),
        ("types: {lss: {gspo: {eps_low: 1}}}", "types.lss: unknown key; did you mean loss?"),
        ("types: {batch: {x: {}}}", "types.batch: unknown key"),
        ("types: {loss: {gspo: {eps: 1}}}", "s.yaml:1: loss.eps: unknown key"),
        ("types: {loss: {gspo: {eps_low: x}}}", "s.yaml:1: loss.eps_low: x (a text) is not valid"),
        ("types: [1]", "types: a list is not valid"),
    ],
)
def test_a_bad_scale(write: Write, text: str, message: str) -> None:
    assert message in refusal("scalerl", scale=str(write(text, "s.yaml")))


def test_a_types_default_that_is_not_valid_is_named(write: Write) -> None:
    scale = write("seed: 0\ntypes:\n  loss:\n    gspo: {eps_low: -1}", "s.yaml")
    assert "s.yaml:4: loss.eps_low: -1.0 is not valid" in refusal(write("loss: gspo"), scale=str(scale))


def test_a_recipe_that_isnt_there_names_what_ships() -> None:
    assert "'scalrl': no such recipe; shipped recipes: " in refusal("scalrl")
    assert "did you mean scalerl?" in refusal("recipes/nowhere/scalrl.yaml")

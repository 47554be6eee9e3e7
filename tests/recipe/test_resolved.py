import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsweep.errors import RecipeError
from rlsweep.recipe import shipped
from rlsweep.recipe.batch import Batch
from rlsweep.recipe.curriculum import Curriculum
from rlsweep.recipe.length import Interrupt, NoLengthControl, Penalty
from rlsweep.recipe.load import load_recipe
from rlsweep.recipe.loss import Cispo, Dapo, DrGrpo, Grpo, Gspo
from rlsweep.recipe.model import Pretrained
from rlsweep.recipe.nodes import Node, Place, parse
from rlsweep.recipe.off_policy import Pipeline, Ppo
from rlsweep.recipe.optimizer import Optimizer
from rlsweep.recipe.resolved import dump, read_resolved
from rlsweep.recipe.sampling import Sampling
from rlsweep.recipe.schema import Recipe
from rlsweep.recipe.task import Math
from rlsweep.recipe.text import scalar_text

texts = st.one_of(
    st.text(min_size=1),
    st.sampled_from(
        ["yes", "no", "on", "null", "~", "true", "3", "3e-4", "0123", "1:30:00", "a\nb", "#", "${x}", "???", "'", '"']
    ),
    st.sampled_from(["\u2028", "\x85", "\ufeff", "\x7f", "\U0001f600", "\\", "a: b", "- a", " a ", "\t"]),
)
positive = st.floats(min_value=1e-300, max_value=1e300)
fraction = st.floats(min_value=0, max_value=1, exclude_min=True)
count = st.integers(min_value=1, max_value=10**6)

recipes = st.builds(
    Recipe,
    name=texts,
    model=st.builds(Pretrained, path=texts, revision=texts, dtype=st.sampled_from(["float32", "bfloat16"])),
    task=st.builds(Math, dataset=texts, revision=texts),
    batch=st.builds(Batch, prompts=count, rollouts=st.integers(2, 64)),
    sampling=st.builds(Sampling, temperature=positive, max_tokens=st.integers(10**7, 10**8)),
    loss=st.one_of(
        st.builds(Cispo, eps_max=positive),
        st.builds(Dapo, eps_low=fraction, eps_high=positive),
        st.builds(Gspo, eps_low=fraction, eps_high=positive),
        st.builds(Grpo, eps=fraction),
    ),
    aggregation=st.sampled_from(["sample", "prompt"]),
    normalization=st.sampled_from(["prompt", "batch", "none"]),
    curriculum=st.builds(
        Curriculum,
        zero_variance=st.sampled_from(["drop", "keep"]),
        no_positive_resampling=st.none() | fraction,
    ),
    off_policy=st.one_of(st.builds(Pipeline, k=st.integers(0, 1024)), st.builds(Ppo, k=st.integers(1, 1024))),
    length=st.one_of(
        texts.map(lambda text: Interrupt(earliest=1, latest=2, phrase=text, end=text)),
        st.builds(Penalty, limit=st.just(100), ramp=st.integers(1, 100)),
        st.just(NoLengthControl()),
    ),
    optimizer=st.builds(Optimizer, lr=st.floats(1e-300, 1e6), eps=positive),
    seed=st.integers(0, 2**53),
)


@settings(deadline=None, max_examples=50)
@given(recipes)
def test_dump_and_read_give_the_same_recipe(tmp_path_factory: pytest.TempPathFactory, recipe: Recipe) -> None:
    file = tmp_path_factory.mktemp("resolved") / "recipe.yaml"
    file.write_text(dump(recipe), encoding="utf-8")
    assert read_resolved(file) == recipe


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(1 - 10**18, 10**18 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    texts,
)


@settings(deadline=None)
@given(scalars)
def test_a_scalar_is_read_back_as_it_was(value: str | int | float | bool | None) -> None:
    for template in ("k: {}", "k: {{a: {}, b: 1}}", "k: [{}, 1]"):
        root = parse(template.format(scalar_text(value)), "f")
        assert isinstance(root.value, dict)
        node = root.value["k"]
        while isinstance(node.value, dict | list):
            node = node.value["a"] if isinstance(node.value, dict) else node.value[0]
        assert node == Node(value, Place("f", 1), node.plain)
        assert type(node.value) is type(value)


@pytest.mark.parametrize("name", shipped.names("recipe"))
@pytest.mark.parametrize("scale", shipped.names("scale"))
def test_what_ships_comes_back(tmp_path: Path, name: str, scale: str) -> None:
    recipe = load_recipe(name, scale=scale)
    file = tmp_path / "recipe.yaml"
    file.write_text(dump(recipe))
    assert read_resolved(file) == recipe


def test_a_type_with_demands_of_its_own_comes_back(tmp_path: Path) -> None:
    recipe = Recipe(name="a", loss=DrGrpo(), aggregation="constant", normalization="none")
    file = tmp_path / "recipe.yaml"
    file.write_text(dump(recipe))
    assert read_resolved(file) == recipe


def test_all_leaves_are_written_out() -> None:
    text = dump(Recipe(name="a"))
    assert "\nloss:\n  type: cispo\n  eps_max: 5.0\n" in text
    assert "  no_positive_resampling: 0.9\n" in text
    assert text.endswith("  device_hours_per_rollout: null\n")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("eps_max: 5.0", "eps_mx: 5.0", "loss.eps_mx: unknown key; did you mean eps_max?"),
        ("eps_max: 5.0", "eps_max: -5.0", "loss.eps_max: -5.0 is not valid"),
        ("eps_max: 5.0", 'eps_max: "5"', "loss.eps_max: '5' (a text) is not valid"),
        ("type: cispo", "type: cisp", "loss.type: 'cisp' is not valid"),
        ("seed: 0", "sed: 0", "sed: unknown key; did you mean seed?"),
        ("seed: 0", "seed: -1", "seed: -1 is not valid"),
        ("name: a", "", "name: missing"),
        ("max_tokens: 14336", "max_tokens: 100", "length.latest: 12000 leaves no room"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(dump(Recipe(name="a")).replace(old, new))
    with pytest.raises(RecipeError) as caught:
        read_resolved(file)
    assert "recipe.yaml:" in str(caught.value)
    assert message in str(caught.value)


def test_reading_a_run_loads_neither_omegaconf_nor_torch() -> None:
    code = "import sys, rlsweep.recipe.resolved, rlsweep.sweep.expand; print({'omegaconf', 'torch'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"

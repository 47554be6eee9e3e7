from pathlib import Path

import pytest

from rlsweep.errors import RecipeError
from rlsweep.recipe import shipped
from rlsweep.recipe.load import load_recipe
from rlsweep.recipe.loss import Cispo, Dapo, Grpo
from rlsweep.recipe.off_policy import Pipeline, Ppo


def test_what_ships() -> None:
    assert shipped.names("recipe") == ["dapo-qwen", "grpo-deepseek", "magistral", "minimax", "scalerl"]
    assert {"8b", "tiny"} <= set(shipped.names("scale"))


def test_names_are_found_from_any_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_recipe("scalerl", scale="tiny").name == "scalerl"


def test_an_installed_package_has_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "_data" / "recipes" / "scales").mkdir(parents=True)
    (tmp_path / "_data" / "recipes" / "mine.yaml").write_text("name: mine")
    monkeypatch.setattr(shipped, "_PACKAGE", tmp_path)
    assert shipped.names("recipe") == ["mine"]
    assert shipped.find("recipe", "mine") == tmp_path / "_data" / "recipes" / "mine.yaml"
    with pytest.raises(RecipeError, match="shipped recipes: mine"):
        shipped.find("recipe", "scalerl")


def test_a_path_is_no_name(tmp_path: Path) -> None:
    file = tmp_path / "scalerl.yaml"
    file.write_text("name: other")
    assert load_recipe(str(file)).name == "other"
    assert load_recipe(file).name == "other"


@pytest.mark.parametrize(
    ("name", "loss", "off_policy", "aggregation", "normalization", "zero_variance", "resampling", "head"),
    [
        ("scalerl", Cispo(eps_max=5.0), Pipeline(k=8), "prompt", "batch", "drop", 0.9, "float32"),
        ("minimax", Cispo(eps_max=5.0), Ppo(k=8), "prompt", "prompt", "drop", None, "float32"),
        ("magistral", Dapo(eps_low=0.2, eps_high=0.26), Pipeline(k=8), "prompt", "prompt", "drop", None, "bfloat16"),
        ("dapo-qwen", Dapo(eps_low=0.2, eps_high=0.26), Ppo(k=8), "prompt", "prompt", "drop", None, "bfloat16"),
        ("grpo-deepseek", Grpo(eps=0.2), Ppo(k=8), "sample", "prompt", "keep", None, "bfloat16"),
    ],
)
@pytest.mark.parametrize("scale", ["tiny", "8b"])
def test_recipes_are_the_papers_at_any_scale(
    scale: str,
    name: str,
    loss: object,
    off_policy: object,
    aggregation: str,
    normalization: str,
    zero_variance: str,
    resampling: float | None,
    head: str,
) -> None:
    recipe = load_recipe(name, scale=scale)
    assert (recipe.loss, recipe.off_policy) == (loss, off_policy)
    assert (recipe.aggregation, recipe.normalization) == (aggregation, normalization)
    assert recipe.curriculum.zero_variance == zero_variance
    assert recipe.curriculum.no_positive_resampling == resampling
    assert recipe.model.head_dtype == head
    assert recipe.length.type == "interrupt"
    assert recipe.name == name


@pytest.mark.parametrize("name", ["dapo-qwen", "magistral", "minimax"])
def test_recipes_with_a_batch_of_1280(name: str) -> None:
    batch = load_recipe(name).batch
    assert batch.prompts * batch.rollouts == 1280
    assert load_recipe("scalerl").batch.prompts * load_recipe("scalerl").batch.rollouts == 768

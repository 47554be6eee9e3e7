from dataclasses import replace
from pathlib import Path

import pytest

from rlsweep.errors import RecipeError
from rlsweep.recipe import shipped
from rlsweep.recipe.budget import Budget
from rlsweep.recipe.execution import Execution
from rlsweep.recipe.key import difference, leaves, run_key, variant_key
from rlsweep.recipe.load import load_recipe
from rlsweep.recipe.loss import Cispo, Dapo
from rlsweep.recipe.model import Pretrained
from rlsweep.recipe.optimizer import Optimizer
from rlsweep.recipe.schema import Recipe
from rlsweep.recipe.task import Math

# A changed key makes every finished run of a recipe unfindable: raise SEMANTICS knowingly, never change one by the way.
GOLDEN = {
    ("dapo-qwen", "8b"): "360f286cfa01",
    ("dapo-qwen", "tiny"): "995a710f23f7",
    ("grpo-deepseek", "8b"): "83f9a422c9eb",
    ("grpo-deepseek", "tiny"): "128221fab42a",
    ("magistral", "8b"): "c6c76fbdd824",
    ("magistral", "tiny"): "d736a951d995",
    ("minimax", "8b"): "5d3e0498347d",
    ("minimax", "tiny"): "6b573decf628",
    ("scalerl", "8b"): "05a9a1300073",
    ("scalerl", "tiny"): "4f4c532a3d5a",
}


def test_keys_of_what_ships_are_pinned() -> None:
    found = {
        (recipe, scale): run_key(load_recipe(recipe, scale=scale))
        for recipe in shipped.names("recipe")
        for scale in shipped.names("scale")
    }
    assert found == GOLDEN


def test_all_defaults_give_one_key_whatever_the_name() -> None:
    assert run_key(Recipe(name="a")) == run_key(Recipe(name="b"))


def test_budget_and_execution_are_not_part_of_it() -> None:
    recipe = Recipe(name="a")
    longer = replace(recipe, budget=Budget(steps=7), execution=Execution(devices=2, device_hours_per_rollout=3.0))
    assert run_key(longer) == run_key(recipe)


def test_ways_of_writing_a_number_give_one_key(tmp_path: Path) -> None:
    keys = set()
    for number, text in enumerate(["1e-4", "0.0001", "1.0E-4", ".0001"]):
        file = tmp_path / f"{number}.yaml"
        file.write_text(f"optimizer: {{lr: {text}}}")
        keys.add(run_key(load_recipe(file)))
    assert len(keys) == 1
    assert run_key(Recipe(name="a", loss=Cispo(eps_max=4))) == run_key(Recipe(name="a", loss=Cispo(eps_max=4.0)))


def test_a_stated_default_is_no_difference() -> None:
    assert run_key(Recipe(name="a", loss=Cispo(eps_max=5.0))) == run_key(Recipe(name="a"))
    assert run_key(Recipe(name="a", loss=Dapo())) != run_key(Recipe(name="a"))


def test_the_seed_is_in_the_runs_key_and_not_in_the_variants() -> None:
    one, two = Recipe(name="a", seed=1), Recipe(name="a", seed=2)
    assert run_key(one) != run_key(two)
    assert variant_key(one) == variant_key(two)


def test_every_identifying_leaf_moves_the_key() -> None:
    base = load_recipe("scalerl", scale="tiny")
    changed = {
        "model.width": "32",
        "task.table_seed": "11",
        "reward.wrong": "0",
        "sampling.temperature": "0.9",
        "batch.prompts": "32",
        "loss.eps_max": "4",
        "aggregation": "token",
        "normalization": "none",
        "curriculum.zero_variance": "keep",
        "curriculum.no_positive_resampling": "null",
        "off_policy.k": "4",
        "length.latest": "13",
        "optimizer.lr": "1e-4",
        "evaluation.every": "20",
        "seed": "1",
    }
    keys = [run_key(load_recipe("scalerl", scale="tiny", overrides=[f"{k}={v}"])) for k, v in changed.items()]
    assert len({run_key(base), *keys}) == len(changed) + 1


def folder(path: Path, weights: bytes = b"weights") -> Path:
    (path / "nested").mkdir(parents=True)
    (path / "config.json").write_text("{}")
    (path / "nested" / "model.bin").write_bytes(weights)
    return path


def keyed(path: Path, revision: str = "main") -> str:
    return run_key(Recipe(name="a", model=Pretrained(path=str(path), revision=revision), task=Math(dataset="a/b")))


def test_a_local_model_enters_by_content_wherever_it_lies(tmp_path: Path) -> None:
    one = keyed(folder(tmp_path / "one"))
    assert keyed(folder(tmp_path / "elsewhere" / "two")) == one
    assert keyed(folder(tmp_path / "three"), revision="other") == one
    assert keyed(folder(tmp_path / "four", b"other")) != one
    renamed = folder(tmp_path / "five")
    (renamed / "config.json").rename(renamed / "configuration.json")
    assert keyed(renamed) != one
    noted = folder(tmp_path / "six")
    (noted / ".cache").mkdir()
    (noted / ".cache" / "time").write_text("now")
    assert keyed(noted) == one


def test_a_local_data_file_enters_by_content(tmp_path: Path) -> None:
    keys = []
    for name, text in [("a", "x"), ("b", "x"), ("c", "y")]:
        (tmp_path / name).write_text(text)
        keys.append(run_key(Recipe(name="r", model=Pretrained(path="m/n"), task=Math(dataset=str(tmp_path / name)))))
    assert keys[0] == keys[1] != keys[2]


def test_a_hub_name_enters_by_name_and_revision() -> None:
    keys = {
        run_key(Recipe(name="a", model=Pretrained(path=path, revision=revision), task=Math(dataset="a/b")))
        for path in ("a/b", "a/c")
        for revision in ("main", "v1")
    }
    assert len(keys) == 4


def test_a_folder_that_is_gone_has_no_key(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"model\.path: .*no such file or folder"):
        keyed(tmp_path / "gone")


def test_leaves_are_all_of_them_in_order() -> None:
    found = leaves(Recipe(name="a"))
    assert list(found)[:3] == ["name", "model.type", "model.width"]
    assert list(found)[-1] == "execution.device_hours_per_rollout"
    assert found["loss.eps_max"] == 5.0
    assert "loss.eps_low" not in found


def test_difference_holds_what_the_base_lacks_or_has_otherwise() -> None:
    base = Recipe(name="a")
    other = Recipe(name="b", loss=Dapo(), optimizer=Optimizer(lr=1.0), seed=2)
    assert difference(other, base) == {
        "loss.type": "dapo",
        "loss.eps_low": 0.2,
        "loss.eps_high": 0.26,
        "optimizer.lr": 1.0,
        "seed": 2,
    }
    assert difference(base, base) == {}

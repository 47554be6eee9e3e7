import shlex
from pathlib import Path

import pytest

from rlsweep.errors import RecipeError
from rlsweep.recipe.load import load_recipe
from rlsweep.recipe.resolved import dump
from rlsweep.report.recipes import command, differing, leaves, measured_differently
from rlsweep.store.layout import SweepFolder


def test_leaves_are_those_of_the_dumped_recipe(tmp_path: Path) -> None:
    from rlsweep.recipe.key import leaves as of_recipe

    recipe = load_recipe("scalerl", scale="tiny")
    (tmp_path / "recipe.yaml").write_text(dump(recipe))
    assert leaves(tmp_path / "recipe.yaml") == of_recipe(recipe)
    assert leaves(tmp_path / "none.yaml") == {}


def test_only_what_decides_a_run_differs() -> None:
    ours = {
        "loss.type": "dapo",
        "loss.eps_low": 0.2,
        "budget.steps": 9,
        "seed": 1,
        "name": "a",
        "execution.engine": "vllm",
    }
    base = {
        "loss.type": "cispo",
        "loss.eps_max": 5.0,
        "budget.steps": 5,
        "seed": 0,
        "name": "b",
        "execution.engine": "local",
    }
    assert differing(ours, base) == ["loss.eps_low", "loss.eps_max", "loss.type"]
    assert differing({"a.b": None}, {}) == ["a.b"]


def test_task_evaluation_and_model_are_the_measure_but_precision_and_pace_are_not() -> None:
    paths = [
        "evaluation.every",
        "evaluation.samples",
        "loss.type",
        "model.head_dtype",
        "model.layers",
        "task.table_seed",
    ]
    assert measured_differently(paths) == ("evaluation.samples", "model.layers", "task.table_seed")


def test_the_command_says_the_whole_sweep(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    assert command(folder) == ""
    folder.spec.write_text(
        "recipe: scalerl\nscale: tiny\noverrides: ['optimizer.lr=1e-3']\nvary: ['loss=dapo,cispo']\nzip_: []\n"
        "leave_one_out: true\nseeds: [4]\nname: my study\n"
    )
    assert shlex.split(command(folder)) == [
        "rlsweep", "ablate", "scalerl", "--scale", "tiny", "--set", "optimizer.lr=1e-3", "--vary", "loss=dapo,cispo",
        "--leave-one-out", "--seeds", "4,", "--name", "my study",
    ]  # fmt: skip
    folder.spec.write_text("a: [")
    with pytest.raises(RecipeError):
        command(folder)

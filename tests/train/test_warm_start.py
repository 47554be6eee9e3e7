"""The embedded model: cached by what makes it, the same for all who make it, whole or not there."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rlsweep.recipe.model import Embedded, Pretrained
from rlsweep.recipe.schema import Recipe
from rlsweep.recipe.task import Registers
from rlsweep.train import warm_start
from rlsweep.train.warm_start import model_source


@pytest.fixture()
def quick(small_recipe: Recipe) -> Recipe:
    return replace(small_recipe, model=Embedded(warm_start_steps=2, layers=1))


def test_the_cache_knows_all_that_makes_a_model_and_nothing_else(quick: Recipe, tmp_path: Path) -> None:
    def place(recipe: Recipe) -> str:
        return Path(model_source(recipe, tmp_path)[0]).name

    first = place(quick)
    assert place(quick) == first
    assert place(replace(quick, seed=5, model=replace(quick.model, head_dtype="bfloat16"))) == first
    assert place(replace(quick, task=Registers(prompts=99))) == first
    others = {
        place(replace(quick, model=Embedded(warm_start_steps=3, layers=1))),
        place(replace(quick, model=Embedded(warm_start_steps=2, layers=1, width=32))),
        place(replace(quick, task=Registers(table_seed=11))),
    }
    assert len(others | {first}) == 4
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(others | {first})


def test_made_twice_it_is_the_same(quick: Recipe, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    one, two = (load_file(Path(model_source(quick, tmp_path / n)[0]) / "model.safetensors") for n in "ab")
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
    assert torch.get_num_threads() == threads


def test_made_at_once_by_several_there_is_one(quick: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have trained before either puts its folder in place; the second finds the first's and uses it."""
    together = threading.Barrier(2)
    real = warm_start._warm_start

    def slow(*arguments: Any) -> Any:
        model = real(*arguments)
        together.wait(timeout=60)
        return model

    monkeypatch.setattr(warm_start, "_warm_start", slow)
    found: list[str] = []
    makers = [threading.Thread(target=lambda: found.append(model_source(quick, tmp_path)[0])) for _ in range(2)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert len(found) == 2 and len(set(found)) == 1
    assert [str(p) for p in tmp_path.iterdir()] == found[:1]


def test_a_failed_warm_start_leaves_nothing(quick: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(warm_start, "_warm_start", fail)
    with pytest.raises(MemoryError):
        model_source(quick, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_needs_no_revision_and_a_hub_name_keeps_its_own(small_recipe: Recipe, tmp_path: Path) -> None:
    local = replace(small_recipe, model=Pretrained(path=str(tmp_path)))
    assert model_source(local, tmp_path) == (str(tmp_path), None)
    hub = replace(small_recipe, model=Pretrained(path="some/model", revision="abc"))
    assert model_source(hub, tmp_path) == ("some/model", "abc")


@pytest.mark.parametrize("how", ["flipped", "removed"])
def test_a_damaged_model_is_made_again(
    quick: Recipe, tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody trains from other weights than the recipe's, and nothing is thrown away."""
    weights = Path(model_source(quick, tmp_path)[0]) / "model.safetensors"
    good = weights.read_bytes()
    if how == "removed":
        weights.unlink()
    else:
        weights.write_bytes(good[:-9] + bytes([good[-9] ^ 1]) + good[-8:])
    assert not capsys.readouterr().out
    assert Path(model_source(quick, tmp_path)[0]) / "model.safetensors" == weights
    assert weights.read_bytes() == good
    assert "model.safetensors is" in capsys.readouterr().out
    assert sorted(path.name.partition("-")[0] for path in tmp_path.iterdir()) == ["damaged", "embedded"]

"""What of a repository is fetched, where there is room for it, and what a local folder must hold."""

import json
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest

from rlsweep.errors import RecipeError, RlsweepError
from rlsweep.launch import fetch as subject
from rlsweep.launch.fetch import Staged, fetch, needed
from rlsweep.launch.offline import hub
from rlsweep.model.hub import weight_files
from rlsweep.recipe.model import Pretrained
from rlsweep.recipe.schema import Recipe
from rlsweep.recipe.task import Math
from rlsweep.store.layout import Root

REPOSITORY = {
    ".gitattributes": 1,
    "README.md": 1,
    "config.json": 1,
    "generation_config.json": 1,
    "merges.txt": 1,
    "tokenizer.json": 1,
    "tokenizer.model": 1,
    "chat_template.jinja": 1,
    "additional_chat_templates/rag.jinja": 1,
    "modeling_own.py": 1,
    "model.safetensors": 100,
    "consolidated.safetensors": 100,
    "pytorch_model.bin": 100,
    "original/params.json": 1,
    "onnx/config.json": 1,
}


def test_a_model_is_its_configuration_its_tokenizer_and_one_kind_of_weights() -> None:
    assert needed("model", REPOSITORY) == [
        "additional_chat_templates/rag.jinja",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "merges.txt",
        "tokenizer.json",
        "tokenizer.model",
    ]
    assert weight_files(Path("/nowhere"), REPOSITORY) == ["model.safetensors"]


def test_all_of_a_data_set_is_fetched() -> None:
    assert needed("dataset", {"data/b.parquet": 1, "README.md": 1}) == ["README.md", "data/b.parquet"]


def test_weights_in_several_files_are_those_of_the_index(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "model-2.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    names = ["model.safetensors.index.json", "model-1.safetensors", "model-2.safetensors", "model-3.safetensors"]
    assert weight_files(tmp_path, names) == ["model-1.safetensors", "model-2.safetensors"]
    with pytest.raises(RecipeError, match=r"names model-2\.safetensors, which is not there"):
        weight_files(tmp_path, names[:2])


def test_pickles_serve_where_there_is_nothing_else() -> None:
    assert weight_files(Path("/nowhere"), ["config.json", "pytorch_model.bin"]) == ["pytorch_model.bin"]
    with pytest.raises(
        RecipeError, match=r"/nowhere holds no weights that can be loaded.*there is config\.json, model\.gguf"
    ):
        weight_files(Path("/nowhere"), ["config.json", "model.gguf"])


def test_a_disk_without_room_is_told_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 3_000_000_000))
    cache = hub(tmp_path)
    with pytest.raises(RlsweepError, match=r"model org/m needs 16\.4 GB more, and .* has 3\.0 GB free"):
        subject._check_room(cache, "model", "org/m", "c" * 40, {"a": 16_000_000_000, "b": 400_000_000})
    folder = cache / "models--org--m" / "snapshots" / ("c" * 40)
    folder.mkdir(parents=True)
    (folder / "a").touch()  # there already: only b counts
    subject._check_room(cache, "model", "org/m", "c" * 40, {"a": 16_000_000_000, "b": 400_000_000})


def test_a_pin_is_what_a_recipe_can_be_told() -> None:
    commit = "1" * 40
    moved = Staged("model.path", "org/m", "main", commit, "/f", 1, 1, "fetched")
    assert moved.pin == f'model.revision: "{commit}"'  # without quotes it would be a number
    assert replace(moved, revision=commit).pin is None
    assert replace(moved, revision=None, commit=None).pin is None


def test_a_local_model_needs_nothing_but_is_looked_at(
    tmp_path: Path, small_recipe: Recipe, model_folder: str, models: Path
) -> None:
    root = Root(tmp_path / "root")
    recipe = replace(small_recipe, model=Pretrained(path=model_folder))
    [found] = fetch(recipe, root, say=lambda _: None)
    assert (found.field, found.commit, found.how, found.folder) == ("model.path", None, "local", model_folder)
    assert found.bytes > 100_000
    bare = tmp_path / "bare"
    shutil.copytree(model_folder, bare)
    (bare / "tokenizer.json").unlink()
    with pytest.raises(RecipeError, match=r"model\.path: .*bare holds no model: tokenizer\.json or .* is missing"):
        fetch(replace(recipe, model=Pretrained(path=str(bare))), root, say=lambda _: None)


def test_local_weights_that_are_missing_are_found_by_loading(
    tmp_path: Path, small_recipe: Recipe, model_folder: str
) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(model_folder, bare)
    (bare / "model.safetensors").unlink()
    recipe = replace(small_recipe, model=Pretrained(path=str(bare)))
    with pytest.raises(RlsweepError, match=r"can't be loaded: model\.path: .*bare holds no weights"):
        fetch(recipe, Root(tmp_path / "root"), say=lambda _: None)


def test_a_local_data_file_that_is_missing_is_told(tmp_path: Path, small_recipe: Recipe, model_folder: str) -> None:
    recipe = replace(
        small_recipe, model=Pretrained(path=model_folder), task=Math(dataset=str(tmp_path / "train.jsonl"))
    )
    with pytest.raises(RecipeError, match=r"task\.dataset: .*train\.jsonl: no such file or folder"):
        fetch(recipe, Root(tmp_path / "root"), say=lambda _: None)


def test_the_embedded_model_is_made_once(tmp_path: Path, small_recipe: Recipe, model_folder: str, models: Path) -> None:
    root = Root(tmp_path / "root")
    root.path.mkdir()
    root.models.symlink_to(models)
    before = (Path(model_folder) / "model.safetensors").stat().st_mtime_ns
    [found] = fetch(small_recipe, root, say=lambda _: None)
    assert Path(found.folder).resolve() == Path(model_folder).resolve()
    assert (Path(model_folder) / "model.safetensors").stat().st_mtime_ns == before
    assert found.name == "embedded" and found.pin is None

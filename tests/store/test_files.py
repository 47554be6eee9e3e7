import errno
import json
import os
from pathlib import Path

import pytest

from rlsweep.errors import RlsweepError
from rlsweep.store import files


def test_a_file_is_replaced_whole_and_nothing_is_left_beside(tmp_path: Path) -> None:
    path = tmp_path / "réglages du soir" / "outcome.json"
    path.parent.mkdir()
    files.write_json(path, {"état": "été", "n": 1})
    files.write_json(path, {"n": 2})
    assert files.read_json(path) == {"n": 2}
    assert os.listdir(path.parent) == ["outcome.json"]


@pytest.mark.parametrize("broken", ["fsync", "rename"])
def test_a_crash_while_writing_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    path = tmp_path / "a.json"
    files.write_json(path, {"old": True})

    def fail(*_: object) -> None:
        raise OSError("disk gone")

    if broken == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    else:
        monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk gone"):
        files.write_json(path, {"new": True})
    monkeypatch.undo()
    assert files.read_json(path) == {"old": True}
    assert os.listdir(tmp_path) == ["a.json"]


def test_what_json_cannot_hold_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    files.write_json(path, {"old": True})
    with pytest.raises(TypeError):
        files.write_json(path, {"new": object()})
    assert files.read_json(path) == {"old": True}


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    files.write_json(path, {"a": [float("nan"), float("inf"), 1.5], "b": {"c": (float("-inf"), 2)}})
    text = path.read_text()
    assert "NaN" not in text and "Infinity" not in text
    assert json.loads(text) == {"a": [None, None, 1.5], "b": {"c": [None, 2]}}


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("{")
    with pytest.raises(RlsweepError, match=r"a\.json: not valid JSON"):
        files.read_json(path)
    with pytest.raises(FileNotFoundError):
        files.read_json(tmp_path / "none.json")


def test_a_full_disk_names_the_file_that_was_to_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`write` and `fsync` name none, a rename would name the file beside."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        files.write_text(tmp_path / "a.json", "{}")
    assert caught.value.errno == errno.ENOSPC and caught.value.filename == str(tmp_path / "a.json")
    assert files.describe(caught.value) == f"{tmp_path}/a.json: no space left on device"
    assert os.listdir(tmp_path) == []
    with pytest.raises(FileNotFoundError) as missing:
        files.write_text(tmp_path / "no" / "a.json", "{}")
    assert files.disk_fault(missing.value) is None


def test_a_full_disk_is_told_whatever_a_library_made_of_it(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    with pytest.raises((RuntimeError, OSError)) as torchs, open("/dev/full", "wb") as file:
        torch.save({"a": torch.zeros(100_000)}, file)
    assert files.disk_fault(torchs.value) == "no space left on device"
    with pytest.raises(Exception, match="os error 2") as rusts:
        save_file({"a": torch.zeros(4)}, tmp_path / "no" / "a.safetensors")
    assert files.disk_fault(rusts.value) is None
    full = type(rusts.value)(str(rusts.value).replace("(os error 2)", "(os error 28)"))
    assert files.disk_fault(full) == "no space left on device"
    assert files.disk_fault(ValueError("no space in this name")) is None

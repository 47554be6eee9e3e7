import os
from pathlib import Path

import pytest

from rlsweep.errors import UsageError
from rlsweep.store.layout import Root, find_root


def test_the_root_is_the_option_then_the_variable_then_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RLSWEEP_ROOT", raising=False)
    assert find_root(None).path == tmp_path / "rlsweep-out"
    monkeypatch.setenv("RLSWEEP_ROOT", "")
    assert find_root(None).path == tmp_path / "rlsweep-out"
    monkeypatch.setenv("RLSWEEP_ROOT", "from variable")
    assert find_root(None).path == tmp_path / "from variable"
    assert find_root("élan").path == tmp_path / "élan"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_root("~/x").path == tmp_path / "x"
    assert os.listdir(tmp_path) == []


def test_a_root_that_no_library_could_open_is_refused() -> None:
    with pytest.raises(UsageError, match="its path is not UTF-8"):
        find_root(os.fsdecode(b"caf\xe9"))


def test_what_a_command_needs_to_mean_a_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLSWEEP_ROOT", str(tmp_path / "a"))
    assert Root(tmp_path / "a").option == ""
    assert Root(Path("/l'été b")).option == """ --root '/l'"'"'été b'"""


def test_the_layout_is_the_documented_one(tmp_path: Path) -> None:
    root = Root(tmp_path)
    run, sweep = root.run("0123456789ab"), root.sweep("scalerl-tiny-loss")
    assert run.key == "0123456789ab" and sweep.name == "scalerl-tiny-loss"
    paths = [run.recipe, run.provenance, run.journal, run.attempts, run.checkpoints, run.outcome, run.samples]
    paths += [sweep.spec, sweep.ledger, sweep.reports, root.models]
    assert [str(path.relative_to(tmp_path)) for path in paths] == [
        "runs/0123456789ab/recipe.yaml",
        "runs/0123456789ab/provenance.json",
        "runs/0123456789ab/metrics.jsonl",
        "runs/0123456789ab/attempts",
        "runs/0123456789ab/checkpoints",
        "runs/0123456789ab/outcome.json",
        "runs/0123456789ab/samples",
        "sweeps/scalerl-tiny-loss/sweep.yaml",
        "sweeps/scalerl-tiny-loss/ledger.jsonl",
        "sweeps/scalerl-tiny-loss/reports",
        "models",
    ]


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a\nb", "a\0b", "x" * 201, ".hidden"])
def test_a_sweep_cannot_leave_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="can't name a sweep"):
        Root(tmp_path).sweep(name)


def test_sweeps_are_listed_with_the_newest_at_the_end(tmp_path: Path) -> None:
    root = Root(tmp_path)
    assert root.all_sweeps() == []
    for age, name in enumerate(["b", "c", "a b"]):
        ledger = root.sweep(name).ledger
        ledger.parent.mkdir(parents=True)
        ledger.write_text("")
        os.utime(ledger, (1000 - age, 1000 - age))
    (root.sweeps / "no ledger").mkdir()
    assert [sweep.name for sweep in root.all_sweeps()] == ["a b", "c", "b"]

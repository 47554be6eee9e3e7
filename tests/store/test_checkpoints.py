import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlsweep.store import attempts, checkpoints
from rlsweep.store.attempts import Attempt, Superseded
from rlsweep.store.layout import Root, RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return Root(tmp_path / "dossier à moi").run("0123456789ab")


@pytest.fixture
def first(run: RunFolder) -> Attempt:
    return attempts.claim(run)


def save(run: RunFolder, attempt: Attempt, step: int, mark: str = "") -> None:
    with checkpoints.writing(run, attempt, step) as folder:
        (folder / "model").mkdir()
        (folder / "model" / "weights").write_text(mark)
        (folder / "resume").mkdir()
        (folder / "resume" / "moments").write_text(mark)
        (folder / "state.json").write_text(json.dumps({"step": step, "journal_length": 0}))


def test_the_newest_whole_checkpoint_is_found(run: RunFolder, first: Attempt) -> None:
    assert checkpoints.newest(run) is None
    for step in (50, 100, 1_000_000):
        save(run, first, step)
    newest = checkpoints.newest(run)
    assert newest == checkpoints.Checkpoint(run.checkpoints / "step-1000000", 1_000_000)
    assert sorted(os.listdir(run.checkpoints)) == ["step-000050", "step-000100", "step-1000000"]


def test_an_error_while_writing_changes_nothing(run: RunFolder, first: Attempt) -> None:
    save(run, first, 50)
    with pytest.raises(KeyboardInterrupt), checkpoints.writing(run, first, 100) as folder:
        (folder / "weights").write_text("half")
        raise KeyboardInterrupt
    assert os.listdir(run.checkpoints) == ["step-000050"]


def test_half_written_folders_are_ignored_and_cleaned(run: RunFolder, first: Attempt) -> None:
    save(run, first, 50)
    for left in (".step-000100.1-abcd", ".step-000020.old-1234"):
        (run.checkpoints / left / "model").mkdir(parents=True)
        (run.checkpoints / left / "model" / "weights").write_text("half")
    newest = checkpoints.newest(run)
    assert newest is not None and newest.step == 50
    second = attempts.claim(run)
    checkpoints.take_over(run, second)
    save(run, second, 100)
    assert sorted(os.listdir(run.checkpoints)) == ["step-000050", "step-000100"]


def test_an_attempt_that_lost_the_run_does_not_rename(run: RunFolder, first: Attempt) -> None:
    with pytest.raises(Superseded), checkpoints.writing(run, first, 50) as folder:
        (folder / "weights").write_text("late")
        attempts.claim(run)
    assert os.listdir(run.checkpoints) == []
    with pytest.raises(Superseded), checkpoints.writing(run, first, 50):
        pass


def test_a_late_attempt_whose_folder_was_cleaned_learns_why(run: RunFolder, first: Attempt) -> None:
    with pytest.raises(Superseded), checkpoints.writing(run, first, 50):
        second = attempts.claim(run)
        checkpoints.take_over(run, second)
        save(run, second, 10)
    assert os.listdir(run.checkpoints) == ["step-000010"]


@pytest.mark.parametrize("step", [50, 70])
def test_an_attempt_that_slept_just_before_the_rename_changes_nothing(
    run: RunFolder, first: Attempt, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """It had just seen that it owns the run; its successor has written the same step meanwhile, or none."""
    rename = Path.rename

    def slept(path: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "rename", rename)
        second = attempts.claim(run)
        checkpoints.take_over(run, second)
        save(run, second, 70, "new")
        return rename(path, target)

    with pytest.raises(Superseded), checkpoints.writing(run, first, step) as folder:
        (folder / "resume").mkdir()
        monkeypatch.setattr(Path, "rename", slept)
    assert os.listdir(run.checkpoints) == ["step-000070"]
    assert (run.checkpoints / "step-000070" / "model" / "weights").read_text() == "new"


def test_the_same_step_again_replaces_the_checkpoint(run: RunFolder, first: Attempt) -> None:
    save(run, first, 50, "old")
    save(run, first, 50, "new")
    assert os.listdir(run.checkpoints) == ["step-000050"]
    assert (run.checkpoints / "step-000050" / "model" / "weights").read_text() == "new"


def kept(run: RunFolder) -> list[tuple[int, bool]]:
    return [(each.step, each.resumable) for each in checkpoints.every(run)]


def test_pruning_keeps_the_newest(run: RunFolder, first: Attempt) -> None:
    checkpoints.prune(run, keep=2)
    for step in (10, 9, 100, 20):
        save(run, first, step)
    for _ in range(2):
        checkpoints.prune(run, keep=2)
        assert kept(run) == [(20, True), (100, True)]


def test_pruning_keeps_the_weights_of_milestones(run: RunFolder, first: Attempt) -> None:
    for step in (10, 20, 25, 30):
        save(run, first, step, str(step))
        checkpoints.prune(run, keep=2, keep_every=10)
    assert kept(run) == [(10, False), (20, False), (25, True), (30, True)]
    assert (run.checkpoints / "step-000010" / "model" / "weights").read_text() == "10"
    checkpoints.prune(run, keep=1, keep_every=10)
    assert kept(run) == [(10, False), (20, False), (30, True)]
    checkpoints.prune(run, keep=1)
    assert kept(run) == [(30, True)]


def test_weights_alone_are_nothing_to_go_on_from(run: RunFolder, first: Attempt) -> None:
    for step in (10, 20):
        save(run, first, step)
    checkpoints.slim(checkpoints.every(run)[-1])
    newest, back = checkpoints.newest(run), checkpoints.resumable(run)
    assert newest is not None and back is not None and (newest.step, back.step) == (20, 10)
    assert checkpoints.damage(newest) is None
    save(run, first, 15)
    checkpoints.prune(run, keep=2)
    assert kept(run) == [(10, True), (15, True), (20, False)]
    checkpoints.slim(checkpoints.every(run)[1])
    checkpoints.slim(checkpoints.every(run)[0])
    assert checkpoints.resumable(run) is None


def test_a_process_killed_while_letting_go_leaves_no_half_a_state(
    run: RunFolder, first: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(run, first, 10)

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(checkpoints, "shutil", SimpleNamespace(rmtree=killed))
        checkpoints.slim(checkpoints.every(run)[0])
    assert checkpoints.resumable(run) is None
    assert [path.name.startswith(".resume.old-") for path in checkpoints.leftovers(run)] == [True]
    checkpoints.take_over(run, first)
    assert checkpoints.leftovers(run) == []
    assert checkpoints.damage(checkpoints.every(run)[0]) is None


@pytest.mark.parametrize("name", ["model/weights", "resume/moments", "state.json"])
def test_damage_is_seen(run: RunFolder, first: Attempt, name: str) -> None:
    save(run, first, 10, "whole")
    checkpoint = checkpoints.every(run)[0]
    assert checkpoints.damage(checkpoint) is None
    before = (checkpoint.path / name).read_bytes()
    for content in (b"", before[:-1], before + b"x", bytes([before[0] ^ 1]) + before[1:]):
        (checkpoint.path / name).write_bytes(content)
        assert checkpoints.damage(checkpoint) == f"{name} is not what was written"
    (checkpoint.path / name).unlink()
    assert checkpoints.damage(checkpoint) == f"{name} is missing"
    aside = checkpoints.set_aside(checkpoint)
    assert kept(run) == [] and checkpoints.damaged(run) == [aside]


@pytest.mark.parametrize("content", [b"", b"[1, 2]", b'{"state.json": 3}', b"{"])
def test_a_damaged_manifest_is_damage(run: RunFolder, first: Attempt, content: bytes) -> None:
    save(run, first, 10)
    (run.checkpoints / "step-000010" / "manifest.json").write_bytes(content)
    assert checkpoints.damage(checkpoints.every(run)[0]) == "manifest.json can't be read"

import json
import os
from pathlib import Path

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
        save(run, attempts.claim(run), 10)
    assert os.listdir(run.checkpoints) == ["step-000010"]


def test_the_same_step_again_replaces_the_checkpoint(run: RunFolder, first: Attempt) -> None:
    save(run, first, 50, "old")
    save(run, first, 50, "new")
    assert os.listdir(run.checkpoints) == ["step-000050"]
    assert (run.checkpoints / "step-000050" / "model" / "weights").read_text() == "new"


def test_pruning_keeps_the_newest(run: RunFolder, first: Attempt) -> None:
    checkpoints.prune(run)
    for step in (10, 9, 100, 20):
        save(run, first, step)
    checkpoints.prune(run, keep=2)
    assert sorted(os.listdir(run.checkpoints)) == ["step-000020", "step-000100"]
    checkpoints.prune(run, keep=2)
    assert len(checkpoints.every(run)) == 2

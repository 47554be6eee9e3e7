"""The index of a run's checkpoints: folders `checkpoints/step-000100`, whole as soon as they bear that name."""

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rlsweep.store.attempts import Attempt
from rlsweep.store.files import sync_folder, sync_tree
from rlsweep.store.layout import RunFolder

_NAME = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint. Its `state.json` holds at least `step` and `journal_length` (bytes)."""

    path: Path
    step: int


def every(run: RunFolder) -> list[Checkpoint]:
    """All whole checkpoints, oldest first."""
    found = []
    for name in _names(run):
        match = _NAME.fullmatch(name)
        if match:
            found.append(Checkpoint(run.checkpoints / name, int(match[1])))
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def newest(run: RunFolder) -> Checkpoint | None:
    """The whole checkpoint with the highest step, or None."""
    return max(every(run), key=lambda checkpoint: checkpoint.step, default=None)


@contextmanager
def writing(run: RunFolder, attempt: Attempt, step: int) -> Iterator[Path]:
    """Yield an empty folder to fill; at the end it is synced and becomes the checkpoint of `step`.

    On any error the folder is removed and nothing has changed. Superseded where a newer attempt owns the run.
    """
    attempt.require_owner()
    run.checkpoints.mkdir(exist_ok=True)
    for name in _names(run):
        if name.startswith("."):  # left by a process that was killed: the owner is the only writer
            shutil.rmtree(run.checkpoints / name)
    target = run.checkpoints / f"step-{step:06d}"
    beside = run.checkpoints / f".{target.name}.{attempt.number}-{secrets.token_hex(4)}"
    beside.mkdir()
    try:
        yield beside
        attempt.require_owner()
        sync_tree(beside)
        attempt.require_owner()
        _remove(target)
        beside.rename(target)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    sync_folder(run.checkpoints)


def prune(run: RunFolder, keep: int = 2) -> None:
    """Remove all whole checkpoints but the newest `keep`."""
    assert keep >= 1
    for checkpoint in every(run)[:-keep]:
        _remove(checkpoint.path)


def _remove(path: Path) -> None:
    """Take the name away before the content, so that no half-removed folder passes for a whole checkpoint."""
    gone = path.with_name(f".{path.name}.old-{secrets.token_hex(4)}")
    try:
        path.rename(gone)
    except FileNotFoundError:
        return
    shutil.rmtree(gone)


def _names(run: RunFolder) -> list[str]:
    try:
        return os.listdir(run.checkpoints)
    except FileNotFoundError:
        return []

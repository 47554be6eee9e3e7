"""The index of a run's checkpoints: folders `checkpoints/step-000100`, whole as soon as they bear that name.

`model/` holds the weights, `resume/` what else a run needs to go on, `state.json` at least `step` and `journal_length`
(bytes), `manifest.json` size and SHA-256 of each file. Without `resume/` a checkpoint is only weights.
"""

import errno
import math
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rlsweep.store import manifest
from rlsweep.store.attempts import Attempt
from rlsweep.store.files import half_written, sync_folder, sync_tree
from rlsweep.store.layout import RunFolder

_NAME = re.compile(r"step-(\d{6,})")
_DAMAGED = "damaged-"


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint."""

    path: Path
    step: int

    @property
    def model(self) -> Path:
        """Weights and tokenizer, an ordinary Hugging Face folder."""
        return self.path / "model"

    @property
    def resume(self) -> Path:
        """What a run needs besides the weights to go on exactly."""
        return self.path / "resume"

    @property
    def resumable(self) -> bool:
        """Whether a run can go on from here."""
        return self.resume.is_dir()


def every(run: RunFolder) -> list[Checkpoint]:
    """All whole checkpoints, oldest first."""
    found = []
    for name in _names(run):
        match = _NAME.fullmatch(name)
        if match and (run.checkpoints / name).is_dir():
            found.append(Checkpoint(run.checkpoints / name, int(match[1])))
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def newest(run: RunFolder) -> Checkpoint | None:
    """The whole checkpoint with the highest step, or None."""
    return max(every(run), key=lambda checkpoint: checkpoint.step, default=None)


def resumable(run: RunFolder, before: float = math.inf) -> Checkpoint | None:
    """The newest checkpoint, of those `before` a step, that a run can go on from, or None."""
    found = (each for each in every(run) if each.resumable and each.step < before)
    return max(found, key=lambda each: each.step, default=None)


@contextmanager
def writing(run: RunFolder, attempt: Attempt, step: int) -> Iterator[Path]:
    """Yield an empty folder to fill; at the end it is synced and becomes the checkpoint of `step`.

    On any error the folder is removed and nothing has changed. Superseded where a newer attempt owns the run.
    """
    attempt.require_owner()
    run.checkpoints.mkdir(exist_ok=True)
    target = run.checkpoints / f"step-{step:06d}"
    beside = run.checkpoints / f".{target.name}.{attempt.number}-{secrets.token_hex(4)}"
    beside.mkdir()
    try:
        yield beside
        attempt.require_owner()
        manifest.write(beside)
        sync_tree(beside)
        attempt.require_owner()
        _put(beside, target, attempt)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    sync_folder(run.checkpoints)


def take_over(run: RunFolder, attempt: Attempt) -> None:
    """Remove what earlier attempts left half-written. One of them that sleeps and wakes up can't put it in place then.

    To be called by a new owner before it looks for a checkpoint.
    """
    attempt.require_owner()
    for left in leftovers(run):
        shutil.rmtree(left, ignore_errors=True)
    for path in (run.journal, run.outcome):
        for half in half_written(path):
            half.unlink(missing_ok=True)


def damage(checkpoint: Checkpoint) -> str | None:
    """What is wrong with the files of a checkpoint, in a few words; None where all are as they were written."""
    return manifest.damage(checkpoint.path, None if checkpoint.resumable else checkpoint.resume.name)


def set_aside(checkpoint: Checkpoint) -> Path:
    """Rename a damaged checkpoint, so that it is no longer one and nothing of it is lost; its new path."""
    aside = checkpoint.path.with_name(f"{_DAMAGED}{checkpoint.path.name}-{secrets.token_hex(4)}")
    checkpoint.path.rename(aside)
    sync_folder(aside.parent)
    return aside


def prune(run: RunFolder, keep: int, keep_every: int | None = None) -> None:
    """Keep the newest `keep` checkpoints whole, of the multiples of `keep_every` before them the weights, no others."""
    assert keep >= 1
    whole = [checkpoint for checkpoint in every(run) if checkpoint.resumable]
    if not whole:
        return
    first = whole[-keep:][0]
    for checkpoint in every(run):
        if checkpoint.step >= first.step:
            continue
        if keep_every and checkpoint.step % keep_every == 0:
            slim(checkpoint)
        else:
            remove(checkpoint.path)


def slim(checkpoint: Checkpoint) -> None:
    """Keep the weights alone: a run can no longer go on from here."""
    remove(checkpoint.resume)


def leftovers(run: RunFolder) -> list[Path]:
    """Half-written and half-removed checkpoints. Those of a run at work may be being written."""
    inside = [path for each in every(run) for path in each.path.iterdir() if path.name.startswith(".")]
    return [run.checkpoints / name for name in _names(run) if name.startswith(".")] + inside


def damaged(run: RunFolder) -> list[Path]:
    """Checkpoints that were set aside."""
    return [run.checkpoints / name for name in _names(run) if name.startswith(_DAMAGED)]


def _put(beside: Path, target: Path, attempt: Attempt) -> None:
    """Rename, in one step wherever the name is free: an attempt that was superseded meanwhile has lost `beside`."""
    try:
        beside.rename(target)
    except OSError as error:
        attempt.require_owner()
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        remove(target)
        beside.rename(target)


def remove(path: Path) -> None:
    """Take the name away before the content, so that nothing half-removed passes for whole."""
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

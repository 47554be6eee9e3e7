"""One at a time: a folder belongs to the process it names, and is taken over once that process is dead."""

import errno
import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlsweep.errors import RlsweepError
from rlsweep.store.attempts import identity, is_process, read_identity
from rlsweep.store.files import naming, write_json

_STALE_S = 3600.0
"""A holder on another host can't be asked whether it lives; after this long without a word it is taken for dead."""


@contextmanager
def claimed(path: Path) -> Iterator["Claim | None"]:
    """The claim on a folder of that name, None where another process has it. Given up at the end."""
    mine = Claim.take(path)
    try:
        yield mine
    finally:
        if mine is not None:
            mine.release()


def holder(path: Path) -> dict[str, Any] | None:
    """Who has a claim, as told by `attempts.identity`; None where nobody has it."""
    try:
        return _read(path)
    except FileNotFoundError:
        return None


def is_held(path: Path) -> bool:
    """Whether somebody has a claim, and is not known or taken to be dead."""
    try:
        return _lives(_read(path), path, time.time())
    except FileNotFoundError:
        return False


class Claim:
    """The claim as its holder sees it."""

    def __init__(self, path: Path, token: str):
        self._path = path
        self._token = token

    @classmethod
    def take(cls, path: Path) -> "Claim | None":
        """The folder is filled beside and renamed, so that a claim never stands without its holder's name."""
        token = secrets.token_hex(8)
        beside = path.with_name(f".{path.name}.{token}")
        with naming(path):
            beside.mkdir()
            try:
                write_json(beside / "holder.json", {**identity(os.getpid()), "token": token})
                now = beside.stat().st_mtime  # by the clock of the file system, which dates the other claim too
                if _rename(beside, path) or (_clear(path, now) and _rename(beside, path)):
                    return cls(path, token)
            finally:
                shutil.rmtree(beside, ignore_errors=True)
        return None

    def refresh(self) -> None:
        """Say that the holder is at work. RlsweepError where a process on another host took it for dead."""
        if _token(self._path) != self._token:
            raise RlsweepError(f"{self._path}: another process took over here and does the rest")
        os.utime(self._path / "holder.json")

    def release(self) -> None:
        """Give the claim up, unless somebody has taken it over."""
        gone = self._path.with_name(f".{self._path.name}.{self._token}.done")
        if _token(self._path) == self._token and _rename(self._path, gone):
            shutil.rmtree(gone)


def _clear(path: Path, now: float) -> bool:
    """Take a dead holder's claim away. False where the holder may live, or somebody was quicker."""
    try:
        found = _read(path)
        if _lives(found, path, now):
            return False
    except FileNotFoundError:
        return True
    gone = path.with_name(f".{path.name}.{secrets.token_hex(8)}.stale")
    if not _rename(path, gone):
        return True
    if _token(gone) != str(found.get("token")):  # between our look and our rename another process had taken it over
        _rename(gone, path)
        return False
    shutil.rmtree(gone)
    return True


def _lives(found: dict[str, Any], path: Path, now: float) -> bool:
    """Whether a holder lives, as far as one can tell here. FileNotFoundError where it is gone."""
    age = now - (path / "holder.json").stat().st_mtime
    return bool(is_process(found)) if found["host"] == socket.gethostname() else age < _STALE_S


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_identity(path / "holder.json")
    except RlsweepError as error:
        raise RlsweepError(f"{error}; if nobody is at work there, remove {path}") from error


def _token(path: Path) -> str | None:
    found = holder(path)
    return None if found is None else str(found.get("token"))


def _rename(source: Path, target: Path) -> bool:
    """Whether the folder could be renamed: not where it is gone or where the target is a folder that isn't empty."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY):
            raise
        return False
    return True

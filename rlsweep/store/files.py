"""Whole files: written beside, synced, renamed, so that a reader sees the old content or the new, never half of it."""

import errno
import json
import math
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlsweep.errors import RlsweepError

_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.ESTALE)
_RUST = re.compile(r"\(os error (\d+)\)")  # how safetensors and tokenizers tell an error number


Check = Callable[[], None]
"""Raises where the writer may not write any more."""


def write_bytes(path: Path, data: bytes, check: Check = lambda: None) -> None:
    """Replace `path` by `data`; on any error the old file stands as it was.

    `check` is called as late as can be. Whoever takes the file over removes what is half-written, so that a writer that
    falls asleep even after its check has nothing to rename when it wakes up.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    with naming(path):
        try:
            with open(beside, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            check()
            beside.replace(path)
        except FileNotFoundError:
            check()
            raise
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def half_written(path: Path) -> list[Path]:
    """What writers of `path` that were killed, or are asleep, have left beside it."""
    return list(path.parent.glob(f".{path.name}.*.tmp"))


def write_text(path: Path, text: str, check: Check = lambda: None) -> None:
    """Replace `path` by `text` in UTF-8."""
    write_bytes(path, text.encode(), check)


def write_json(path: Path, obj: object, check: Check = lambda: None) -> None:
    """Replace `path` by `obj` as JSON."""
    write_text(path, encode(obj, indent=2) + "\n", check)


def read_json(path: Path) -> Any:
    """Content of a JSON file. FileNotFoundError where there is none, RlsweepError where it isn't JSON or unreadable."""
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise RlsweepError(f"{path}: not valid JSON ({error})") from error
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RlsweepError(describe(error)) from error


def describe(error: OSError | RlsweepError) -> str:
    """What a person should read of an error: which file, and what is wrong with it."""
    if isinstance(error, OSError) and error.strerror:
        what = error.strerror.lower()
        return what if error.filename is None else f"{error.filename}: {what}"
    return str(error)


def encode(obj: object, *, indent: int | None = None) -> str:
    """`obj` as JSON, keys in their order. Numbers that are not finite become null: JSON has none."""
    return json.dumps(_finite(obj), ensure_ascii=False, allow_nan=False, indent=indent)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let errors of the disk name the file that a person knows: a write names none, a rename the file beside."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error


def disk_fault(error: BaseException) -> str | None:
    """What the disk refused (it is full, read-only, broken), in words, whatever a library made of it; else None."""
    below: BaseException | None = error
    while below is not None:
        if isinstance(below, OSError) and below.errno in _OF_THE_DISK:
            return describe(below)
        told = _RUST.search(str(below))
        if told and int(told[1]) in _OF_THE_DISK:
            return os.strerror(int(told[1])).lower()
        below = below.__cause__ or below.__context__
    return None


def sync_folder(path: Path) -> None:
    """Make renames and new names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems can't sync a folder: there a rename is as durable as the server makes it.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Make a folder's files and all folders in it durable."""
    for path, _, names in os.walk(folder):
        for name in names:
            descriptor = os.open(Path(path) / name, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_folder(Path(path))


def _finite(obj: object) -> object:
    if isinstance(obj, float):
        return obj if math.isfinite(obj) else None
    if isinstance(obj, dict):
        return {key: _finite(value) for key, value in obj.items()}
    if isinstance(obj, list | tuple):
        return [_finite(value) for value in obj]
    return obj

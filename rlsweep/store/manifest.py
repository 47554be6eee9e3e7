"""A folder's manifest: size and SHA-256 of each of its files, so that damage is seen before anything is read."""

import hashlib
import os
from pathlib import Path

from rlsweep.errors import RlsweepError
from rlsweep.store.files import read_json, write_json

NAME = "manifest.json"


def write(folder: Path) -> None:
    """Note all files of a folder in its manifest.json."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    write_json(folder / NAME, {name: _digest(folder / name) for name in names})


def damage(folder: Path, let_go: str | None = None) -> str | None:
    """What is wrong with the files of a folder, in a few words; None where all are as they were written.

    Those of the folder `let_go` in it were removed on purpose.
    """
    try:
        wanted = {name: tuple(digest) for name, digest in read_json(folder / NAME).items()}
    except FileNotFoundError:
        return f"{NAME} is missing"
    except (RlsweepError, AttributeError, TypeError):
        return f"{NAME} can't be read"
    for name, digest in wanted.items():
        if Path(name).parts[0] == let_go:
            continue
        try:
            found = _digest(folder / name)
        except FileNotFoundError:
            return f"{name} is missing"
        if found != digest:
            return f"{name} is not what was written"
    return None


def _digest(path: Path) -> tuple[int, str]:
    """Bytes of a file, and their SHA-256."""
    with open(path, "rb") as file:
        return os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()

"""Files of rows: one JSON object a line, appended by one writer. A line torn by a crash can only be the last."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rlsweep.errors import RlsweepError
from rlsweep.store.files import describe, encode

Row = dict[str, Any]

_TAIL = 32 * 1024
"""Bytes read first from the end of a file: several rows, with an evaluation among them where those are frequent."""


def read_rows(path: Path) -> list[Row]:
    """All rows of a file, none where there is no file. A torn last line is ignored; any other is an RlsweepError.

    A metric that was not finite when it was written stands as null and is read as nan.
    """
    lines = read_bytes(path).split(b"\n")
    rows: list[Row] = []
    last = max((number for number, line in enumerate(lines) if line), default=-1)
    for number, line in enumerate(lines[:-1]):  # what follows the last newline is torn
        if not line:
            continue
        row = parse(line)
        if row is None:
            if number == last:
                break
            raise RlsweepError(f"{path}:{number + 1}: not a whole row; the file is damaged")
        rows.append(row)
    return rows


def newest_row(path: Path, kind: str) -> Row | None:
    """The last whole row of a kind, found from the end without reading or parsing the rows before it."""
    return newest_rows(path, (kind,)).get(kind)


def newest_rows(path: Path, kinds: Sequence[str]) -> dict[str, Row]:
    """The last whole row of each kind that there is, found like `newest_row`. RlsweepError where it can't be read."""
    found: dict[str, Row] = {}
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            read = _TAIL
            while True:
                file.seek(max(0, size - read))
                _search(file.read(), kinds, found, whole=read >= size)
                if len(found) == len(kinds) or read >= size:
                    return found
                read *= 16
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise RlsweepError(describe(error)) from error


def _search(data: bytes, kinds: Sequence[str], found: dict[str, Row], whole: bool) -> None:
    """Add what is missing from the end of a file; where that isn't the `whole` file its first line has no head."""
    marks = {kind: f'"{kind}"'.encode() for kind in kinds if kind not in found}
    end = data.rfind(b"\n")
    while end > 0 and marks:
        start = data.rfind(b"\n", 0, end) + 1
        if start == 0 and not whole:
            return
        line = data[start:end]
        if any(mark in line for mark in marks.values()):
            row = parse(line)
            kind = row.get("kind") if row is not None else None
            if row is not None and kind in marks:
                found[kind] = row
                del marks[kind]
        end = start - 1


def whole_rows(data: bytes) -> Iterator[bytes]:
    """The lines, newline included, that hold a whole row."""
    for line in data.splitlines(keepends=True):
        if line.endswith(b"\n") and parse(line) is not None:
            yield line


def parse(line: bytes) -> Row | None:
    """One row, or None where the line is not a whole JSON object, or a journal's row without step or metrics.

    A metric that is no number makes it none either.
    """
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    metrics = row.get("metrics")
    if row.get("kind") in ("step", "evaluation") and not (
        isinstance(row.get("step"), int) and isinstance(metrics, dict) and isinstance(row.get("time"), int | float)
    ):
        return None
    if isinstance(metrics, dict):
        row["metrics"] = {name: float("nan") if value is None else value for name, value in metrics.items()}
        if not all(isinstance(value, int | float) for value in row["metrics"].values()):
            return None
    return row


def to_line(row: Row) -> bytes:
    """One row as it stands in the file."""
    return encode(row).encode() + b"\n"


def open_for_append(path: Path) -> int:
    """Descriptor at the end of a file, made if need be, after a torn last line has been cut off."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    size = os.fstat(descriptor).st_size
    if size:
        data = read_bytes(path)
        whole = data.rfind(b"\n") + 1
        last = data[data.rfind(b"\n", 0, whole - 1) + 1 : whole] if whole else b""
        if last and parse(last) is None:
            whole -= len(last)
        if whole < size:
            os.ftruncate(descriptor, whole)
    return descriptor


def append_bytes(descriptor: int, data: bytes) -> None:
    """Append whole lines. Where the disk is full, what was written of them is cut off again, then the error raised."""
    size = os.fstat(descriptor).st_size
    written = 0
    try:
        while written < len(data):
            written += os.write(descriptor, data[written:])
    except OSError:
        os.ftruncate(descriptor, size)
        raise


def read_bytes(path: Path) -> bytes:
    """Content of a file, empty where there is none. RlsweepError where it can't be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise RlsweepError(describe(error)) from error

"""The journal: a run's metrics, one writer, append only. Resuming takes rows back, so that each step stands once."""

import os
from types import TracebackType
from typing import Self

from rlsweep.errors import RlsweepError
from rlsweep.store import attempts
from rlsweep.store.attempts import Attempt
from rlsweep.store.files import naming, write_bytes
from rlsweep.store.layout import RunFolder
from rlsweep.store.metrics import METRICS
from rlsweep.store.rows import (
    Row,
    append_bytes,
    newest_row,
    newest_rows,
    open_for_append,
    read_bytes,
    read_rows,
    to_line,
    whole_rows,
)

__all__ = ["Journal", "newest_row", "newest_rows", "read_rows", "rewind"]


class Journal:
    """The journal opened for writing by the attempt that owns the run.

    A row is `{"kind": "step" | "evaluation", "step": int, "time": unix seconds, "metrics": {name: number}}`; an
    evaluation also has `"counts"` (successes of each prompt) and `"samples"` (responses a prompt).
    """

    def __init__(self, run: RunFolder, attempt: Attempt):
        attempt.require_owner()
        self._attempt = attempt
        self._path = run.journal
        with naming(self._path):
            self._file = open_for_append(self._path)

    def append(self, row: Row) -> None:
        """Write one row. Superseded where a newer attempt owns the run, KeyError for a metric not in METRICS."""
        for name in row["metrics"]:
            if name not in METRICS:
                raise KeyError(f"{name} is not in rlsweep.store.metrics.METRICS")
        self._attempt.require_owner()
        with naming(self._path):
            append_bytes(self._file, to_line(row))

    @property
    def length(self) -> int:
        """Bytes written so far."""
        return os.fstat(self._file).st_size

    def sync(self) -> None:
        """Make all rows durable. A checkpoint that records the length is only whole after this."""
        with naming(self._path):
            os.fsync(self._file)

    def close(self) -> None:
        """Make all rows durable and let go of the file; a second time does nothing."""
        if self._file >= 0:
            self.sync()
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def rewind(run: RunFolder, attempt: Attempt, length: int) -> None:
    """Take over the journal, and take back all rows after byte `length`: durably into `attempts/<n>/discarded.jsonl`.

    Safe to be killed anywhere and done again by the same or a later attempt: a row is then in the journal, or in
    exactly one discarded.jsonl. Raises Superseded, or RlsweepError where the journal has no row ending at `length`.
    """
    attempt.require_owner()
    data = read_bytes(run.journal)
    if not _ends_a_row(data, length):
        raise RlsweepError(
            f"{run.journal}: has {len(data)} bytes and no row that ends at byte {length}, "
            "which its checkpoint records; the file was changed by hand or is damaged. Put it back, or remove "
            f"the folders in {run.checkpoints} to begin again from the start"
        )
    tail = b"".join(whole_rows(data[length:]))
    if tail:
        write_bytes(attempt.discarded, tail + _not_in(tail, read_bytes(attempt.discarded)))
        for earlier in attempts.every(run):
            # An attempt killed before it could truncate left rows in both places: from here on they are ours.
            before = read_bytes(earlier.discarded) if earlier.number < attempt.number else b""
            if before and not _not_in(tail, before):
                earlier.discarded.unlink()
    # Another file under the same name, even where nothing is taken back: an earlier attempt that sleeps and wakes up
    # between its last look at who owns the run and its write has the old one open, and writes where nobody reads.
    if run.journal.exists():
        write_bytes(run.journal, data[:length], attempt.require_owner)


def covers(run: RunFolder, length: int) -> bool:
    """Whether the journal has a row that ends at byte `length`, as a checkpoint recorded it."""
    return _ends_a_row(read_bytes(run.journal), length)


def _ends_a_row(data: bytes, length: int) -> bool:
    return length <= len(data) and (length == 0 or data[length - 1 : length] == b"\n")


def _not_in(tail: bytes, before: bytes) -> bytes:
    """Rows discarded before, unless they are still the end of the journal and so about to be discarded again."""
    return b"" if tail.endswith(before) else before

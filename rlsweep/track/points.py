"""Rows of a journal as MLflow's points, cut into batches that end with a row."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from rlsweep.errors import RlsweepError
from rlsweep.store.rows import Row, parse, whole_rows

POINTS_A_BATCH = 999
"""MLflow takes 1,000 entities a request; one is the tag that says how far the batch reaches."""


@dataclass(frozen=True)
class Point:
    """One value of a metric at a step; `timestamp` in unix milliseconds."""

    name: str
    value: float
    timestamp: int
    step: int


@dataclass(frozen=True)
class Sent:
    """How much of a journal an MLflow run holds: the first `length` bytes, which hash to `digest` (SHA-256)."""

    length: int
    digest: str

    @classmethod
    def of(cls, journal: bytes, length: int) -> "Sent":
        return cls(length, hashlib.sha256(journal[:length]).hexdigest())

    @classmethod
    def read(cls, tag: str) -> "Sent":
        length, _, digest = tag.partition(" ")
        return cls(int(length), digest)

    def __str__(self) -> str:
        return f"{self.length} {self.digest}"

    def begins(self, journal: bytes) -> bool:
        """Whether the journal still begins with what was sent."""
        return len(journal) >= self.length and self.of(journal, self.length) == self


def points(row: Row) -> list[Point]:
    """The metrics of a row under its step and its own time.

    The clocks of an evaluation are left to its step's own row, which was written just before it, so that a step has one
    reading of each; at step 0 there is no other row.
    """
    timestamp = round(row["time"] * 1000)
    return [
        Point(name, float(value), timestamp, int(row["step"]))
        for name, value in row["metrics"].items()
        if row["kind"] != "evaluation" or row["step"] == 0 or not name.startswith("clock/")
    ]


def batches(journal: bytes, start: int, end: int) -> Iterator[tuple[list[Point], int]]:
    """Points of the rows between two bytes of a journal, with the byte where the last row of the batch ends.

    RlsweepError at a row that is no row, unless it is the last line: torn, its writer will cut it off.
    """
    batch: list[Point] = []
    reached = start
    for line in journal[start:end].splitlines(keepends=True):
        row = parse(line) if line.endswith(b"\n") else None
        if row is None:
            if reached + len(line) < len(journal):
                raise RlsweepError(f"the journal is damaged: no whole JSON object at byte {reached}")
            break
        added = points(row)
        assert len(added) <= POINTS_A_BATCH
        if len(batch) + len(added) > POINTS_A_BATCH:
            yield batch, reached
            batch = []
        batch += added
        reached += len(line)
    if reached > start:
        yield batch, reached


def evaluations(journal: bytes, end: int) -> str:
    """The evaluation rows before byte `end` as they stand, a line each: all that a curve is made of."""
    rows = ((line, parse(line)) for line in whole_rows(journal[:end]))
    return b"".join(line for line, row in rows if row is not None and row["kind"] == "evaluation").decode()

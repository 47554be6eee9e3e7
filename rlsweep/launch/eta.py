"""How long a run still trains, told from the times of its newest rows."""

import os
import re
import time
from bisect import bisect_left

from rlsweep.errors import RlsweepError
from rlsweep.store.attempts import Attempt
from rlsweep.store.files import read_json
from rlsweep.store.rows import Row, parse

_STEP = re.compile(rb'"kind":\s*"step"')
_TAIL = 256 * 1024
"""Bytes read from the journal's end: tens of steps, with the evaluations and checkpoints between them."""


def seconds_to_go(attempt: Attempt, total: int) -> float | None:
    """Seconds until step `total` of the run that an attempt trains now, at the pace of its newest steps.

    Evaluations and checkpoints are in that pace; waits in a queue to come are not. None before the second step of the
    attempt: the time between rows of two attempts was spent in a queue.
    """
    ends = _first_and_last(attempt)
    if ends is None:
        return None
    first, last = ends
    advanced, took = int(last["step"]) - int(first["step"]), float(last["time"]) - float(first["time"])
    if advanced <= 0 or took < 0:  # a clock that was set back
        return None
    since = max(0.0, time.time() - float(last["time"]))
    return max(0.0, (total - int(last["step"])) * took / advanced - since)


def duration(seconds: float) -> str:
    """As a person says it, in its two largest units: `3 h 10 min`, `2 d 4 h`, `under 1 min`."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return "under 1 min"
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 24 * 60:
        return _two(minutes, 60, "h", "min")
    return _two(round(minutes / 60), 24, "d", "h")


def _two(amount: int, base: int, large: str, small: str) -> str:
    whole, rest = divmod(amount, base)
    return f"{whole} {large}" + (f" {rest} {small}" if rest else "")


def _first_and_last(attempt: Attempt) -> tuple[Row, Row] | None:
    """Of the step rows near the journal's end that the attempt itself wrote; few rows are parsed."""
    try:
        began = float(read_json(attempt.process)["started"])
        with open(attempt.run.journal, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _TAIL))
            lines = file.read().split(b"\n")
    except (OSError, RlsweepError, KeyError, TypeError, ValueError):
        return None
    whole = lines[1 if size > _TAIL else 0 : -1]  # the first may have lost its head, the last is torn or empty
    steps = [line for line in whole if _STEP.search(line)]
    own = steps[bisect_left(steps, began, key=lambda line: (parse(line) or {}).get("time", 0.0)) :]
    first, last = (parse(own[at]) if own else None for at in (0, -1))
    return (first, last) if first is not None and last is not None else None

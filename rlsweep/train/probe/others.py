"""Checks that need others: whether nodes see what the others write, and how far the clocks are apart."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rlsweep.store.files import read_json, write_json
from rlsweep.train.probe.node import Found, Here, refuses

_POLL_S = 0.02
_MEETING_S = 90.0
"""Nodes of a job start at different times, and Python starts slowly from a network file system."""
_ANSWER_S = 60.0
_SLOW_S = 10.0
"""What one node writes should be seen on another within that."""
_CLOCK_S = 5.0
_RACES = 50


def nodes(here: Here) -> Found:
    """Whether nodes see what others write, and whether of two that make one folder exactly one succeeds."""
    world = here.request.nodes
    if world == 1:
        return "ok", "one node; with --nodes 2 it is tried whether one sees what another writes"
    here.meeting.mkdir(exist_ok=True)
    others = [rank for rank in range(world) if rank != here.rank]
    _write(here, "here")
    absent = _absent(here, "here", others, _MEETING_S)
    if absent:
        return "failed", (
            f"nothing of node(s) {_listed(absent)} was seen within {_MEETING_S:.0f} s: they didn't start, or the root "
            "is no file system that all nodes share"
        )
    won = [number for number in range(_RACES) if not refuses(here.meeting / f"race-{number}")]
    _write(here, "won", won)
    waited = {rank: _seen_after(here, "won", rank, _ANSWER_S) for rank in others}
    late = [rank for rank, seconds in waited.items() if seconds is None]
    if late:
        return "failed", f"what node(s) {_listed(late)} wrote was not seen within {_ANSWER_S:.0f} s; use another root"
    races = [number for rank in range(world) for number in read_json(here.meeting / f"won-{rank}.json")]
    if sorted(races) != list(range(_RACES)):
        return "failed", (
            f"of {_RACES} folders that all nodes tried to make, {len(races)} were won: mkdir is not exclusive there, "
            "and two jobs could own one run; use another file system for the root"
        )
    slowest = _round_trip(here, others)
    if slowest is None:
        return "failed", f"a file that was replaced was not seen anew within {_ANSWER_S:.0f} s; use another root"
    if slowest > _SLOW_S:
        return "warning", f"what one node writes is seen on another after {slowest:.0f} s; turn down attribute caching"
    return "ok", f"seen by the others within {slowest:.2g} s, {_RACES} of {_RACES} folders made by exactly one node"


def clock(here: Here) -> Found:
    """How far this clock is from the submitter's, who answers while `rlsweep cluster probe` waits."""
    asked = here.meeting / f"clock-{here.rank}.json"
    here.meeting.mkdir(exist_ok=True)
    before = time.time()
    write_json(asked, {"time": before})
    answer = asked.with_name(f"{asked.stem}-answer.json")
    if not _wait(answer.exists, _ANSWER_S):
        return "warning", (
            f"no answer of {here.request.host} within {_ANSWER_S:.0f} s: it no longer waits, or what one machine "
            "writes is seen late on another"
        )
    theirs, after = float(read_json(answer)["time"]), time.time()
    ahead, unsure = (before + after) / 2 - theirs, (after - before) / 2
    text = (
        f"{abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} {here.request.host}, give or take {unsure:.1f} s"
    )
    if abs(ahead) - unsure > _CLOCK_S:
        return "warning", f"{text}: times in status and logs will not fit together; have the site's clocks synchronised"
    return "ok", text


def _write(here: Here, what: str, content: object = None) -> None:
    write_json(here.meeting / f"{what}-{here.rank}.json", content)


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _seen_after(here: Here, what: str, rank: int, seconds: float) -> float | None:
    """Seconds until a file of another node is seen, None where it isn't within so many."""
    began = time.monotonic()
    path = here.meeting / f"{what}-{rank}.json"
    return time.monotonic() - began if _wait(path.exists, seconds) else None


def _absent(here: Here, what: str, ranks: list[int], seconds: float) -> list[int]:
    deadline = time.monotonic() + seconds
    return [rank for rank in ranks if _seen_after(here, what, rank, max(0.0, deadline - time.monotonic())) is None]


def _round_trip(here: Here, others: list[int]) -> float | None:
    """Seconds until all others have answered a file that rank 0 replaced, as rank 0 sees it; None: not in time."""
    call = here.meeting / "call.json"
    began = time.monotonic()
    for content in (1, 2):
        if here.rank == 0:
            began = time.monotonic()
            write_json(call, content)
            if _absent(here, f"answer-{content}", others, _ANSWER_S):
                return None
        else:
            if not _wait(partial(_says, call, content), _ANSWER_S):
                return None
            _write(here, f"answer-{content}")
    if here.rank == 0:
        _write(here, "took", time.monotonic() - began)
    if _seen_after(here, "took", 0, _ANSWER_S) is None:
        return None
    return float(read_json(here.meeting / "took-0.json"))


def _says(path: Path, content: int) -> bool:
    return path.exists() and bool(read_json(path) == content)


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))

"""The state of a run, told from its folder and its process; nothing about it is stored."""

import time
from dataclasses import dataclass
from typing import Literal, get_args

from rlsweep.errors import RlsweepError
from rlsweep.store import attempts, outcome
from rlsweep.store.attempts import Attempt
from rlsweep.store.layout import RunFolder

State = Literal["waiting", "pending", "running", "finished", "interrupted", "failed", "diverged", "lost"]
STATES: tuple[State, ...] = get_args(State)
"""`pending`: its job waits in a scheduler's queue. Only launch/seen.py, which asks the scheduler, tells it."""

_SILENCE_S = 1800.0
"""An attempt on another host passes for running until it has written nothing for so long. Taking over one that lives
after all costs its work since the last checkpoint, never the run: it loses ownership and writes nothing more."""


@dataclass(frozen=True)
class Seen:
    """State of a run, why in one line, the step of its outcome (0 without one), its newest attempt and its host.

    Of a run that was handed to a job also that job's id, its nodes in the scheduler's short form (`n[1-2]`) and, where
    it is held, the command that releases it.
    """

    state: State
    reason: str
    step: int = 0
    attempt: Attempt | None = None
    host: str | None = None
    job: str | None = None
    nodes: str = ""
    release: str | None = None


def look(run: RunFolder) -> Seen:
    """What a run is doing now. `lost`: its process is gone and left no outcome."""
    attempt = attempts.newest(run)
    if attempt is None:
        return Seen("waiting", "not started yet")
    host = host_of(attempt)
    alive = attempts.is_alive(attempt)
    if alive:
        return Seen("running", f"attempt {attempt.number} is at work", attempt=attempt, host=host)
    try:
        ended = outcome.read(run)
    except RlsweepError as error:  # the run goes on from its checkpoint and writes a new one
        return Seen("lost", str(error), 0, attempt, host)
    if ended is not None and ended.attempt in (None, attempt.number):
        return Seen(ended.state, ended.reason, ended.step, attempt, host)
    if alive is None and (silence := _silence(attempt)) < _SILENCE_S:
        where = f"is on {host}" if host else f"can't be asked ({attempt.process} is damaged)"
        reason = f"attempt {attempt.number} {where}, last heard of {silence / 60:.0f} min ago"
        return Seen("running", reason, attempt=attempt, host=host)
    return Seen("lost", f"the process of attempt {attempt.number} is gone and left no outcome", 0, attempt, host)


def host_of(attempt: Attempt | None) -> str | None:
    """Host of an attempt's process, None where nothing says."""
    try:
        return None if attempt is None else str(attempts.read_identity(attempt.process)["host"])
    except (FileNotFoundError, RlsweepError):
        return None


def _silence(attempt: Attempt) -> float:
    """Seconds since an attempt last wrote a row, a line of its log or its process."""
    heard = 0.0
    for path in (attempt.run.journal, attempt.log, attempt.process):
        try:
            heard = max(heard, path.stat().st_mtime)
        except FileNotFoundError:
            continue
    return max(0.0, time.time() - heard)

"""Ending runs of this host on a person's word."""

import os
import signal
import time
from collections.abc import Sequence

from rlsweep.errors import RlsweepError
from rlsweep.store import attempts
from rlsweep.store.attempts import Attempt
from rlsweep.store.files import write_json
from rlsweep.store.layout import RunFolder
from rlsweep.store.state import look

_POLL_S = 0.1


def cancel(runs: Sequence[RunFolder], wait_s: float) -> list[tuple[RunFolder, bool, str]]:
    """Ask each run at work here to save and end, wait, and say of each whether it is at rest and what happened.

    Only the very process that the run's folder names is signalled: same number, same start, same boot, this host.
    """
    asked: dict[str, Attempt] = {}
    answers: dict[str, tuple[bool, str]] = {}
    for run in runs:
        seen = look(run)
        if seen.state != "running" or seen.attempt is None:
            answers[run.key] = (True, f"is not running ({seen.state})")
            continue
        refusal = _ask(seen.attempt)
        if refusal is None:
            asked[run.key] = seen.attempt
        else:
            answers[run.key] = (False, refusal)
    deadline = time.monotonic() + wait_s
    while asked and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        for key, attempt in list(asked.items()):
            if not attempts.is_alive(attempt):
                answers[key] = (True, f"ended (attempt {attempt.number})")
                del asked[key]
    for key, attempt in asked.items():
        answers[key] = (False, f"was asked to end (attempt {attempt.number}) and is still saving")
    return [(run, *answers[run.key]) for run in runs]


def _ask(attempt: Attempt) -> str | None:
    """Send SIGTERM; why not, where it can't be sent."""
    try:
        process = attempts.read_identity(attempt.process)
    except FileNotFoundError:
        return "is just being started; try again in a moment"
    except RlsweepError as error:
        return f"can't be asked: {error}"
    if attempts.is_process(process) is None:
        return f"is at work on {process['host']}; cancel it there"
    if _launcher(attempt) == process["pid"]:
        return "is just being started; try again in a moment"  # the folder still names its launcher
    write_json(attempt.cancelled, {"time": time.time()})
    try:
        os.kill(process["pid"], signal.SIGTERM)
    except ProcessLookupError:
        return None
    except PermissionError:
        attempt.cancelled.unlink()
        return "belongs to another user"
    return None


def _launcher(attempt: Attempt) -> int | None:
    """Process that started the attempt, where it can be told."""
    try:
        return int(attempts.read_identity(attempt.launcher)["pid"])
    except (FileNotFoundError, RlsweepError):
        return None

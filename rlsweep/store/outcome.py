"""How an attempt at a run ended."""

from dataclasses import asdict, dataclass, replace
from typing import Literal, get_args

from rlsweep.errors import RlsweepError
from rlsweep.store import attempts
from rlsweep.store.attempts import Attempt
from rlsweep.store.files import read_json, write_json
from rlsweep.store.layout import RunFolder

SAVED = 75
"""Exit code of a trainer that was asked to stop, has saved and wants to go on."""
DIVERGED = 76
"""Exit code of a trainer whose run diverged."""

State = Literal["finished", "diverged", "failed", "interrupted"]


@dataclass(frozen=True)
class Outcome:
    """State, the last step trained, why in one line, and the attempt that ended so (filled in by `write` if None)."""

    state: State
    step: int
    reason: str
    attempt: int | None = None


def write(run: RunFolder, outcome: Outcome) -> None:
    """Write outcome.json. Superseded where the outcome is of an attempt that no longer owns the run."""
    if outcome.attempt is None:
        owner = attempts.newest(run)
        outcome = replace(outcome, attempt=owner.number if owner else None)
    if outcome.attempt is None:
        write_json(run.outcome, asdict(outcome))
    else:
        write_json(run.outcome, asdict(outcome), Attempt(run, outcome.attempt).require_owner)


def read(run: RunFolder) -> Outcome | None:
    """How the newest attempt that came to an end ended, or None. RlsweepError where the file is damaged."""
    try:
        found = read_json(run.outcome)
    except FileNotFoundError:
        return None
    try:
        outcome = Outcome(**found)
    except TypeError as error:
        raise RlsweepError(f"{run.outcome}: not an outcome ({error})") from error
    if not isinstance(outcome.step, int) or not isinstance(outcome.attempt, int | None):
        raise RlsweepError(f"{run.outcome}: not an outcome (step and attempt must be numbers)")
    if outcome.state not in get_args(State):
        raise RlsweepError(f"{run.outcome}: state {outcome.state!r} is not valid; valid: {', '.join(get_args(State))}")
    return outcome

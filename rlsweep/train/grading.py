"""A verifier is somebody else's code: its time is limited, its answer checked, its failures are counted and bounded."""

import asyncio
import reprlib
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast, get_args

from rlsweep.errors import RlsweepError
from rlsweep.store.samples import visible
from rlsweep.tasks.protocol import Outcome, Prompt, Task

VERIFIER_SECONDS = 10.0
"""A verifier that has not graded one response by then counts as hung."""
TOLERATED = 10
"""One failure in so many responses of a step or an evaluation is tolerated, and always a single one."""

_AGAIN_S = 1.0
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200
_OUTCOMES = get_args(Outcome)
_RAISED = (Exception, SystemExit, asyncio.CancelledError)  # what a verifier may raise; the last two are no Exception


class _Hung(BaseException):
    """Raised in the middle of a verifier. No Exception: verifiers catch those."""


@dataclass(frozen=True)
class Failure:
    """What happened, in a word, and as what "the verifier" did."""

    kind: str
    how: str


@dataclass
class Failures:
    """Responses on which the verifier failed, among the `responses` of one `what` (a step, an evaluation)."""

    what: str
    responses: int
    count: int = 0
    first: str = ""

    def add(self, failure: Failure) -> None:
        """Count one. RlsweepError as soon as there are too many: the numbers would no longer be about the policy."""
        self.count += 1
        self.first = self.first or failure.how
        if self.count > max(1, self.responses // TOLERATED):
            raise RlsweepError(
                f"the verifier has failed on {self.count} of the {self.responses} responses of one {self.what}, more "
                f"than a tenth; the first time it {self.first}; mend the task and start the run again"
            )


class Verifier:
    """The task's verifier, guarded: whatever it does, a response has an outcome."""

    def __init__(self, task: Task, say: Callable[[str], None]):
        """`say` is told the first failure of each kind."""
        self._task = task
        self._say = say
        self._told: set[str] = set()

    def grade(self, prompt: Prompt, response: str, *, stopped: bool, failures: Failures) -> Outcome:
        """Outcome of a response; `unparseable`, and counted, where the verifier raised, hung or returned none of them.

        A verdict that came just within the time limit may not on a slower machine: the one thing about grading that
        doesn't follow from prompt and response alone.
        """
        found, failure = _attempt(lambda: self._task.grade(prompt, response, stopped=stopped))
        if failure is None:
            if isinstance(found, str) and found in _OUTCOMES:
                return cast(Outcome, found)
            failure = Failure("nonsense", f"returned {_SHORT.repr(found)} (valid: {', '.join(_OUTCOMES)})")
        if failure.kind not in self._told:
            self._told.add(failure.kind)
            self._say(
                f"the verifier {failure.how}, on a response to {_SHORT.repr(prompt.text)}; it counts as unparseable, "
                "and failures of this kind are only counted from here on"
            )
        failures.add(failure)
        return "unparseable"

    def answer(self, response: str) -> str | None:
        """The answer that the verifier finds, for people to read; None where it finds none or fails."""
        found, _ = _attempt(lambda: self._task.answer(response))
        return found if isinstance(found, str) else None


def _attempt(ask: Callable[[], object]) -> tuple[object, Failure | None]:
    """What the verifier returns when asked, or how it failed."""
    try:
        return _within_limit(ask), None
    except _Hung:
        return None, Failure("hung", f"gave no answer within {VERIFIER_SECONDS:g} s")
    except _RAISED as error:
        return None, Failure(type(error).__name__, f"raised {type(error).__name__}: {_first_line(error)}")


def _within_limit(ask: Callable[[], object]) -> object:
    """What `ask` returns; _Hung where it takes longer than VERIFIER_SECONDS.

    The alarm only rings in the main thread: anywhere else there is no limit. It interrupts Python code and `re`, not a
    library in C that doesn't look for signals. Other signals are handled meanwhile as always.
    """
    if threading.current_thread() is not threading.main_thread():
        return ask()
    begun = time.monotonic()
    armed, rung = True, False

    def ring(number: int, frame: Any) -> None:
        nonlocal rung
        if armed:
            rung = True
            raise _Hung

    before = signal.signal(signal.SIGALRM, ring)
    # It rings again and again: the first one may be lost on a verifier that catches everything.
    left, interval = signal.setitimer(signal.ITIMER_REAL, VERIFIER_SECONDS, _AGAIN_S)
    try:
        try:
            answer = ask()
        finally:
            armed = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before or signal.SIG_DFL)
        if left:  # somebody else's alarm
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - begun), 0.001), interval)
    if rung:
        raise _Hung
    return answer


def _first_line(error: BaseException) -> str:
    try:
        lines = str(error).strip().splitlines()
    except _RAISED:  # its own __str__ may be what is wrong
        lines = []
    return visible(lines[0][:200]) if lines else "no message"

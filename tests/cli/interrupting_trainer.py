"""The real trainer, whose first attempt presses its launcher's Ctrl-C in the midst of its work, and then goes on.

Called with the phase in which it does so before the trainer's own arguments.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from rlsweep.rollout import local
from rlsweep.store import checkpoints
from rlsweep.train import __main__ as trainer
from rlsweep.train import loop, state, warm_start
from rlsweep.train.intake import Intake

phase = sys.argv.pop(1)


def press() -> None:
    """SIGINT to the launcher; returns once it has asked this trainer to stop."""
    asked: list[int] = []
    handle = signal.getsignal(signal.SIGTERM)

    def hear(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        assert callable(handle)
        handle(number, frame)

    signal.signal(signal.SIGTERM, hear)
    os.kill(os.getppid(), signal.SIGINT)
    while not asked:
        time.sleep(0.01)


def again() -> None:
    """Twice, and never an end of one's own."""
    press()
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(600)


def killed() -> None:
    """Once, from a process that knows no other end than being killed."""
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(600)


def on_call(number: int, owner: Any, name: str, act: Callable[[], None]) -> None:
    """Act at the beginning of the `number`-th call of a function."""
    real, calls = getattr(owner, name), []

    def wrapped(*given: Any, **named: Any) -> Any:
        calls.append(name)
        if len(calls) == number:
            act()
        return real(*given, **named)

    setattr(owner, name, wrapped)


ACTS: dict[str, Callable[[], None]] = {
    "making the model": lambda: on_call(1, warm_start, "_warm_start", killed),
    "loading": lambda: on_call(1, state, "load_model", press),
    # While the rollouts of the second step are sampled: the third token of the first of them.
    "generation": lambda: on_call(2, Intake, "admit", lambda: on_call(3, local, "_draw", press)),
    "update": lambda: on_call(2, loop, "update", press),
    "evaluation": lambda: on_call(2, loop, "evaluate", press),
    "checkpoint": lambda: on_call(1, checkpoints, "sync_tree", press),
    "twice": lambda: on_call(2, loop, "evaluate", again),
}

if sys.argv[-2:] == ["--attempt", "1"] or (sys.argv[1] == "--prepare" and phase == "making the model"):
    ACTS[phase]()
sys.exit(trainer.main())

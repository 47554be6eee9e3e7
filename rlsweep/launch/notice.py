"""The signals by which Slurm gives notice: USR2 before the time limit, and before a preemption where the site wants
that; SIGTERM before any other end."""

import signal
import time
from types import FrameType, TracebackType
from typing import Any, Self


class Notice:
    """Context in which USR2 is held back until the task can act on it, and after which it is ignored. SIGTERM is only
    noted: the trainer gets it as well.

    submitit's handler saves and requeues within whatever it interrupts; held back, it never meets a half-started
    trainer or a half-written file, and never itself.
    """

    def __init__(self) -> None:
        from submitit.core.job_environment import JobEnvironment

        self.signal = signal.Signals[f"SIG{JobEnvironment.USR_SIG}"]
        self.came = False
        """Whether USR2 has, and was not passed on yet."""
        self.told: float | None = None
        """When the first of either came, unix seconds."""
        self._handler: Any = None
        self._deaf: Any = None

    def __enter__(self) -> Self:
        self._deaf = signal.signal(signal.SIGTERM, self._note)
        self._handler = signal.signal(self.signal, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(self.signal, signal.SIG_IGN)  # a job that is over has nothing to save
        signal.signal(signal.SIGTERM, self._deaf)

    def pass_on(self) -> None:
        """Do what the signal is for: call the handler that stood before, which doesn't return where it requeues."""
        self.came = False
        if callable(self._handler):
            self._handler(self.signal, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.told = self.told or time.time()
        self.came = self.came or number == self.signal

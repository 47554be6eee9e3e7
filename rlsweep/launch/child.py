"""A trainer as the child of a job's task: it hears what the task tells it, and does not outlive it for long."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from rlsweep.launch.job import spawn
from rlsweep.launch.ranks import Place, variables
from rlsweep.store import attempts
from rlsweep.store.attempts import Attempt
from rlsweep.store.files import write_json
from rlsweep.store.jobs import AttemptJob

TRAINER = (sys.executable, "-m", "rlsweep.train")
_POLL_S = 0.1
_PR_SET_PDEATHSIG = 1


@dataclass
class Trainer:
    """The trainer of one rank, at the head of a process group of its own."""

    process: subprocess.Popen[bytes]

    def code(self) -> int | None:
        """Its exit code, negative for a signal, None while it runs. What it started and left behind is killed."""
        if self.process.returncode is None:
            # Not collected yet: until then nothing else can have its number, and the group is surely its own.
            if os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return None
            self.kill()
            self.process.wait()
        return self.process.returncode

    def ask(self) -> None:
        """Ask it to save and end."""
        if self.code() is None:
            self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def wait(self, seconds: float) -> int | None:
        """Its exit code, None where it has not ended within so many seconds."""
        deadline = time.monotonic() + seconds
        while (code := self.code()) is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return code


def start(attempt: Attempt, place: Place, job: AttemptJob, threads: int, notice: signal.Signals) -> Trainer:
    """Start this rank's trainer on an attempt. It ignores the signal by which Slurm gives notice."""
    arguments = [*TRAINER, str(attempt.run.path), "--attempt", str(attempt.number)]
    with open(attempt.rank_log(place.rank), "ab") as log:
        process = spawn(arguments, threads, log.fileno(), variables(place, job), _before_exec(notice))
    trainer = Trainer(process)
    if place.rank == 0:
        identity = attempts.identity(process.pid)
        if trainer.code() is None:
            write_json(attempt.process, identity)
    return trainer


def _before_exec(notice: signal.Signals) -> Callable[[], None]:
    """Slurm sends its notice to every process of the step, and one that doesn't expect it dies of it. A task that is
    killed, by a lack of memory, say, takes its trainer along: that one saves and ends, instead of working on unnoticed.
    """
    parent = os.getpid()
    prctl = ctypes.CDLL(None).prctl

    def prepare() -> None:
        signal.signal(notice, signal.SIG_IGN)
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before it was asked for
            os._exit(1)

    return prepare

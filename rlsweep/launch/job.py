"""One attempt at a run as a process of this machine: started here, or found at work and waited for."""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlsweep.errors import RlsweepError
from rlsweep.launch.display import Evaluated
from rlsweep.store import attempts, checkpoints, outcome
from rlsweep.store.attempts import Attempt, Superseded
from rlsweep.store.files import read_json, write_json
from rlsweep.store.journal import newest_row
from rlsweep.store.outcome import SAVED, Outcome, State
from rlsweep.store.rows import parse
from rlsweep.store.state import look
from rlsweep.sweep.expand import Run

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass
class Job:
    """A run at work. `process` is None where another launcher started it; `ours`: whether it is ours to end."""

    run: Run
    attempt: Attempt
    process: subprocess.Popen[bytes] | None
    ours: bool
    killed: str | None = None
    """Why it was killed here, where it was."""
    step: int = 0
    evaluation: Evaluated | None = None
    _offset: int = field(default=0, repr=False)

    @property
    def name(self) -> str:
        return name_of(self.run)

    def done(self) -> bool:
        """Whether the attempt has ended."""
        if self.process is not None:
            return self.process.poll() is not None
        return look(self.attempt.run).state != "running"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the trainer; SIGKILL to all it started. An attempt that is not ours is left alone."""
        if not self.ours:
            return
        if self.process is not None:
            pid = self.process.pid
            if self.process.poll() is not None:
                return
        elif attempts.is_alive(self.attempt):
            pid = read_json(self.attempt.process)["pid"]
        else:
            return
        try:
            if number == signal.SIGKILL and os.getpgid(pid) == pid:
                os.killpg(pid, number)
            else:
                os.kill(pid, number)
        except ProcessLookupError:
            return

    def follow(self) -> bool:
        """Read what the journal gained; whether it gained anything. A slow or absent file is tried again later."""
        try:
            with open(self.attempt.run.journal, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size == self._offset:
                    return False
                file.seek(0 if size < self._offset else self._offset)  # shorter: the trainer took rows back
                start, data = file.tell(), file.read()
        except OSError:
            return False
        whole = data.rfind(b"\n") + 1
        self._offset = start + whole
        for line in data[:whole].splitlines():
            row = parse(line)
            if row is not None:
                self.step = row["step"]
                if row["kind"] == "evaluation":
                    self.evaluation = Evaluated(row["step"], row["metrics"]["evaluation/pass_rate"])
        return whole > 0

    def settle(self, asked: bool) -> Outcome | None:
        """The outcome of the ended attempt; where it left none, what is known is written down for it.

        None where a newer attempt has taken the run over, or where it is for another launcher to say.
        """
        told = outcome.read(self.attempt.run)
        if not self.attempt.owns():
            return None
        if told is not None and told.attempt in (None, self.attempt.number):
            return told
        if not self.ours:
            return None
        code = self.process.returncode if self.process is not None else None
        if asked or code == SAVED:
            return end(self.attempt, "interrupted", f"{self.killed or 'stopped'}; {whence(self.attempt)}")
        return end(self.attempt, "failed", why(code, self.attempt.log))

    def log_tail(self, lines: int = 3) -> list[str]:
        """The last lines of the attempt's log that hold anything."""
        return tail(self.attempt.log, lines)


def end(attempt: Attempt, state: State, reason: str) -> Outcome | None:
    """Write down how an attempt ended whose trainer left no outcome. None where a newer one has taken the run over."""
    row = newest_row(attempt.run.journal, "step")
    ended = Outcome(state, row["step"] if row else 0, reason, attempt.number)
    try:
        outcome.write(attempt.run, ended)
    except Superseded:
        return None
    return ended


def why(code: int | None, log: Path) -> str:
    """How a trainer that left no outcome ended: by its exit code, negative for a signal, and its log's last line."""
    if code is None:
        return "its process is gone and left no outcome"
    if code < 0:
        memory = " (out of memory?)" if -code == signal.SIGKILL else ""
        return f"killed by {signal.Signals(-code).name}{memory}"
    last = tail(log, 1)
    return f"exit code {code}" + (f": {last[0]}" if last else " and an empty log")


def whence(attempt: Attempt) -> str:
    """From where the run goes on."""
    saved = checkpoints.resumable(attempt.run)
    return f"goes on from {f'step {saved.step}' if saved else 'the start'}"


def name_of(run: Run) -> str:
    """What people call a run."""
    return f"{run.variant} seed {run.seed}"


def start(run: Run, attempt: Attempt, trainer: Sequence[str]) -> Job:
    """Start the trainer on a claimed attempt, in a session of its own: the terminal's Ctrl-C is ours to handle."""
    write_json(attempt.launcher, attempts.identity(os.getpid()))
    attempts.record_process(attempt)
    arguments = [*trainer, str(attempt.run.path), "--attempt", str(attempt.number)]
    with open(attempt.log, "ab") as log:
        process = spawn(arguments, run.recipe.execution.threads, log.fileno())
    child = attempts.identity(process.pid)
    if process.poll() is None:
        write_json(attempt.process, child)
    return Job(run, attempt, process, ours=True)


def adopt(run: Run, attempt: Attempt) -> Job:
    """Wait for an attempt found at work. It is ours to end if the launcher that started it is gone."""
    try:
        orphan = attempts.is_process(attempts.read_identity(attempt.launcher)) is False
    except (FileNotFoundError, RlsweepError):
        orphan = False  # started by hand, or nobody can tell
    return Job(run, attempt, None, ours=orphan)


def spawn(
    arguments: list[str],
    threads: int,
    log: int,
    environment: Mapping[str, str] = os.environ,
    before_exec: Callable[[], None] | None = None,
) -> subprocess.Popen[bytes]:
    """A process without terminal whose numeric libraries use `threads` threads; `before_exec` is called in it."""
    variables = {**environment, **dict.fromkeys(_THREAD_VARIABLES, str(threads)), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=variables,
        preexec_fn=before_exec,
    )


def tail(path: Path, lines: int) -> list[str]:
    """The last lines of a file that hold anything, none where there is no file."""
    try:
        text = path.read_bytes()[-8192:].decode(errors="replace")
    except FileNotFoundError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip()][-lines:]

"""How the local runner shows its runs, on stderr: bars on a terminal, plain lines with the time otherwise."""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Evaluated:
    """The step of an evaluation and its pass rate."""

    step: int
    pass_rate: float


class Display(Protocol):
    """What the runner tells while it works. `key` is the run's key, `name` its variant and seed."""

    def say(self, message: str) -> None:
        """One line about the whole."""

    def started(self, key: str, name: str, total: int, note: str) -> None:
        """A run is at work from here on, as `note` says."""

    def progress(self, key: str, step: int, evaluation: Evaluated | None) -> None:
        """Where a run is, and its newest evaluation."""

    def ended(self, key: str, text: str) -> None:
        """A run ended as `text` says."""

    def close(self) -> None:
        """Nothing more will come."""


def display() -> Display:
    """Bars where stderr is a terminal that can draw them, else lines."""
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return Bars()
    return Lines()


class Lines:
    """A line for each start and end, and for about every tenth of a run."""

    def __init__(self) -> None:
        self._runs: dict[str, tuple[str, int]] = {}
        self._tenth: dict[str, int] = {}

    def say(self, message: str) -> None:
        _quietly(lambda: print(f"{time.strftime('%H:%M:%S')} {message}", file=sys.stderr, flush=True))

    def started(self, key: str, name: str, total: int, note: str) -> None:
        self._runs[key] = (name, total)
        self.say(f"{key} {name}: {note}")

    def progress(self, key: str, step: int, evaluation: Evaluated | None) -> None:
        name, total = self._runs[key]
        if evaluation is None or 10 * evaluation.step // total == self._tenth.get(key):
            return
        self._tenth[key] = 10 * evaluation.step // total
        self.say(f"{key} {name}: step {evaluation.step}/{total}, pass rate {evaluation.pass_rate:.3f}")

    def ended(self, key: str, text: str) -> None:
        self._tenth.pop(key, None)
        self.say(f"{key} {self._runs.pop(key)[0]}: {text}")

    def close(self) -> None:
        pass


class Bars:
    """A bar for each run at work, above them a line for each that ended."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}", markup=False),
            TimeElapsedColumn(),
            console=Console(stderr=True, highlight=False),
        )
        self._tasks: dict[str, Any] = {}
        self._names: dict[str, str] = {}
        self._progress.start()

    def say(self, message: str) -> None:
        _quietly(lambda: self._progress.console.print(message, markup=False))

    def started(self, key: str, name: str, total: int, note: str) -> None:
        self._names[key] = name
        _quietly(lambda: self._tasks.update({key: self._progress.add_task(name, total=total, rate=note)}))

    def progress(self, key: str, step: int, evaluation: Evaluated | None) -> None:
        rate = "" if evaluation is None else f"pass rate {evaluation.pass_rate:.3f}"
        _quietly(lambda: self._progress.update(self._tasks[key], completed=step, rate=rate))

    def ended(self, key: str, text: str) -> None:
        _quietly(lambda: self._progress.remove_task(self._tasks.pop(key)))
        self.say(f"{key} {self._names.pop(key)}: {text}")

    def close(self) -> None:
        _quietly(self._progress.stop)


def _quietly(write: Callable[[], object]) -> None:
    """A terminal that went away must not keep the runner from ending its runs in order."""
    try:
        write()
    except OSError:
        return

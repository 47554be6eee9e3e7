"""Processes that take turns: each makes one step when it is told to, so that what is compared is measured side by side.

A racer calls `Turns.wait` between two steps. The starter is written to its standard input and answers come from its
standard output, a line of JSON each: CPU seconds and wall seconds of the step, those of each phase, and what the racer
says of it. Two racers never work at the same time.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from phases import Phases


class Turns(Phases):
    """The racer's side; what it books is that of the step at hand."""

    def __init__(self) -> None:
        super().__init__()
        # The answers' channel is ours alone: whatever libraries print goes to the standard error.
        self._answers = sys.stdout
        sys.stdout = sys.stderr
        self._began: tuple[float, float] | None = None

    def wait(self, told: Mapping[str, float]) -> bool:
        """Answer for the step that has just ended (nothing for what came before the first), then wait for the next.

        False where there is none.
        """
        answer: dict[str, Any] = {}
        if self._began is not None:
            cpu, wall = time.process_time() - self._began[0], time.perf_counter() - self._began[1]
            answer = {"cpu_s": cpu, "wall_s": wall, "phases": self.complete(), **told}
        print(json.dumps(answer), file=self._answers, flush=True)
        if not sys.stdin.readline():
            return False
        self.spent.clear()
        self._began = time.process_time(), time.perf_counter()
        return True


def race(
    commands: Mapping[str, Sequence[str]], rounds: int, warm_up: int, log: Path
) -> dict[str, list[dict[str, Any]]]:
    """The answers of each racer for `rounds` steps after `warm_up` others; the order turns by one every round."""
    with log.open("a") as errors:
        racers = {
            name: subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
            for name, command in commands.items()
        }
        try:
            for name, racer in racers.items():
                _answer(name, racer, log)
            answers: dict[str, list[dict[str, Any]]] = {name: [] for name in racers}
            names = list(racers)
            for index in range(warm_up + rounds):
                for name in names[index % len(names) :] + names[: index % len(names)]:
                    _say(racers[name])
                    answer = _answer(name, racers[name], log)
                    if index >= warm_up:
                        answers[name].append(answer)
            return answers
        finally:
            for racer in racers.values():
                racer.stdin.close()
                try:
                    racer.wait(timeout=60)
                except subprocess.TimeoutExpired:
                    racer.kill()


def in_turns(work: Mapping[str, Callable[[], Any]], rounds: int, warm_up: int = 1) -> dict[str, list[dict[str, Any]]]:
    """The same within one process, for work that leaves nothing behind: what each call returns goes into its answer."""
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in work}
    names = list(work)
    for index in range(warm_up + rounds):
        for name in names[index % len(names) :] + names[: index % len(names)]:
            cpu, wall = time.process_time(), time.perf_counter()
            told = work[name]()
            answer = {"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall, **told}
            if index >= warm_up:
                answers[name].append(answer)
    return answers


def _say(racer: "subprocess.Popen[str]") -> None:
    racer.stdin.write("step\n")
    racer.stdin.flush()


def _answer(name: str, racer: "subprocess.Popen[str]", log: Path) -> dict[str, Any]:
    line = racer.stdout.readline()
    if not line:
        raise SystemExit(f"{name} has ended with exit code {racer.wait()}; see {log}")
    return json.loads(line)

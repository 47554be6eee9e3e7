import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result

from rlsweep.errors import SchedulerError
from rlsweep.launch.status import RunStatus, Status
from rlsweep.launch.submit import submitting

Call = Callable[..., Result]


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr("rlsweep.cli.status.time", SimpleNamespace(sleep=found.sleep))
    return found


def rounds(monkeypatch: pytest.MonkeyPatch, *looks: Status) -> None:
    """What each round finds."""
    left = iter(looks)
    monkeypatch.setattr("rlsweep.launch.status.status", lambda *_: next(left))


def test_watching_goes_on_until_nothing_runs_or_waits_in_a_queue(
    place: Any, call: Call, monkeypatch: pytest.MonkeyPatch, clock: Clock, running: RunStatus
) -> None:
    place.want("s", "a" * 12)
    unreachable = SchedulerError("the scheduler can't be reached: no answer")
    failed = replace(running, state="failed")
    rounds(
        monkeypatch,
        Status([replace(running, state="pending")]),
        Status([failed], unreachable),  # nobody can say that it rests
        Status([running]),
        Status([failed]),
    )
    result = call("status", "--watch", "45")
    assert (result.exit_code, clock.slept) == (0, [45, 45, 45])
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert [row[5] for row in rows] == ["pending", "failed", "running", "failed"]
    assert all(datetime.fromisoformat(row[0]).tzinfo for row in rows)
    assert result.stderr.count("rlsweep: the scheduler can't be reached: no answer\n") == 1
    rounds(monkeypatch, Status([failed]))
    assert call("status", "--watch", "--check").exit_code == 3
    assert clock.slept == [45, 45, 45]


def test_watching_on_a_terminal_draws_each_round_anew(
    place: Any,
    call: Call,
    terminal: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    clock: Clock,
    running: RunStatus,
) -> None:
    place.want("s", "a" * 12)
    cleared: list[int] = []
    terminal(80)
    monkeypatch.setattr("click.clear", lambda: cleared.append(1))
    terminal(80)
    for term, count in (("xterm", 2), ("dumb", 0)):
        monkeypatch.setenv("TERM", term)
        rounds(monkeypatch, Status([running]), Status([replace(running, state="finished")]))
        result = call("status", "--watch")
        assert result.exit_code == 0 and len(cleared) == count
        assert ("again in 30 s" in result.stdout) == bool(count)
        cleared.clear()


def test_watching_goes_on_while_a_command_works_on_the_sweep(
    place: Any, call: Call, monkeypatch: pytest.MonkeyPatch, clock: Clock, running: RunStatus
) -> None:
    """Between the end of one run and the start of the next."""
    place.want("s", "a" * 12)
    waits = Status([replace(running, state="waiting")])
    with submitting(place.root, "s"):
        given_up = iter([waits, waits])

        def status(*_: object) -> Status:
            if len(clock.slept) == 2:
                raise KeyboardInterrupt
            return next(given_up)

        monkeypatch.setattr("rlsweep.launch.status.status", status)
        result = call("status", "--watch")
        assert result.exit_code == 130 and len(clock.slept) == 2 and result.stderr.count("Traceback") == 0
    rounds(monkeypatch, waits)
    assert call("status", "--watch").exit_code == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--watch", "29"), "29 s is not valid: each round asks the scheduler"),
        (("--watch", "nan"), "valid: 30 or more"),
        (("--watch", "s"), "'s' is no number of seconds; a sweep is named before it: rlsweep status s --watch"),
        (("--watch", "--json"), "--json and --watch exclude each other"),
    ],
)
def test_watching_is_refused_with_the_reason(place: Any, call: Call, options: tuple[str, ...], words: str) -> None:
    place.want("s", "a" * 12)
    result = call("status", *options)
    assert result.exit_code == 2 and words in " ".join(result.stderr.split())


def test_ctrl_c_ends_watching_quietly(place: Any, environment: dict[str, str]) -> None:
    place.want("s", "a" * 12)
    place.attempt("a" * 12, alive=True)
    line = [sys.executable, "-m", "rlsweep", "status", "--watch", "--root", str(place.root.path)]
    command = subprocess.Popen(
        line,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert command.stdout is not None
    assert "running" in command.stdout.readline()
    command.send_signal(signal.SIGINT)
    _, said = command.communicate()
    assert command.returncode == 130 and "Traceback" not in said

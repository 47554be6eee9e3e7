import time
from pathlib import Path

import pytest

from rlsweep.launch.eta import duration, seconds_to_go
from rlsweep.store import attempts
from rlsweep.store.attempts import Attempt
from rlsweep.store.files import read_json, write_json
from rlsweep.store.journal import Journal
from rlsweep.store.layout import RunFolder


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    owner = attempts.claim(RunFolder(tmp_path))
    attempts.record_process(owner)
    return owner


def rows(attempt: Attempt, *steps: tuple[int, float], padding: int = 0) -> None:
    """Step rows at so many seconds from now, an evaluation after each."""
    with Journal(attempt.run, attempt) as journal:
        for step, at in steps:
            row = {"step": step, "time": time.time() + at}
            journal.append({"kind": "step", **row, "metrics": {}, "padding": "x" * padding})
            journal.append({"kind": "evaluation", **row, "metrics": {"evaluation/pass_rate": 0.5}})


def began(attempt: Attempt, at: float) -> None:
    write_json(attempt.process, {**read_json(attempt.process), "started": time.time() + at})


def test_the_pace_is_that_of_the_attempts_own_steps(attempt: Attempt) -> None:
    """Ten steps in 1,000 s, 90 left, 60 s after the last of them; the queue before the attempt isn't counted."""
    began(attempt, -1100)
    assert seconds_to_go(attempt, 120) is None
    rows(attempt, (10, -9000), (20, -8000), (20, -1060))
    assert seconds_to_go(attempt, 120) is None  # one step of its own
    rows(attempt, (25, -500), (30, -60))
    assert seconds_to_go(attempt, 120) == pytest.approx(90 * 100 - 60, abs=5)
    assert seconds_to_go(attempt, 30) == 0.0


def test_only_the_newest_steps_count_and_what_is_torn_does_not(attempt: Attempt) -> None:
    began(attempt, -1e6)
    rows(attempt, *((step, -1e5 + step) for step in range(1, 11)), padding=100_000)
    rows(attempt, (11, -20.0), (12, -10.0), padding=100_000)
    with open(attempt.run.journal, "ab") as file:
        file.write(b'{"kind": "step", "step": 999, "ti')
    assert seconds_to_go(attempt, 22) == pytest.approx(10 * 10 - 10, abs=5)


def test_a_clock_that_was_set_back_and_damage_give_no_answer(attempt: Attempt) -> None:
    began(attempt, -1e6)
    rows(attempt, (1, 0.0), (2, -100.0))
    assert seconds_to_go(attempt, 10) is None
    attempt.process.write_text("{")
    assert seconds_to_go(attempt, 10) is None
    attempt.process.unlink()
    assert seconds_to_go(attempt, 10) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "under 1 min"),
        (29, "under 1 min"),
        (31, "1 min"),
        (59 * 60 + 29, "59 min"),
        (59 * 60 + 40, "1 h"),
        (11_400, "3 h 10 min"),
        (86_380, "1 d"),
        (187_000, "2 d 4 h"),
    ],
)
def test_durations_are_said_in_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text

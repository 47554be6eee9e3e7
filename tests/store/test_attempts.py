import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlsweep.store import attempts
from rlsweep.store.attempts import Superseded
from rlsweep.store.files import read_json, write_json
from rlsweep.store.layout import Root, RunFolder

CLAIM = """
import sys, time
from pathlib import Path
from rlsweep.store import attempts
from rlsweep.store.layout import RunFolder
while not Path(sys.argv[2]).exists():
    time.sleep(0.001)
try:
    attempts.claim(RunFolder(Path(sys.argv[1])), 1)
except attempts.Superseded:
    sys.exit(7)
"""


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return Root(tmp_path / "dossier à moi").run("0123456789ab")


def test_the_highest_number_owns_the_run(run: RunFolder) -> None:
    assert attempts.newest(run) is None
    first = attempts.claim(run)
    assert first.path == run.path / "attempts" / "0001" and first.owns()
    second = attempts.claim(run)
    assert second.number == 2 and second.owns() and not first.owns()
    assert attempts.newest(run) == second and attempts.every(run) == [first, second]
    with pytest.raises(Superseded, match="attempt 1 no longer owns"):
        first.require_owner()


def test_numbers_count_past_four_digits(run: RunFolder) -> None:
    attempts.claim(run, 9999)
    later = attempts.claim(run)
    assert later.path.name == "10000" and attempts.newest(run) == later


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_number_that_is_taken_or_passed_is_refused(run: RunFolder, number: int) -> None:
    attempts.claim(run, 3)
    with pytest.raises(Superseded, match="taken by another process"):
        attempts.claim(run, number)
    assert [attempt.number for attempt in attempts.every(run)] == [3]


def test_of_two_processes_exactly_one_gets_a_number(run: RunFolder, tmp_path: Path) -> None:
    for round_ in range(3):
        folder, start = run.path / str(round_), tmp_path / f"go{round_}"
        racers = [subprocess.Popen([sys.executable, "-c", CLAIM, str(folder), str(start)]) for _ in range(3)]
        start.touch()
        assert sorted(racer.wait(30) for racer in racers) == [0, 7, 7]
        assert attempts.claim(RunFolder(folder)).number == 2


def test_a_process_is_alive_until_it_ends(run: RunFolder) -> None:
    attempt = attempts.claim(run)
    attempts.record_process(attempt)
    assert attempts.is_alive(attempt) is True
    assert read_json(attempt.process)["pid"] == os.getpid()
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    write_json(attempt.process, {**read_json(attempt.process), "pid": child.pid, "start_ticks": 1})
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, but not yet taken away: a zombie
    assert attempts.start_ticks(child.pid) is None
    assert attempts.is_alive(attempt) is False
    child.wait()
    assert attempts.is_alive(attempt) is False


def test_another_process_with_the_same_number_is_not_taken_for_it(run: RunFolder) -> None:
    attempt = attempts.claim(run)
    attempts.record_process(attempt)
    recorded = read_json(attempt.process)
    write_json(attempt.process, {**recorded, "start_ticks": recorded["start_ticks"] - 1})
    assert attempts.is_alive(attempt) is False
    write_json(attempt.process, {**recorded, "boot": "another boot of this machine"})
    assert attempts.is_alive(attempt) is False


def test_nobody_can_tell_about_another_host(run: RunFolder) -> None:
    attempt = attempts.claim(run)
    attempts.record_process(attempt)
    write_json(attempt.process, {**read_json(attempt.process), "host": "elsewhere"})
    assert attempts.is_alive(attempt) is None


def test_an_attempt_without_a_process_is_alive_for_moments(run: RunFolder) -> None:
    attempt = attempts.claim(run)
    assert attempts.is_alive(attempt) is True
    os.utime(attempt.path, (time.time() - 60, time.time() - 60))
    assert attempts.is_alive(attempt) is False

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from rlsweep.cli import logs
from rlsweep.store import outcome
from rlsweep.store.files import read_json, write_json
from rlsweep.store.outcome import Outcome

Call = Callable[..., Result]
KEY = "abcd11111111"
NAME = "rlsweep:s:0123456789"


def squeue(*states: str) -> str:
    """A script that says of job 7 one state after the other, the last one from then on."""
    said = [f"{state}|Priority||N/A|{NAME}" for state in states]
    cases = "".join(f"{number}) echo '7|{text}' ;;\n" for number, text in enumerate(said[:-1], 1))
    return f'case $(grep -c squeue "$(dirname "$0")/../calls.txt") in\n{cases}*) echo \'7|{said[-1]}\' ;;\nesac'


def test_logs_prints_the_log_of_the_attempt_meant(place: Any, call: Call) -> None:
    place.want("s", KEY, "abcd22222222", "cafe00000000")
    for text in ("first é\n", "second"):
        place.attempt(KEY, alive=False, state="failed").log.write_text(text)
    place.root.run("abcd22222222").path.mkdir()
    for meant in (KEY, "abcd1", "base:0", "0", "seed=0"):
        result = call("logs", meant)
        assert (result.exit_code, result.stdout) == (0, "second")
    assert call("logs", "abcd1", "--attempt", "1").stdout == "first é\n"
    assert "attempt 1 of 2" in call("logs", "abcd1", "--attempt", "1").stderr
    assert call("logs", "abcd1", "--follow", "--attempt", "1").stdout == "first é\nsecond"
    result = call("logs", "abcd1", "--attempt", "1", "--json")
    log = place.root.run(KEY).attempts / "0001" / "log.txt"
    told = {"run_key": KEY, "attempt": 1, "rank": 0, "job": None, "path": str(log), "lines": ["first é"]}
    assert json.loads(result.stdout) == told and result.stderr == ""
    log.unlink()
    assert json.loads(call("logs", "abcd1", "--attempt", "1", "--json").stdout)["lines"] == []
    assert call("logs", "abcd1", "--json", "--follow").exit_code == 2
    for arguments, message in {
        ("abcd",): "'abcd' is the start of several runs: abcd11111111, abcd22222222",
        ("abc",): "'abc' is not a run",
        ("base",): f"'base' means 3 runs: {KEY} (base:0), abcd22222222 (base:1), cafe00000000 (base:2); give one",
        ("0,1",): "'0,1' means 2 runs",
        ("base:9",): "'base:9' is not a run: give a key, its first four digits or more, a variant",
        ("abcd1", "--attempt", "7"): "has no attempt 7; it has: 1, 2",
        ("base:2",): "has not been started yet",
    }.items():
        result = call("logs", *arguments)
        assert result.exit_code == 2 and message in result.stderr


def test_each_rank_has_a_log_of_its_own(place: Any, call: Call) -> None:
    place.want("s", KEY)
    attempt = place.attempt(KEY, alive=False, state="failed")
    attempt.log.write_text("zero\n")
    attempt.rank_log(1).write_text("one\n")
    attempt.rank_log(10).write_text("ten\n")
    place.hand(KEY, "7", attempt)
    assert call("logs", "0", "--rank", "0").stdout == "zero\n"
    assert call("logs", "0", "--rank", "10").stdout == "ten\n"
    told = json.loads(call("logs", "0", "--rank", "1", "--json").stdout)
    assert (told["rank"], told["job"], told["lines"]) == (1, "7", ["one"])
    for more in ((), ("--follow",)):
        result = call("logs", "0", "--rank", "2", *more)
        assert result.exit_code == 2
        assert f"attempt 1 of run {KEY} has no rank 2; it has: 0, 1, 10" in result.stderr


def test_a_job_that_ended_before_its_attempt_is_told_by_slurms_own_log(place: Any, call: Call) -> None:
    place.want("s", KEY)
    place.hand(KEY, "7")
    result = call("logs", "0")
    assert result.exit_code == 2 and "has not been started yet: its job 7 has not begun" in result.stderr
    folder = place.root.sweep("s").jobs / "0123456789"
    folder.mkdir(parents=True)
    for name, text in {
        "7_0_log.err": "rlsweep: setup line 1 failed: false\n",
        "7_0_log.out": "hello\n",
        "7_1_log.err": "",
        "7_1_0_log.err": "an element of another array\n",
        "77_0_log.err": "another job\n",
    }.items():
        (folder / name).write_text(text)
    result = call("logs", "0")
    assert (result.exit_code, result.stdout) == (0, "hello\nrlsweep: setup line 1 failed: false\n")
    assert "job 7 has made no attempt; what Slurm wrote about it:" in result.stderr
    told = json.loads(call("logs", "0", "--json").stdout)
    assert (told["attempt"], told["job"], told["lines"]) == (None, "7", ["rlsweep: setup line 1 failed: false"])
    attempt = place.attempt(KEY, alive=False, state="failed")  # of an earlier submission
    attempt.log.write_text("before\n")
    assert call("logs", "0").stdout == result.stdout
    assert call("logs", "0", "--attempt", "1").stdout == "before\n"
    place.hand(KEY, "7", attempt)
    assert call("logs", "0").stdout == "before\n"


def test_a_run_whose_next_job_waits_shows_its_newest_attempt(place: Any, call: Call) -> None:
    place.want("s", KEY)
    place.attempt(KEY, alive=False, state="failed").log.write_text("before\n")
    place.hand(KEY, "7")
    result = call("logs", "0")
    assert result.stdout == "before\n" and "goes on in job 7, which has not begun" in result.stderr


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_POLL_S", 0.05), ("_NEXT_ATTEMPT_S", 0.5), ("_ASK_S", 0.4)):
        monkeypatch.setattr(logs, name, seconds)


@pytest.fixture
def later() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Do something while a command runs; its error is the test's."""
    threads: list[threading.Thread] = []
    errors: list[BaseException] = []

    def start(act: Callable[[], None]) -> None:
        def run() -> None:
            try:
                act()
            except BaseException as error:
                errors.append(error)

        threads.append(threading.Thread(target=run))
        threads[-1].start()

    yield start
    for thread in threads:
        thread.join()
    assert not errors


def test_following_goes_on_while_the_run_waits_in_the_queue(
    place: Any, call: Call, script: Callable[[str, str], Path], quick: None, later: Callable[..., None]
) -> None:
    """Saved at the time limit, queued again, and finished in the second attempt."""
    place.want("s", KEY)
    first = place.attempt(KEY, alive=False, state="interrupted", step=3)
    first.log.write_text("first\n")
    place.hand(KEY, "7", first)
    calls = script("squeue", squeue("PENDING", "PENDING", "RUNNING"))

    def go_on() -> None:
        while calls.read_text().count("squeue") < 3:
            time.sleep(0.05)
        second = place.attempt(KEY, alive=True)
        place.hand(KEY, "7", second)
        second.log.write_text("second\n")
        time.sleep(1)
        with open(second.log, "a") as log:
            log.write("done\n")
        outcome.write(second.run, Outcome("finished", 10, "budget reached", 2))
        write_json(second.process, {**read_json(second.process), "start_ticks": 1})

    later(go_on)
    result = call("logs", "0", "--follow")
    assert (result.exit_code, result.stdout) == (0, "first\nsecond\ndone\n")
    assert result.stderr.count("waits in the queue: waits behind jobs of higher priority") == 1


def test_following_ends_with_slurms_own_log_where_no_attempt_was_made(
    place: Any, call: Call, script: Callable[[str, str], Path], quick: None
) -> None:
    place.want("s", KEY)
    place.hand(KEY, "7")
    folder = place.root.sweep("s").jobs / "0123456789"
    folder.mkdir(parents=True)
    (folder / "7_0_log.err").write_text("rlsweep: setup line 1 failed: false\n")
    script("squeue", squeue("PENDING", "RUNNING", "FAILED"))
    result = call("logs", "0", "--follow")
    assert (result.exit_code, result.stdout) == (0, "rlsweep: setup line 1 failed: false\n")
    assert "log.txt" not in result.stderr and "job 7 has made no attempt" in result.stderr


def test_an_attempt_that_was_refused_says_why(
    place: Any, call: Call, script: Callable[[str, str], Path], quick: None
) -> None:
    """Its trainer was never started: there is no log."""
    place.want("s", KEY)
    first = place.attempt(KEY, alive=False, state="interrupted", step=3)
    first.log.write_text("first\n")
    second = place.attempt(KEY, alive=False)
    outcome.write(second.run, Outcome("interrupted", 3, "the cap is reached", 2))
    place.hand(KEY, "7", second)
    script("squeue", squeue("COMPLETED"))
    words = "attempt 2 printed nothing; it ended interrupted: the cap is reached"
    for more in ((), ("--follow",)):
        result = call("logs", "0", *more)
        assert (result.exit_code, result.stdout) == (0, "") and result.stderr.count(words) == 1
    result = call("logs", "0", "--attempt", "1")
    assert (result.stdout, "printed nothing" in result.stderr) == ("first\n", False)


def test_following_waits_for_a_scheduler_that_is_out_of_reach(
    place: Any, call: Call, script: Callable[[str, str], Path], quick: None, later: Callable[..., None]
) -> None:
    place.want("s", KEY)
    first = place.attempt(KEY, alive=False, state="interrupted", step=3)
    first.log.write_text("first\n")
    place.hand(KEY, "7", first)
    calls = script("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")

    def recover() -> None:
        while calls.read_text().count("squeue") < 3:
            time.sleep(0.05)
        script("squeue", squeue("CANCELLED"))

    later(recover)
    result = call("logs", "0", "--follow")
    assert (result.exit_code, result.stdout) == (0, "first\n")
    assert result.stderr.count("the scheduler can't be reached") == 1


def test_following_asks_the_scheduler_rarely(
    place: Any, call: Call, script: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert logs._ASK_S >= 30
    monkeypatch.setattr(logs, "_NEXT_ATTEMPT_S", 1.0)
    monkeypatch.setattr(logs, "_POLL_S", 0.05)
    place.want("s", KEY)
    place.hand(KEY, "7", place.attempt(KEY, alive=False, state="interrupted", step=3))
    calls = script("squeue", squeue("CANCELLED"))
    assert call("logs", "0", "--follow").exit_code == 0
    assert calls.read_text().count("squeue") == 1

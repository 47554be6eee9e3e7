import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from rlsweep.errors import RlsweepError
from rlsweep.launch import local
from rlsweep.launch.cancel import cancel
from rlsweep.launch.display import Evaluated
from rlsweep.launch.job import start
from rlsweep.launch.local import Result, run_all
from rlsweep.launch.plan import Planned, decide, decide_run
from rlsweep.launch.submit import submitting, write_down
from rlsweep.store import attempts, ledger, outcome
from rlsweep.store.attempts import Attempt, Superseded
from rlsweep.store.files import read_json, write_json
from rlsweep.store.journal import read_rows
from rlsweep.store.layout import Root, RunFolder
from rlsweep.store.state import look
from rlsweep.sweep.expand import Run, Sweep

Make = Callable[..., Sweep]
Behave = Callable[[str], None]

LAUNCHER = """
import sys
from pathlib import Path
from rlsweep.launch import local
from rlsweep.launch.display import Lines
from rlsweep.launch.plan import decide
from rlsweep.launch.submit import submitting, write_down
from rlsweep.store.layout import Root
from rlsweep.sweep.expand import expand
local.TRAINER = tuple(sys.argv[3:])
local._FOLLOW_S = 0.1
root = Root(Path(sys.argv[1]))
sweep = expand("scalerl", scale="tiny", overrides=["budget.steps=4"], vary=["loss=cispo,dapo"], name=sys.argv[2])
decisions = decide(sweep, root)
with submitting(root, sweep.name) as claim:
    result = local.run_all(write_down(sweep, root, decisions), root, decisions, 2, Lines(), claim)
sys.exit(130 if result.interrupted else 0)
"""


class Told:
    """A display that remembers."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.most_at_once = 0
        self.at_work: set[str] = set()
        self.steps: dict[str, int] = {}

    def say(self, message: str) -> None:
        self.lines.append(message)

    def started(self, key: str, name: str, total: int, note: str) -> None:
        self.at_work.add(key)
        self.most_at_once = max(self.most_at_once, len(self.at_work))
        self.lines.append(f"{name}: {note}")

    def progress(self, key: str, step: int, evaluation: Evaluated | None) -> None:
        self.steps[key] = step

    def ended(self, key: str, text: str) -> None:
        self.at_work.remove(key)
        self.lines.append(text)

    def close(self) -> None:
        pass


def launch(sweep: Sweep, root: Root, slots: int = 2) -> tuple[Result, Told]:
    told = Told()
    decisions = decide(sweep, root)
    with submitting(root, sweep.name) as claim:
        return run_all(write_down(sweep, root, decisions), root, decisions, slots, told, claim), told


def launcher(root: Root, name: str = "s") -> "subprocess.Popen[str]":
    """The runner in a process of its own, which can be killed. Sweeps of any name have the same runs."""
    arguments = [sys.executable, "-c", LAUNCHER, str(root.path), name, *local.TRAINER]
    return subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def at_step(root: Root, sweep: Sweep, step: int) -> None:
    wait_for(lambda: all(any(row["step"] == step for row in rows(root, run.key)) for run in sweep.runs))


def rows(root: Root, key: str) -> list[dict[str, object]]:
    return read_rows(root.run(key).journal)


def states(root: Root, sweep: Sweep) -> list[tuple[str, int]]:
    return [(look(root.run(run.key)).state, look(root.run(run.key)).step) for run in sweep.runs]


def test_runs_are_trained_as_many_at_once_as_there_are_slots(root: Root, sweep: Make) -> None:
    wanted = sweep(seeds="2")
    result, told = launch(wanted, root)
    assert result == Result((), False) and told.most_at_once == 2
    assert states(root, wanted) == [("finished", 4)] * 4
    assert set(told.steps.values()) == {4}
    assert [row["attempt"] for row in ledger.read(root.sweep("s")) if row["kind"] == "attempt"] == [1] * 4
    log = attempts.newest(root.run(wanted.runs[0].key)).log.read_text()
    assert "threads 1" in log
    again, told = launch(wanted, root)
    assert again == Result((), False) and told.lines == []


def test_the_embedded_model_is_made_once_for_all_runs_and_once_for_each_kind(root: Root, sweep: Make) -> None:
    _, told = launch(sweep(), root)
    assert told.lines[0] == "making the embedded model (once)"
    assert len((root.path / "prepared").read_text().split()) == 1
    launch(sweep(vary="model.layers=2,1"), root)
    assert len((root.path / "prepared").read_text().split()) == 2
    launch(sweep(vary="model.width=64,32", seeds="2"), root)  # width 64 is the model of runs that have saved
    assert len((root.path / "prepared").read_text().split()) == 3


def test_a_model_that_cannot_be_made_fails_its_runs(root: Root, sweep: Make, behave: Behave) -> None:
    wanted = sweep(vary="model.layers=2,1")
    behave(f"{wanted.runs[1].key} unmakeable")
    result, _ = launch(wanted, root)
    assert [(each.run.variant, each.log) for each in result.failures] == [("model.layers=1", ("no model for you",))]
    assert states(root, wanted) == [("finished", 4), ("waiting", 0)]


def test_a_failing_run_is_named_with_its_log_and_the_others_go_on(root: Root, sweep: Make, behave: Behave) -> None:
    wanted = sweep()
    behave(f"{wanted.runs[0].key} crash")
    result, _ = launch(wanted, root)
    failure = result.failures[0]
    assert len(result.failures) == 1 and failure.run.variant == "loss=cispo"
    assert failure.reason == "exit code 1: ValueError: no such thing"
    assert failure.log[-1] == "ValueError: no such thing"
    assert states(root, wanted) == [("failed", 0), ("finished", 4)]
    assert len(attempts.every(root.run(failure.run.key))) == 1
    behave("")
    assert launch(wanted, root)[0] == Result((), False)
    assert states(root, wanted) == [("finished", 4)] * 2


@pytest.mark.parametrize("word", ["killed", "stops"])
def test_a_run_that_is_killed_or_stops_unasked_is_tried_once_more(
    root: Root, sweep: Make, behave: Behave, word: str
) -> None:
    wanted = sweep()
    behave(f"{wanted.runs[0].key} {word} 1\n{wanted.runs[1].key} {word}")
    result, _ = launch(wanted, root)
    assert states(root, wanted)[0] == ("finished", 4)
    assert [each.run.variant for each in result.failures] == ["loss=dapo"]
    assert result.failures[0].reason == {"killed": "killed by SIGKILL (out of memory?)", "stops": "preempted"}[word]
    assert [len(attempts.every(root.run(run.key))) for run in wanted.runs] == [2, 2]


def test_a_diverged_run_is_a_result_and_not_a_failure(root: Root, sweep: Make, behave: Behave) -> None:
    wanted = sweep()
    behave(f"{wanted.runs[0].key} diverges")
    assert launch(wanted, root)[0] == Result((), False)
    assert states(root, wanted) == [("diverged", 3), ("finished", 4)]


def test_a_raised_budget_continues_the_runs(root: Root, sweep: Make) -> None:
    launch(sweep(4), root)
    more = sweep(7)
    launch(more, root)
    assert states(root, more) == [("finished", 7)] * 2
    assert [row["step"] for row in rows(root, more.runs[0].key) if row["kind"] == "step"] == [1, 2, 3, 4, 5, 6, 7]


def test_a_damaged_run_fails_alone(root: Root, sweep: Make, behave: Behave) -> None:
    wanted = sweep()
    decisions = decide(wanted, root)
    with submitting(root, "s") as claim:
        folder = write_down(wanted, root, decisions)
        root.run(wanted.runs[0].key).attempts.write_text("this should be a folder")
        result = run_all(folder, root, decisions, 1, Told(), claim)
    assert [each.run.variant for each in result.failures] == ["loss=cispo"]
    assert "attempts" in result.failures[0].reason
    assert look(root.run(wanted.runs[1].key)).state == "finished"


def test_a_killed_launchers_runs_are_adopted_and_not_doubled(root: Root, sweep: Make, behave: Behave) -> None:
    wanted = sweep()
    behave("* slow")
    process = launcher(root)
    at_step(root, wanted, 2)
    process.kill()
    process.wait()
    assert [each.action for each in decide(wanted, root)] == ["leave", "leave"]
    second = launcher(root)
    assert second.stderr is not None
    for _ in range(2):
        assert "attempt 1 found at work" in second.stderr.readline()
    for run in wanted.runs:
        (root.run(run.key).path / "go").touch()
    assert second.wait(120) == 0
    second.stderr.close()
    assert states(root, wanted) == [("finished", 4)] * 2
    assert [len(attempts.every(root.run(run.key))) for run in wanted.runs] == [1, 1]


def test_interrupting_lets_the_runs_save_and_running_again_goes_on(root: Root, sweep: Make, behave: Behave) -> None:
    wanted = sweep()
    behave("* slow")
    process = launcher(root)
    at_step(root, wanted, 2)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    assert process.stderr is not None
    assert "stopping: waiting up to 30 s for 2 run(s) to save" in process.stderr.read()
    process.stderr.close()
    assert [state for state, _ in states(root, wanted)] == ["interrupted"] * 2
    for run in wanted.runs:
        (root.run(run.key).path / "go").touch()
    assert launch(wanted, root)[0] == Result((), False)
    for run in wanted.runs:
        assert [row["step"] for row in rows(root, run.key) if row["kind"] == "step"] == [1, 2, 3, 4]


def test_interrupting_twice_kills_what_does_not_listen(root: Root, sweep: Make, behave: Behave) -> None:
    wanted = sweep()
    behave("* slow\n* deaf")
    process = launcher(root)
    at_step(root, wanted, 2)
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    while "stopping" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    process.stderr.close()
    assert [state for state, _ in states(root, wanted)] == ["interrupted"] * 2
    for run in wanted.runs:
        owner = attempts.newest(root.run(run.key))
        assert owner is not None and not attempts.is_alive(owner)


def test_orphans_end_with_the_launcher_that_adopted_them_but_anothers_runs_go_on(
    root: Root, sweep: Make, behave: Behave
) -> None:
    wanted = sweep()
    behave("* slow")
    first = launcher(root)
    at_step(root, wanted, 2)
    second = launcher(root, "t")
    assert second.stderr is not None and first.stderr is not None
    for _ in range(2):
        second.stderr.readline()
    # Under nohup the hangup is ignored, by us too.
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    second.send_signal(signal.SIGTERM if ignored else signal.SIGHUP)
    assert second.wait(120) == 130
    second.stderr.close()
    assert [state for state, _ in states(root, wanted)] == ["running"] * 2
    first.kill()
    first.wait()
    first.stderr.close()
    third = launcher(root)
    assert third.stderr is not None
    for _ in range(2):
        third.stderr.readline()
    third.send_signal(signal.SIGINT)
    assert third.wait(120) == 130
    third.stderr.close()
    assert [state for state, _ in states(root, wanted)] == ["interrupted"] * 2


def test_cancelling_ends_a_run_and_its_launcher_does_not_try_again(root: Root, sweep: Make, behave: Behave) -> None:
    wanted = sweep()
    behave("* slow")
    process = launcher(root)
    at_step(root, wanted, 2)
    runs = [root.run(run.key) for run in wanted.runs]
    answers = cancel([runs[0]], 20)
    assert [(run.key, rest, text) for run, rest, text in answers] == [(runs[0].key, True, "ended (attempt 1)")]
    (runs[1].path / "go").touch()
    assert process.wait(120) == 0
    assert process.stderr is not None
    assert f"{runs[0].key} loss=cispo seed 0: cancelled at step" in process.stderr.read()
    process.stderr.close()
    assert [look(run).state for run in runs] == ["interrupted", "finished"]
    assert cancel(runs, 1) == [
        (runs[0], True, "is not running (interrupted)"),
        (runs[1], True, "is not running (finished)"),
    ]


def test_cancelling_never_signals_another_process_or_another_host(
    root: Root, sweep: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    signalled: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: signalled.append(pid))
    run = root.run("0123456789ab")
    attempt = attempts.claim(run)
    attempts.record_process(attempt)
    recorded = read_json(attempt.process)
    write_json(attempt.process, {**recorded, "start_ticks": recorded["start_ticks"] - 1})
    assert cancel([run], 0) == [(run, True, "is not running (lost)")]
    write_json(attempt.process, {**recorded, "host": "elsewhere"})
    assert cancel([run], 0) == [(run, False, "is at work on elsewhere; cancel it there")]
    write_json(attempt.process, recorded)
    write_json(attempt.launcher, recorded)
    assert cancel([run], 0) == [(run, False, "is just being started; try again in a moment")]
    assert signalled == [] and not attempt.cancelled.exists()


def test_an_outcome_of_the_launchers_names_the_attempt(root: Root, sweep: Make, behave: Behave) -> None:
    behave("* crash")
    wanted = sweep(vary="loss=cispo")
    launch(wanted, root)
    ended = outcome.read(root.run(wanted.runs[0].key))
    assert ended is not None and ended.attempt == 1


def test_an_adopted_run_goes_on_to_the_budget_asked_for_now(root: Root, sweep: Make, behave: Behave) -> None:
    behave("* slow")
    process = launcher(root)
    at_step(root, sweep(), 2)
    process.kill()
    process.wait()
    assert process.stderr is not None
    process.stderr.close()
    for run in sweep().runs:
        (root.run(run.key).path / "go").touch()
    assert launch(sweep(6), root)[0] == Result((), False)
    assert states(root, sweep(6)) == [("finished", 6)] * 2


def test_an_attempt_that_another_launcher_makes_between_decision_and_claim_is_not_superseded(
    root: Root, sweep: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = sweep(vary="loss=cispo")
    started: list[subprocess.Popen[bytes] | None] = []

    def decide_late(run: Run, folder: RunFolder) -> Planned:
        planned = decide_run(run, folder)
        if not started:
            started.append(start(run, attempts.claim(folder), local.TRAINER).process)
        return planned

    monkeypatch.setattr(local, "decide_run", decide_late)
    assert launch(wanted, root)[0] == Result((), False)
    assert [each.number for each in attempts.every(root.run(wanted.runs[0].key))] == [1]
    assert states(root, wanted) == [("finished", 4)] and started[0] is not None and started[0].wait() == 0
    assert [row["kind"] for row in ledger.read(root.sweep("s"))] == ["intent"]


def test_a_claim_lost_to_a_faster_launcher_is_tried_again_after_a_wait(
    root: Root, sweep: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    claim, sleep = attempts.claim, time.sleep

    def lose_twice(run: RunFolder, number: int | None = None) -> Attempt:
        events.append("claim")
        if events.count("claim") <= 2:
            raise Superseded("taken")
        return claim(run, number)

    def note_sleep(seconds: float) -> None:
        events.append("sleep")
        sleep(seconds)

    monkeypatch.setattr(attempts, "claim", lose_twice)
    monkeypatch.setattr(time, "sleep", note_sleep)
    wanted = sweep(vary="loss=cispo")
    assert launch(wanted, root)[0] == Result((), False)
    assert states(root, wanted) == [("finished", 4)] and events.count("claim") == 3
    assert ("claim", "claim") not in itertools.pairwise(events)


def test_a_launcher_taken_for_dead_lets_its_runs_save_and_ends(
    root: Root, sweep: Make, behave: Behave, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = sweep()
    behave("* slow")
    monkeypatch.setattr(local, "_REFRESH_S", 0.0)
    holder = root.sweep("s").path / "submitter" / "holder.json"

    class Robbed(Told):
        def progress(self, key: str, step: int, evaluation: Evaluated | None) -> None:
            write_json(holder, {**read_json(holder), "token": "another"})

    decisions = decide(wanted, root)
    with pytest.raises(RlsweepError, match="another process took over"), submitting(root, "s") as claim:
        run_all(write_down(wanted, root, decisions), root, decisions, 2, Robbed(), claim)
    assert {state for state, _ in states(root, wanted)} == {"interrupted"}
    assert holder.exists()

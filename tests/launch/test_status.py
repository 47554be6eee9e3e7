import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rlsweep.launch import scheduler
from rlsweep.launch.plan import decide
from rlsweep.launch.status import RunStatus, counts, status
from rlsweep.launch.submit import submitting, write_down
from rlsweep.report.build import build
from rlsweep.store import attempts, outcome
from rlsweep.store.files import read_json, write_json
from rlsweep.store.jobs import AttemptJob, Submission, write_attempt_job, write_submission
from rlsweep.store.journal import Journal
from rlsweep.store.layout import Root, RunFolder
from rlsweep.store.outcome import Outcome
from rlsweep.sweep.expand import Sweep

Script = Callable[[str, str], Path]
Make = Callable[..., Sweep]


@pytest.fixture
def runs(root: Root, sweep: Make) -> list[RunFolder]:
    """Six runs in elements 0 to 5 of job 9: 0 at work, 1 held, 2 finished, 3 starting again, 4 forgotten, 5 local."""
    wanted = sweep(100, "loss=cispo,dapo,gspo", "2")
    with submitting(root, wanted.name):
        write_down(wanted, root, decide(wanted, root))
    found = [root.run(run.key) for run in wanted.runs]
    for number, run in enumerate(found):
        if number < 5:
            job = f"9_{number}"
            write_submission(run, Submission("aa", "s", "c", job, time.time() - 9e3, 1, 1, 60, 20, "slurmdbd", 120))
        if number in (1, 4):
            continue
        attempt = attempts.claim(run)
        attempts.record_process(attempt)
        began = time.time() - 1000
        elsewhere = {"started": began} | ({"host": "n1"} if number < 5 else {})
        write_json(attempt.process, {**read_json(attempt.process), **elsewhere})
        if number < 5:
            write_attempt_job(attempt, AttemptJob("aa", f"9_{number}", 0, ["n1"], 1, "n1", 1, began))
        with Journal(run, attempt) as journal:
            for step, ago in ((10, 900), (20, 0)):
                journal.append({"kind": "step", "step": step, "time": time.time() - ago, "metrics": {}})
            rate = {"evaluation/pass_rate": 0.25}
            journal.append({"kind": "evaluation", "step": 20, "time": time.time(), "metrics": rate})
    outcome.write(found[2], Outcome("finished", 100, "reached its budget"))
    return found


def look(root: Root) -> list[RunStatus]:
    found = status(root.sweep("s"), root)
    assert found.scheduler_error is None
    return found.runs


def queue(script: Script) -> Path:
    start = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() - 10))
    script("sacct", "echo '9_4|NODE_FAIL|0:0|n2|2026-01-01T00:00:00|2026-01-01T00:00:00|rlsweep:s:aa'")
    return script(
        "squeue",
        "cat <<END\n9_0|RUNNING|None|n1|N/A|rlsweep:s:aa\n9_1|PENDING|JobHeldUser||N/A|rlsweep:s:aa\n"
        f"9_3|RUNNING|None|n4|{start}|rlsweep:s:aa\nEND",
    )


def test_what_folders_and_scheduler_say_together_with_two_calls(
    root: Root, runs: list[RunFolder], script: Script
) -> None:
    calls = queue(script)
    work, held, finished, starting, forgotten, local = look(root)
    assert calls.read_text().count("\n") == 2
    assert [run.state for run in (work, held, finished, starting, forgotten, local)] == [
        *("running", "pending", "finished", "running", "lost", "running")
    ]
    assert (work.job, work.nodes, work.host, work.attempt, work.pass_rate) == ("9_0", "n1", "n1", 1, 0.25)
    assert work.eta_s == pytest.approx(80 * 90, rel=0.1)
    assert (held.step, held.release, held.eta_s, held.nodes) == (0, "scontrol release 9_1", None, None)
    # Its newest attempt is one before the requeue: at that pace nothing is trained now.
    assert (starting.reason, starting.eta_s, starting.host) == ("starting on n4", None, "n4")
    assert forgotten.reason == "its job 9_4 lost its node before an attempt began"
    assert (local.job, local.nodes, finished.eta_s) == (None, None, None)
    assert counts([work, held, finished]) == {"pending": 1, "running": 1, "finished": 1}


def test_without_a_scheduler_folders_are_told_and_the_error_with_them(
    root: Root, runs: list[RunFolder], script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "_WAITS_S", ())
    calls = script("squeue", "echo Unable to contact slurm controller >&2; exit 1")
    found = status(root.sweep("s"), root)
    assert found.scheduler_error is not None and "Unable to contact" in str(found.scheduler_error)
    assert calls.read_text().count("\n") == 1
    assert [run.state for run in found.runs] == [*("running", "pending", "finished", "running", "pending", "running")]
    assert "could not be asked" in found.runs[0].reason and "could not be asked" in found.runs[1].reason
    assert [row.state for variant in build(root, "s").variants for row in variant.runs].count("finished") == 1


def test_nobody_is_asked_where_no_job_can_change_anything(root: Root, runs: list[RunFolder], script: Script) -> None:
    calls = queue(script)
    for run in runs:
        if (owner := attempts.newest(run)) is not None:
            write_json(owner.process, {**read_json(owner.process), "start_ticks": 1})
            outcome.write(run, Outcome("diverged", 20, "nan"))
        else:
            run.submission.unlink()
    assert {run.state for run in look(root)} == {"diverged", "waiting"}
    assert calls.read_text() == ""

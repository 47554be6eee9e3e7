"""Jobs of a sweep that no wanted run knows of: `status` tells of them, `cancel --sweep` ends them; Slurm is played."""

import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlsweep.launch import cancel as module
from rlsweep.launch import scheduler
from rlsweep.launch.cancel import cancel_sweep
from rlsweep.launch.status import status
from rlsweep.store import ledger, outcome
from rlsweep.store.claim import claimed
from rlsweep.store.jobs import Submission, read_submission, write_submission
from rlsweep.store.layout import Root, RunFolder
from rlsweep.store.outcome import Outcome

Script = Callable[[str, str], Path]
OLD, NEW, CUT = "a" * 12, "b" * 12, "c" * 12


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_WAITS_S", ())
    monkeypatch.setattr(module, "_ASKS_S", (0.01, 0.02))


def want(root: Root, key: str, variant_key: str, sweep: str = "s", variant: str = "base", seed: int = 0) -> None:
    row = {"kind": "intent", "time": 1.0, "variant": variant, "variant_key": variant_key, "seed": seed, "steps": 10}
    ledger.append(root.sweep(sweep), [{**row, "run_key": key, "difference": {}}])


def hand(root: Root, key: str, job: str, token: str, sweep: str = "s") -> RunFolder:
    run = root.run(key)
    run.path.mkdir(parents=True, exist_ok=True)
    write_submission(run, Submission(token, sweep, "c", job, time.time(), 1, 1, 60, 20, "slurmdbd", 120))
    return run


def begin(root: Root, token: str, *keys: str, cluster: str = "c") -> None:
    row = {"kind": "submitting", "time": 1.0, "token": token, "cluster": cluster, "runs": list(keys)}
    ledger.append(root.sweep("s"), [row])


def told(row: dict[str, Any], root: Root) -> None:
    ledger.append(root.sweep("s"), [{"time": 1.0, **row}])


@pytest.fixture
def queue(script: Script, tmp_path: Path) -> Callable[..., Path]:
    """A queue that loses jobs by scancel; the file with a line for each call."""

    def make(*jobs: str) -> Path:
        file = shlex.quote(str(tmp_path / "queue"))
        (tmp_path / "queue").write_text("".join(f"{job}\n" for job in jobs))
        script("sacct", "")
        script("scancel", f'for id in "$@"; do sed -i "/^$id[|_]/d" {file}; done')
        return script("squeue", f"cat {file}")

    return make


def calls(file: Path, *names: str) -> list[str]:
    return [line for line in file.read_text().splitlines() if line.split()[0] in names]


def test_a_run_that_another_of_its_name_has_replaced_is_told_and_ended_while_its_job_lives(
    root: Root, queue: Callable[..., Path]
) -> None:
    want(root, OLD, "V1")
    want(root, NEW, "V2")
    hand(root, OLD, "7", "aa")
    hand(root, NEW, "8", "bb")
    file = queue("7|RUNNING|None|n1|N/A|rlsweep:s:aa", "8|PENDING|Priority||N/A|rlsweep:s:bb")
    found = status(root.sweep("s"), root)
    assert len(calls(file, "squeue", "sacct")) == 1
    assert [run.run_key for run in found.runs] == [NEW]
    (old,) = found.replaced
    assert (old.run_key, old.state, old.job, old.nodes) == (OLD, "running", "7", "n1")
    assert old.reason == "no longer asked for; starting on n1"
    dropped, answers = cancel_sweep(root.sweep("s"), root, 30)
    assert dropped == 0 and [(run.key, at_rest) for run, at_rest, _ in answers] == [(NEW, True), (OLD, True)]
    assert calls(file, "scancel") == ["scancel 8 7"]
    assert status(root.sweep("s"), root).replaced == []
    assert len(cancel_sweep(root.sweep("s"), root, 30)[1]) == 1


@pytest.mark.parametrize("why", ["over", "wanted elsewhere", "handed on", "somebody else's job", "local"])
def test_what_is_over_or_others_ask_for_is_left_alone(root: Root, queue: Callable[..., Path], why: str) -> None:
    want(root, OLD, "V1")
    want(root, NEW, "V2")
    name = "rlsweep:s:aa"
    if why != "local":
        run = hand(root, OLD, "7", "aa", sweep="t" if why == "handed on" else "s")
    if why == "over":
        outcome.write(run, Outcome("finished", 10, "budget"))
    if why == "wanted elsewhere":
        want(root, OLD, "V1", sweep="t")
    if why == "somebody else's job":
        name = "their training"
    file = queue(*([] if why == "over" else [f"7|RUNNING|None|n1|N/A|{name}"]))
    assert status(root.sweep("s"), root).replaced == []
    cancel_sweep(root.sweep("s"), root, 30)
    assert calls(file, "scancel") == []
    if why == "local":  # no call where nothing was ever handed to a job
        assert calls(file, "squeue") == []


def test_of_a_run_that_another_sweep_wants_too_that_is_said(root: Root, queue: Callable[..., Path]) -> None:
    want(root, OLD, "V1")
    want(root, NEW, "V1", seed=1)
    want(root, OLD, "V1", sweep="t")
    hand(root, OLD, "7", "aa")
    queue("7|PENDING|Priority||N/A|rlsweep:s:aa")
    words = [text for _, _, text in cancel_sweep(root.sweep("s"), root, 30)[1]]
    assert words[0].endswith("begins at the start when asked for again; sweep t asks for it, too")
    assert words[1] == "is not running (waiting)"


def cut_short(root: Root) -> None:
    """Killed after sbatch had taken an array of two, and one of its runs was told."""
    want(root, CUT, "V1")
    want(root, NEW, "V1", seed=1)
    begin(root, "aa", CUT, NEW)
    hand(root, CUT, "7_0", "aa")


HELD = ("7_0|PENDING|JobHeldUser||N/A|rlsweep:s:aa", "7_1|PENDING|JobHeldUser||N/A|rlsweep:s:aa")


def test_jobs_of_a_submission_that_was_cut_short_are_told_and_taken_out(root: Root, queue: Callable[..., Path]) -> None:
    cut_short(root)
    (root.sweep("s").jobs / "aa").mkdir(parents=True)
    file = queue(*HELD, "9|PENDING|JobHeldUser||N/A|rlsweep:t:bb")
    found = status(root.sweep("s"), root)
    assert found.cut_short == ["7"] and [run.state for run in found.runs] == ["pending", "waiting"]
    assert len(calls(file, "squeue", "sacct")) == 1
    dropped, answers = cancel_sweep(root.sweep("s"), root, 30)
    assert (dropped, [text for _, _, text in answers]) == (1, ["is not running (waiting)"] * 2)
    assert calls(file, "scancel") == ["scancel --state=PENDING 7"]
    assert read_submission(root.run(CUT)) is None and not (root.sweep("s").jobs / "aa").exists()
    assert not (root.sweep("s").path / "submitter").exists()
    assert status(root.sweep("s"), root).cut_short == []


def test_a_submission_that_is_being_made_is_not_cut_short(root: Root, queue: Callable[..., Path]) -> None:
    cut_short(root)
    file = queue(*HELD)
    with claimed(root.sweep("s").path / "submitter") as claim:
        assert claim is not None
        assert status(root.sweep("s"), root).cut_short == []
        assert cancel_sweep(root.sweep("s"), root, 30)[0] == 0
    assert calls(file, "scancel") == ["scancel 7_0"]  # as a job of a run


def test_what_was_seen_to_since_is_not_asked_about(root: Root, queue: Callable[..., Path]) -> None:
    """The next submitter has cancelled the first; the second came through; of another profile's nobody knows."""
    want(root, CUT, "V1")
    begin(root, "aa", CUT)
    begin(root, "bb", CUT)
    told({"kind": "submitted", "token": "bb", "job": "9", "runs": [CUT]}, root)
    file = queue(*HELD)
    assert status(root.sweep("s"), root).cut_short == [] and calls(file, "squeue") == []
    begin(root, "aa", CUT, cluster="other")
    assert status(root.sweep("s"), root).cut_short == ["7"]


def test_where_the_scheduler_is_out_of_reach_nobody_knows(root: Root, queue: Callable[..., Path]) -> None:
    cut_short(root)
    file = queue()
    (Path(os.environ["PATH"].split(os.pathsep)[0]) / "squeue").write_text(
        "#!/bin/bash\necho 'Unable to contact slurm controller (connect failure)' >&2; exit 1\n"
    )
    found = status(root.sweep("s"), root)
    assert found.scheduler_error is not None and (found.cut_short, found.replaced) == ([], [])
    assert calls(file, "scancel") == []

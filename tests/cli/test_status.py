import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from rlsweep.launch.status import RunStatus, Status
from rlsweep.store import ledger
from rlsweep.store.jobs import read_submission, write_submission

Call = Callable[..., Result]


def test_each_state_is_told_from_ledger_folder_and_process(place: Any, call: Call) -> None:
    keys = [f"{number:012x}" for number in range(8)]
    place.want("s", *keys)
    place.attempt(keys[1], alive=True)
    for number, state in enumerate(["finished", "interrupted", "failed", "diverged"], 2):
        place.attempt(keys[number], alive=False, state=state, step=10 if state == "finished" else 4)
    place.attempt(keys[6], alive=False)
    place.attempt(keys[7], alive=False, state="finished", step=5, rate=float("nan"))
    found = json.loads(call("status", "--json").stdout)
    assert found["sweep"] == "s" and found["root"] == str(place.root.path)
    assert [(run["state"], run["step"], run["total"], run["pass_rate"], run["attempt"]) for run in found["runs"]] == [
        ("waiting", 0, 10, None, None),
        ("running", 3, 10, 0.5, 1),
        ("finished", 10, 10, 0.5, 1),
        ("interrupted", 4, 10, 0.5, 1),
        ("failed", 4, 10, 0.5, 1),
        ("diverged", 4, 10, 0.5, 1),
        ("lost", 3, 10, 0.5, 1),
        ("waiting", 5, 10, None, 1),
    ]
    result = call("status")
    lines = [line.split("\t") for line in result.stdout.splitlines()]
    assert [line[:2] for line in lines] == [[str(index), key] for index, key in enumerate(keys)]
    assert lines[2][:10] == ["2", keys[2], "base", "2", "finished", "10", "10", "0.500", "1", "-"]
    assert lines[2][10:13] == [found["runs"][2]["host"], "-", "-"] and lines[2][13].startswith("because finished")
    assert "2 waiting, 1 running" in result.stderr


@pytest.mark.parametrize(
    ("states", "code"),
    [
        (("finished", "diverged"), 0),
        (("finished", "waiting"), 1),
        (("finished", "running"), 1),
        (("failed", "running"), 3),
        (("lost", "finished"), 3),
        (("interrupted", "waiting"), 3),
    ],
)
def test_check_tells_by_the_exit_code_how_the_runs_are(
    place: Any, call: Call, states: tuple[str, str], code: int
) -> None:
    keys = ("a" * 12, "b" * 12)
    place.want("s", *keys)
    for key, state in zip(keys, states, strict=True):
        if state == "running":
            place.attempt(key, alive=True)
        elif state != "waiting":
            place.attempt(key, alive=False, state=None if state == "lost" else state, step=10)
    assert call("status").exit_code == 0
    result = call("status", "s", "--check", "--json")
    assert result.exit_code == code and [run["state"] for run in json.loads(result.stdout)["runs"]] == list(states)


def test_an_unknown_sweep_is_refused_with_the_valid_ones(place: Any, call: Call) -> None:
    result = call("status")
    assert result.exit_code == 2 and f"there is no sweep under {place.root.path} yet" in result.stderr
    place.want("s", "a" * 12)
    result = call("status", "t")
    assert result.exit_code == 2 and "'t' is not a sweep; valid: s" in result.stderr
    assert not place.root.sweep("t").path.exists()


NAME = "rlsweep:s:0123456789"
HELD = f"printf '%s\\n' '7_0|PENDING|JobHeldUser||N/A|{NAME}' '7_1|PENDING|Priority||N/A|{NAME}'"
DOWN = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"


def test_a_held_job_is_told_with_the_command_that_releases_it(
    place: Any, call: Call, script: Callable[[str, str], Path], terminal: Callable[[int], None]
) -> None:
    place.want("s", "a" * 12, "b" * 12)
    place.hand("a" * 12, "7_0")
    place.hand("b" * 12, "7_1")
    calls = script("squeue", HELD)
    result = call("status")
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert [(row[4], row[11], row[12]) for row in rows] == [
        ("pending", "7_0", "scontrol release 7_0"),
        ("pending", "7_1", "-"),
    ]
    assert "waits behind jobs of higher priority" in rows[1][13]
    assert "held jobs start after: scontrol release 7_0\n" in result.stderr
    assert calls.read_text().count("\n") == 1
    runs = json.loads(call("status", "--json").stdout)["runs"]
    assert [(run["index"], run["job"], run["release"]) for run in runs] == [
        (0, "7_0", "scontrol release 7_0"),
        (1, "7_1", None),
    ]
    terminal(200)
    lines = call("status").stdout.splitlines()
    assert " ".join(lines[1].split()) == "# run variant seed state steps pass rate attempt ETA reason"
    assert "held by its owner" in lines[2] and "scontrol" not in lines[2]
    assert lines[-1] == "held jobs start after: scontrol release 7_0"


def test_what_an_administrator_holds_has_no_command_that_releases_it(
    place: Any, call: Call, script: Callable[[str, str], Path]
) -> None:
    place.want("s", "a" * 12)
    place.hand("a" * 12, "7_0")
    script("squeue", f"echo '7_0|PENDING|JobHeldAdmin||N/A|{NAME}'")
    result = call("status")
    row = result.stdout.rstrip("\n").split("\t")
    assert row[12] == "-" and "scontrol" not in result.stdout + result.stderr
    assert row[13] == "held by an administrator, who alone can release it: ask the site [JobHeldAdmin]"


def test_jobs_that_no_wanted_run_knows_of_are_told_and_ended_with_the_sweep(
    place: Any, call: Call, script: Callable[[str, str], Path], terminal: Callable[[int], None]
) -> None:
    """One run replaced by another of its name, and an array that a submitter left which was killed."""
    old, new = "a" * 12, "b" * 12
    place.want("s", old)
    row = {"kind": "intent", "time": 2.0, "variant": "base", "variant_key": "W", "difference": {}, "steps": 10}
    begun = {"kind": "submitting", "time": 3.0, "token": "cafe", "cluster": "c", "runs": [new]}
    ledger.append(place.root.sweep("s"), [{**row, "run_key": new, "seed": 0}, begun])
    place.hand(old, "7")
    queue = f"7|RUNNING|None|n1|N/A|{NAME}\n8|PENDING|JobHeldUser||N/A|rlsweep:s:cafe"
    calls = script("squeue", f"[ -e gone ] || echo '{queue}'")
    result = call("status")
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert [(row[0], row[1], row[4]) for row in rows] == [("0", new, "waiting"), ("-", old, "running")]
    assert rows[1][13].startswith("no longer asked for; starting on n1")
    assert f"no longer asked for (index -): `rlsweep cancel {old}` ends one of them" in result.stderr
    assert "a submission was cut short, 1 job on hold (8): `rlsweep ablate ...` goes on, " in result.stderr
    assert "`rlsweep cancel --sweep s` ends it" in result.stderr
    assert calls.read_text().count("\n") == 1
    found = json.loads(call("status", "--json").stdout)
    assert found["cut_short"] == ["8"] and [run["index"] for run in found["runs"]] == [0, None]
    assert [line.split("\t")[1] for line in call("status", "--run", old).stdout.splitlines()] == [old]
    script("scancel", f"touch '{calls.parent}/gone'")
    script("squeue", f"[ -e '{calls.parent}/gone' ] || echo '{queue}'")
    result = call("cancel", "--sweep", "s")
    assert "1 job of a submission that was cut short taken out of the queue" in result.stderr
    assert f"{new} is not running (waiting)" in result.stdout and old in result.stdout
    assert next(line for line in calls.read_text().splitlines() if "scancel" in line) == "scancel --state=PENDING 8"


def test_a_large_sweep_takes_two_calls_of_the_scheduler(
    place: Any, call: Call, script: Callable[[str, str], Path]
) -> None:
    """However many runs: one squeue, and one sacct for all that it has forgotten."""
    keys = [f"{number:012x}" for number in range(60)]
    place.want("s", *keys)
    for number, key in enumerate(keys):
        run = place.hand(key, f"7_{number}")
        write_submission(run, replace(read_submission(run), accounting="slurmdbd"))
    running = "\n".join(f"7_{number}|RUNNING|None|n1|N/A|{NAME}" for number in range(0, 60, 2))
    ended = "\n".join(
        f"7_{number}|FAILED|1:0|n1|2026-12-01T00:00:00|2026-12-01T00:00:00|{NAME}" for number in range(1, 60, 2)
    )
    calls = script("squeue", f"echo '{running}'")
    script("sacct", f"echo '{ended}'")
    result = call("status", "s", "--check")
    assert [line.split()[0] for line in calls.read_text().splitlines()] == ["squeue", "sacct"]
    assert result.exit_code == 3 and "30 running, 30 failed" in result.stderr


def test_where_the_scheduler_is_out_of_reach_the_folders_are_told_and_the_exit_code_is_4(
    place: Any, call: Call, script: Callable[[str, str], Path]
) -> None:
    place.want("s", "a" * 12, "b" * 12)
    place.hand("a" * 12, "7_0")
    place.attempt("b" * 12, alive=False, state="failed", step=4)
    script("squeue", DOWN)
    for more in ((), ("--check",)):
        result = call("status", *more)
        assert result.exit_code == 4
        assert [line.split("\t")[4] for line in result.stdout.splitlines()] == ["pending", "failed"]
        assert "the scheduler can't be reached" in result.stderr and "Nothing was lost" in result.stderr
    result = call("status", "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 4 and "can't be reached" in found["scheduler_error"] and len(found["runs"]) == 2


def test_runs_are_selected_by_spec(place: Any, call: Call) -> None:
    place.want("other", "c" * 12)
    place.want("s", "a" * 12, "b" * 12, "d" * 12)
    place.attempt("c" * 12, alive=False, state="finished")
    for specs, meant in ((("0,2",), ["a", "d"]), (("seed=1", "base:0"), ["a", "b"])):
        options = [part for each in specs for part in ("--run", each)]
        lines = call("status", "s", *options).stdout.splitlines()
        assert [line.split("\t")[1] for line in lines] == [letter * 12 for letter in meant]
    result = call("status", "s", "--run", "c" * 12)
    assert result.exit_code == 2 and f"no run of sweep s: {'c' * 12}" in result.stderr
    result = call("status", "s", "--run", "3")
    assert result.exit_code == 2 and "the indexes of sweep s are 0 to 2" in result.stderr


@pytest.mark.parametrize("width", [40, 80, 200])
def test_on_any_terminal_progress_attempt_and_eta_are_told_and_nothing_is_cut(
    place: Any,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
    terminal: Callable[[int], None],
    running: RunStatus,
    width: int,
) -> None:
    place.want("s", "a" * 12)
    reason = "waits for nodes to become free [Resources]"
    waits = replace(running, state="pending", attempt=None, eta_s=None, reason=reason)
    monkeypatch.setattr("rlsweep.launch.status.status", lambda *_: Status([running, waits]))
    terminal(width)
    lines = call("status").stdout.splitlines()
    assert "\x1b" not in "".join(lines) and (width == 40 or all(len(line) <= width for line in lines[1:]))
    if width == 200:
        told = " ".join(lines[2].split())
        assert told == (
            "0 0123456789ab loss=cispo,optimizer.lr=0.0003 0 running 123/2000 0.500 2 3 h 10 min attempt 2 is at work, "
            "on n[1-2]"
        )
    if width == 80:
        assert [line.split()[:2] for line in lines if "0123456789ab" in line] == [
            ["0", "0123456789ab"],
            ["1", "0123456789ab"],
        ]
        reasons = " ".join(line[lines[1].index("reason") :].strip() for line in lines[2:-1])
        assert reasons.split() == f"3 h 10 min to go, attempt 2 on n[1-2] {reason}".split()
    if width == 40:
        assert "reason        3 h 10 min to go, attempt 2 on n[1-2]" in lines and f"reason        {reason}" in lines

"""`rlsweep gc` on folders of runs that are over, at work, wanted by another sweep, or left half-written."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import Result

from rlsweep.store import attempts, checkpoints, garbage, ledger, outcome
from rlsweep.store.files import read_json, write_json
from rlsweep.store.jobs import Submission, write_submission
from rlsweep.store.layout import Root, RunFolder
from rlsweep.store.outcome import Outcome, State

Call = Callable[..., Result]
KEYS = tuple(f"{number:012x}" for number in range(3))


def want(place: Root, sweep: str, steps: dict[str, int]) -> None:
    rows = [
        {
            "kind": "intent",
            "time": 1.0,
            "run_key": key,
            "variant": key,
            "variant_key": key,
            "seed": 0,
            "difference": {},
            "steps": number,
        }
        for key, number in steps.items()
    ]
    ledger.append(place.sweep(sweep), rows)


def trained(place: Root, key: str, state: State | None, step: int = 10) -> RunFolder:
    """A run with two checkpoints; without a state its process lives."""
    run = place.run(key)
    attempt = attempts.claim(run)
    attempts.record_process(attempt)
    for at in (step // 2, step):
        with checkpoints.writing(run, attempt, at) as folder:
            for name in ("model", "resume"):
                (folder / name).mkdir()
                (folder / name / "numbers").write_bytes(bytes(1000))
    if state:
        write_json(attempt.process, {**read_json(attempt.process), "start_ticks": 1})
        outcome.write(run, Outcome(state, step, "because"))
    return run


def whole(run: RunFolder) -> list[bool]:
    return [each.resumable for each in checkpoints.every(run)]


@pytest.mark.parametrize(
    ("state", "left"),
    [("finished", [False, False]), ("diverged", [False, False]), ("interrupted", [True, True]), (None, [True, True])],
)
def test_only_what_nobody_will_go_on_from_is_freed(
    root: Path, call: Call, state: State | None, left: list[bool]
) -> None:
    place = Root(root)
    run = trained(place, KEYS[0], state)
    want(place, "s", {KEYS[0]: 10})
    models = [(each.model / "numbers").read_bytes() for each in checkpoints.every(run)]
    before = garbage.size_of(run.path)
    said = json.loads(call("gc", "--dry-run", "--json").stdout)
    assert whole(run) == [True, True] and garbage.size_of(run.path) == before
    done = json.loads(call("gc", "--json").stdout)
    assert done["folders"] == said["folders"] and done["freed"] and not said["freed"]
    assert whole(run) == left
    assert done["bytes"] == before - garbage.size_of(run.path) == 1000 * left.count(False)
    assert [(each.model / "numbers").read_bytes() for each in checkpoints.every(run)] == models
    again = call("gc")
    assert again.exit_code == 0 and "sweep s: 0 B freed" in again.stderr and not again.stdout


def test_a_run_of_which_another_sweep_wants_more_is_left(root: Path, call: Call) -> None:
    place = Root(root)
    shared, own = (trained(place, key, "finished") for key in KEYS[:2])
    want(place, "longer", {KEYS[0]: 20})
    want(place, "s", {KEYS[0]: 10, KEYS[1]: 10})
    assert call("gc", "s").exit_code == 0
    assert (whole(shared), whole(own)) == ([True, True], [False, False])


def test_what_a_crash_left_is_freed_unless_its_run_is_at_work(root: Path, call: Call) -> None:
    place = Root(root)
    for key, state in ((KEYS[0], "interrupted"), (KEYS[1], None)):
        run = trained(place, key, state)
        (run.checkpoints / ".step-000099.1-abcd").mkdir()
        checkpoints.set_aside(checkpoints.every(run)[0])
        (run.path / ".metrics.jsonl.7-abcd.tmp").write_text("half")
    want(place, "s", dict.fromkeys(KEYS[:2], 10))
    result = call("gc")
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert sorted((row[0], row[3]) for row in rows) == [
        (KEYS[0], "damaged, set aside"),
        (KEYS[0], "left by a process that was killed"),
        (KEYS[0], "left by a process that was killed"),
    ]
    assert not list(place.run(KEYS[0]).path.glob(".*.tmp")) and list(place.run(KEYS[1]).path.glob(".*.tmp"))
    assert len(checkpoints.leftovers(place.run(KEYS[1]))) == len(checkpoints.damaged(place.run(KEYS[1]))) == 1


def test_a_run_that_waits_in_a_queue_is_left_and_without_an_answer_all_are(
    root: Path, call: Call, script: Callable[[str, str], Path]
) -> None:
    """A finished one whose raised budget another sweep has handed to a job."""
    place = Root(root)
    queued, done = (trained(place, key, "finished") for key in KEYS[:2])
    want(place, "s", dict.fromkeys(KEYS[:2], 10))
    write_submission(queued, Submission("aa", "t", "c", "7", time.time(), 1, 1, 60, 20, "none", 120))
    script("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    assert call("gc").exit_code == 4 and whole(done) == [True, True]
    script("squeue", "echo '7|PENDING|Priority||N/A|rlsweep:t:aa'")
    assert call("gc").exit_code == 0
    assert (whole(queued), whole(done)) == ([True, True], [False, False])


def test_killed_in_the_midst_it_leaves_nothing_that_passes_for_whole(
    root: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    place = Root(root)
    run = trained(place, KEYS[0], "finished")
    want(place, "s", {KEYS[0]: 10})
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "shutil", SimpleNamespace(rmtree=killed))
        assert call("gc").exit_code == 130
    assert whole(run) == [False, True]
    assert call("gc").exit_code == 0
    assert whole(run) == [False, False] and checkpoints.leftovers(run) == []


def test_no_sweep_and_a_wrong_name_are_told(root: Path, call: Call) -> None:
    assert call("gc").exit_code == 2
    want(Root(root), "s", {KEYS[0]: 10})
    result = call("gc", "t")
    assert result.exit_code == 2 and "'t' is not a sweep; valid: s" in result.stderr
    assert call("gc", "s").exit_code == 0  # a run that has not begun


def test_a_raised_budget_says_that_it_starts_again(root: Path, call: Call) -> None:
    words = ("scalerl", "--scale", "tiny", "--name", "s")
    assert call("ablate", *words, "--set", "budget.steps=4").exit_code == 0
    longer = ("plan", *words, "--set", "budget.steps=6")
    assert "budget raised from 4 to 6 steps\n" in call(*longer).stdout
    assert "freed" in call("gc").stderr
    planned = call(*longer).stdout
    assert "from the start, what it needs to go on later was let go" in planned and "\tcontinue\t6\t" in planned
    shutil.rmtree(root)

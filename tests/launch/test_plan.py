import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from rlsweep.errors import RlsweepError
from rlsweep.launch.plan import decide, no_longer_asked_for
from rlsweep.launch.submit import submit
from rlsweep.store import attempts, checkpoints, outcome
from rlsweep.store.files import read_json, write_json
from rlsweep.store.layout import Root, RunFolder
from rlsweep.store.outcome import Outcome
from rlsweep.sweep.expand import Sweep

Make = Callable[..., Sweep]


def first(sweep: Sweep, root: Root) -> RunFolder:
    run = root.run(sweep.runs[0].key)
    run.path.mkdir(parents=True)
    return run


def dead(run: RunFolder, state: str | None = None, step: int = 0, saved: int | None = None) -> None:
    """One more attempt, which is over: with an outcome or without."""
    attempt = attempts.claim(run)
    attempts.record_process(attempt)
    write_json(attempt.process, {**read_json(attempt.process), "start_ticks": 1})
    if saved is not None:
        with checkpoints.writing(run, attempt, saved) as folder:
            (folder / "resume").mkdir()
    if state:
        outcome.write(run, Outcome(state, step, f"because {state}"))


def decision(sweep: Sweep, root: Root) -> tuple[str, str, int]:
    planned = decide(sweep, root)[0]
    return planned.action, planned.reason, planned.step


def test_without_a_root_everything_is_new_and_nothing_is_written(root: Root, sweep: Make) -> None:
    planned = decide(sweep(), root)
    assert [(each.action, each.reason, each.run.variant) for each in planned] == [
        ("submit", "new", "loss=cispo"),
        ("submit", "new", "loss=dapo"),
    ]
    assert not root.path.exists()


def test_a_folder_without_an_attempt_is_submitted(root: Root, sweep: Make) -> None:
    first(sweep(), root)
    assert decision(sweep(), root) == ("submit", "not started yet", 0)


def test_a_finished_run_is_skipped_and_continued_once_its_budget_is_raised(root: Root, sweep: Make) -> None:
    dead(first(sweep(4), root), "finished", 4, saved=4)
    assert decision(sweep(4), root) == ("skip", "finished at step 4", 4)
    assert decision(sweep(3), root)[0] == "skip"
    assert decision(sweep(9), root) == ("continue", "budget raised from 4 to 9 steps", 4)


def test_a_run_at_work_is_left(root: Root, sweep: Make) -> None:
    attempts.record_process(attempts.claim(first(sweep(), root)))
    assert decision(sweep(), root) == ("leave", "attempt 1 is at work", 0)


@pytest.mark.parametrize("state", ["interrupted", "failed", None])
@pytest.mark.parametrize("saved", [2, None])
def test_a_run_that_broke_off_is_resumed(root: Root, sweep: Make, state: str | None, saved: int | None) -> None:
    dead(first(sweep(), root), state, 3, saved)
    action, reason, step = decision(sweep(), root)
    words = {"interrupted": "interrupted", "failed": "failed (because failed)", None: "lost"}[state]
    whence = "from the checkpoint of step 2" if saved else "from the start, there is no checkpoint"
    assert (action, reason, step) == ("resume", f"{words}; {whence}", saved or 0)


def test_a_diverged_run_is_skipped_with_the_reason(root: Root, sweep: Make) -> None:
    dead(first(sweep(), root), "diverged", 3, saved=2)
    for steps in (4, 9):
        expected = ("skip", "diverged at step 3, and would again: because diverged", 3)
        assert decision(sweep(steps), root) == expected


def test_an_older_attempts_outcome_says_nothing_about_the_newest(root: Root, sweep: Make) -> None:
    run = first(sweep(), root)
    dead(run, "finished", 2, saved=2)
    dead(run)
    assert decision(sweep(), root) == ("resume", "lost; from the checkpoint of step 2", 2)


def test_on_another_host_a_run_is_left_until_it_has_been_silent_for_long(root: Root, sweep: Make) -> None:
    run = first(sweep(), root)
    attempt = attempts.claim(run)
    attempts.record_process(attempt)
    write_json(attempt.process, {**read_json(attempt.process), "host": socket.gethostname() + "x"})
    action, reason, _ = decision(sweep(), root)
    assert action == "leave" and "last heard of 0 min ago" in reason
    os.utime(attempt.process, (0, 0))
    run.journal.touch()
    assert decision(sweep(), root)[0] == "leave"
    os.utime(run.journal, (0, 0))
    assert decision(sweep(), root)[0] == "resume"


@pytest.mark.parametrize("where", [".", "runs", "sweeps"])
def test_a_root_that_is_a_file_is_refused(root: Root, sweep: Make, where: str) -> None:
    path = root.path / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("not a folder")
    with pytest.raises(RlsweepError, match="is not a folder; choose another with --root"):
        decide(sweep(), root)
    with pytest.raises(RlsweepError, match="is not a folder"):
        decide(sweep(), Root(path / "deeper"))


def test_ten_thousand_runs_are_decided_from_one_listing(
    root: Root, sweep: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = sweep(seeds="1000", vary=f"optimizer.lr={','.join(f'{number}e-5' for number in range(1, 11))}")
    first(many, root)
    listed: list[Path] = []
    real = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: listed.append(Path(path)) or real(path))
    assert len(decide(many, root)) == 10_000
    assert listed.count(root.runs) == 1 and len(listed) < 5


def test_runs_no_longer_asked_for_are_named(root: Root, sweep: Make) -> None:
    before = sweep(vary="loss=cispo,dapo,gspo")
    submit(before, root, decide(before, root))
    assert no_longer_asked_for(before, root) == []
    left = no_longer_asked_for(sweep(vary="loss=cispo,gspo"), root)
    assert [intent.variant for intent in left] == ["loss=dapo"]

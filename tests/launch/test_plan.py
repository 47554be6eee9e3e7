import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from rlsweep.errors import RlsweepError, SchedulerError
from rlsweep.launch import scheduler
from rlsweep.launch.plan import Planned, decide, decide_run, survey
from rlsweep.launch.submit import write_down
from rlsweep.store import attempts, checkpoints, outcome
from rlsweep.store.files import read_json, write_json
from rlsweep.store.jobs import AttemptJob, Submission, write_attempt_job, write_submission
from rlsweep.store.layout import Root, RunFolder
from rlsweep.store.outcome import Outcome
from rlsweep.sweep.expand import Sweep, expand

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
    words = {"interrupted": "interrupted (because interrupted)", "failed": "failed (because failed)", None: "lost"}[
        state
    ]
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


def handed(run: RunFolder, token: str = "aa", sweep: str = "s") -> None:
    """The run is one that was handed to job 7."""
    run.path.mkdir(parents=True, exist_ok=True)
    write_submission(run, Submission(token, sweep, "c", "7", 1e9, 1, 1, 60, 20, "none", 120))


# Runs that a sweep no longer asks for.


def dropped(sweep: Sweep, root: Root) -> list[tuple[str, str | None, int]]:
    return [(each.intent.run_key, each.job, each.devices) for each in survey(sweep, root)[1]]


def test_a_run_left_out_is_told_while_it_waits_or_is_at_work(
    root: Root, sweep: Make, script: Callable[[str, str], Path]
) -> None:
    before, after = sweep(vary="loss=cispo,dapo,gspo"), sweep(vary="loss=cispo")
    write_down(before, root, decide(before, root))
    first, second, third = (root.run(run.key) for run in before.runs)
    assert dropped(after, root) == []  # nobody began them
    attempts.record_process(attempts.claim(third))
    calls = script("squeue", "echo '7|PENDING|Resources||N/A|rlsweep:s:aa'")
    handed(first)
    handed(second)
    calls.write_text("")
    assert dropped(before, root) == []
    assert dropped(after, root) == [(second.key, "7", 1), (third.key, None, 0)]
    assert len(calls.read_text().splitlines()) == 2  # one question each
    script("squeue", "echo '7|COMPLETED|None|n1|N/A|rlsweep:s:aa'")
    assert dropped(after, root) == [(third.key, None, 0)]


def test_a_run_whose_name_came_to_mean_another_one_is_told_too(
    root: Root, sweep: Make, script: Callable[[str, str], Path]
) -> None:
    script("squeue", "echo '7|RUNNING|None|n1|N/A|rlsweep:s:aa'")
    before = expand("scalerl", scale="tiny", overrides=["optimizer.lr=1e-4"], name="s")
    after = expand("scalerl", scale="tiny", overrides=["optimizer.lr=2e-4"], name="s")
    assert before.runs[0].variant == after.runs[0].variant
    write_down(before, root, decide(before, root))
    handed(root.run(before.runs[0].key))
    for _ in range(2):  # whether the ledger has what replaced it or not yet
        assert dropped(after, root) == [(before.runs[0].key, "7", 1)]
        write_down(after, root, decide(after, root))


def test_a_run_in_the_hands_of_another_sweep_is_not_told(
    root: Root, sweep: Make, script: Callable[[str, str], Path]
) -> None:
    script("squeue", "echo '7|RUNNING|None|n1|N/A|rlsweep:t:aa'")
    write_down(sweep(), root, decide(sweep(), root))
    handed(root.run(sweep().runs[1].key), sweep="t")
    assert dropped(sweep(vary="loss=cispo"), root) == []


def test_runs_left_out_keep_nobody_from_deciding_where_there_is_no_scheduler(
    root: Root, sweep: Make, script: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "_WAITS_S", ())
    script("squeue", "echo Unable to contact slurm controller >&2; exit 1")
    write_down(sweep(), root, decide(sweep(), root))
    handed(root.run(sweep().runs[1].key))
    decisions, left = survey(sweep(vary="loss=cispo"), root)
    assert [each.action for each in decisions] == ["submit"]
    assert [each.job for each in left] == ["7"]  # it may be there
    with pytest.raises(SchedulerError):
        survey(sweep(vary="loss=dapo"), root)


# Runs in a queue.


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        ("7|PENDING|Resources||N/A|rlsweep:s:aa", ("leave", "waits for nodes to become free [Resources]", 2)),
        ("7|RUNNING|None|n3|N/A|rlsweep:s:aa", ("leave", "starting on n3", 2)),
        ("7|RUNNING|None|n3|N/A|rlsweep:s:bb", ("resume", "lost; from the checkpoint of step 2", 2)),
        ("", ("resume", "lost; from the checkpoint of step 2", 2)),
    ],
)
def test_a_run_is_left_while_its_job_is_in_the_queue(
    root: Root, sweep: Make, script: Callable[[str, str], Path], queue: str, expected: tuple[str, str, int]
) -> None:
    script("squeue", f"echo '{queue}'")
    run = first(sweep(), root)
    dead(run, "failed", 3, saved=2)
    write_attempt_job(attempts.every(run)[0], AttemptJob("earlier", "6", 0, [], 1, "n1", 1, 1.0))
    os.utime(attempts.every(run)[0].path, (1e8, 1e8))
    write_json(attempts.every(run)[0].process, {**attempts.identity(os.getpid()), "start_ticks": 1, "started": 1e8})
    handed(run)
    assert decision(sweep(), root) == expected
    planned = decide(sweep(), root)[0]
    assert planned.job == ("7" if planned.action == "leave" else None)
    assert decide(sweep(), root)[1] == Planned(sweep().runs[1], "submit", "new")


def test_a_run_that_is_left_says_where_it_does_not_go_as_far_as_it_is_to(
    root: Root, sweep: Make, script: Callable[[str, str], Path]
) -> None:
    script("squeue", "echo '7|PENDING|Resources||N/A|rlsweep:s:aa'")
    write_down(sweep(4), root, decide(sweep(4), root))
    handed(root.run(sweep().runs[0].key))
    waits = "waits for nodes to become free [Resources]"
    assert decision(sweep(4), root)[1] == decision(sweep(3), root)[1] == waits
    more = f"{waits}; it goes to step 4 first, ask again for 9 once it is over"
    assert decision(sweep(9), root) == ("leave", more, 0)


def test_a_run_whose_job_ended_before_it_began_is_submitted_again(
    root: Root, sweep: Make, script: Callable[[str, str], Path]
) -> None:
    script("squeue", "echo '7|FAILED|NonZeroExitCode|n1|N/A|rlsweep:s:aa'")
    handed(first(sweep(), root))
    words = "failed (its job 7 failed (NonZeroExitCode) before an attempt began)"
    assert decision(sweep(), root) == ("submit", words, 0)


def test_nothing_is_decided_while_jobs_cannot_be_asked_about(
    root: Root, sweep: Make, script: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "_WAITS_S", ())
    script("squeue", "echo Unable to contact slurm controller >&2; exit 1")
    assert decision(sweep(), root)[0] == "submit"  # nobody has to be asked
    handed(first(sweep(), root))
    with pytest.raises(SchedulerError, match="Nothing was lost"):
        decide(sweep(), root)
    # A run that is started here is decided by what lies here.
    assert decide_run(sweep().runs[0], root.run(sweep().runs[0].key)).action == "submit"

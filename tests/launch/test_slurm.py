import json
import os
import re
import shutil
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rlsweep.errors import RlsweepError, SchedulerError, UsageError
from rlsweep.launch import chunks, scheduler, slurm
from rlsweep.launch.chunks import Chunk
from rlsweep.launch.cluster import Cluster, Gpus, Limits
from rlsweep.launch.plan import decide
from rlsweep.launch.script import Resources
from rlsweep.launch.slurm import Submitted, preview, submit
from rlsweep.launch.submit import submitting
from rlsweep.store import attempts, ledger, outcome
from rlsweep.store.files import write_json
from rlsweep.store.jobs import AttemptJob, read_submission, write_attempt_job
from rlsweep.store.layout import Root, RunFolder
from rlsweep.store.outcome import Outcome
from rlsweep.sweep.expand import Sweep, expand

Make = Callable[..., Sweep]
Fake = Any
CPU = Cluster(name="cpu", executor="slurm", minutes=10, notice_s=30, limits=Limits(retries=3))


@pytest.fixture
def many() -> Callable[[int], Sweep]:
    """A sweep of so many runs."""
    return lambda number: expand("scalerl", scale="tiny", overrides=["budget.steps=4"], seeds=number, name="s")


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def hand(root: Root, fake_slurm: Fake, said: list[str]) -> Callable[..., Submitted]:
    """Submit a sweep."""
    return lambda sweep, cluster=CPU, **more: submit(sweep, root, cluster, said.append, **more)


def tokens(root: Root) -> dict[str, str]:
    return {each.token: each.state for each in ledger.submissions(root.sweep("s"))}


def names(call: str) -> str:
    return call.partition(" ")[0]


# How runs are cut into jobs.


def sizes(parts: list[Chunk]) -> list[tuple[int, int | None, int | None]]:
    return [(len(each.runs), each.parallel, each.after) for each in parts]


@pytest.mark.parametrize(
    ("number", "largest", "array", "expected"),
    [
        (12, 1001, None, [12]),
        (12, 10, None, [10, 2]),
        (12, 1001, 5, [5, 5, 2]),
        (12, 10, 50, [10, 2]),
        (11, 10, None, [10, 1]),
        (2, 1, None, [1, 1]),
        (2, 0, None, [1, 1]),
        (0, 10, None, []),
    ],
)
def test_chunks_are_no_larger_than_the_site_and_the_profile_allow(
    many: Callable[[int], Sweep], number: int, largest: int, array: int | None, expected: list[int]
) -> None:
    runs = many(12).runs[:number]
    parts = chunks.cut(runs, replace(CPU, limits=Limits(array=array)), largest)
    assert sizes(parts) == [(each, None, None) for each in expected]
    assert [run for part in parts for run in part.runs] == list(runs)


def test_runs_of_unequal_resources_share_no_array() -> None:
    runs = expand("scalerl", scale="tiny", seeds=2, name="s").runs
    wide = expand("scalerl", scale="tiny", overrides=["execution.devices=2"], seeds="3,4", name="s").runs
    parts = chunks.cut((runs[0], wide[0], runs[1], wide[1]), CPU, 100)
    assert [(part.runs, part.resources) for part in parts] == [
        ((runs[0], runs[1]), Resources(1, 0, 1)),
        ((wide[0], wide[1]), Resources(2, 0, 1)),
    ]


@pytest.mark.parametrize(
    ("parallel", "left", "expected"),
    [
        (100, 0, [(10, 10, None), (2, 2, None)]),
        (6, 0, [(10, 5, None), (2, 1, None)]),
        (6, 4, [(10, 1, None), (2, 1, None)]),
        (1, 0, [(10, 1, None), (2, 1, 0)]),
        (5, 4, [(10, 1, None), (2, 1, 0)]),
    ],
)
def test_the_cap_holds_for_all_chunks_together(
    many: Callable[[int], Sweep], parallel: int, left: int, expected: list[tuple[int, int, int | None]]
) -> None:
    jobs = [f"7_{number}" for number in range(left)]
    parts = chunks.cut(many(12).runs, replace(CPU, limits=Limits(parallel=parallel)), 10, jobs)
    assert sizes(parts) == expected and not any(part.behind for part in parts)


@pytest.mark.parametrize(
    ("parallel", "expected"),
    [
        (1, [(10, 1, None, True), (2, 1, 0, False)]),
        (2, [(10, 1, None, True), (2, 1, None, True)]),
        (3, [(10, 2, None, True), (2, 1, None, True)]),
    ],
)
def test_where_as_many_are_left_as_may_be_at_work_new_ones_wait_for_all_of_them(
    many: Callable[[int], Sweep], parallel: int, expected: list[tuple[int, int, int | None, bool]]
) -> None:
    cluster = replace(CPU, limits=Limits(parallel=parallel))
    parts = chunks.cut(many(12).runs, cluster, 10, ["7_1", "7_2", "9"])
    assert [(*size, part.behind == ("7", "9")) for size, part in zip(sizes(parts), parts, strict=True)] == expected
    assert {part.behind for part in parts} <= {("7", "9"), ()}


@pytest.mark.parametrize("parallel", [1, 2, 3, 5])
def test_no_more_runs_than_the_cap_can_be_at_work(many: Callable[[int], Sweep], parallel: int) -> None:
    parts = chunks.cut(many(23).runs, replace(CPU, limits=Limits(parallel=parallel)), 5)
    lanes = [each for each in parts if each.after is None]
    assert sum(each.parallel or 0 for each in lanes) == parallel
    # Each other chunk follows an earlier one that no other follows, with as many at a time.
    followed = [each.after for each in parts if each.after is not None]
    assert len(set(followed)) == len(followed) == len(parts) - len(lanes)
    assert all(parts[each.after].parallel == each.parallel for each in parts if each.after is not None)


def test_a_token_is_made_of_root_sweep_runs_and_number(root: Root) -> None:
    made = chunks.token(root, "s", ["a", "b"], 0)
    assert re.fullmatch(r"[0-9a-f]{10}", made) and made == chunks.token(root, "s", ["a", "b"], 0)
    others = [
        chunks.token(Root(root.path / "x"), "s", ["a", "b"], 0),
        chunks.token(root, "t", ["a", "b"], 0),
        chunks.token(root, "s", ["ab"], 0),
        chunks.token(root, "s", ["a", "b"], 1),
    ]
    assert len({made, *others}) == 5


# What is on disk and with the scheduler after a submission.


def test_each_run_names_its_job_and_all_jobs_are_released(root: Root, hand: Any, fake_slurm: Fake, many: Any) -> None:
    fake_slurm.array_size(10)
    sweep = many(12)
    done = hand(sweep)
    assert (done.submitted, done.not_submitted, done.jobs, done.why) == (12, 0, ("100", "101"), None)
    found = [read_submission(root.run(run.key)) for run in sweep.runs]
    assert [each.job for each in found if each] == [*(f"100_{n}" for n in range(10)), "101_0", "101_1"]
    first = found[0]
    assert first is not None
    assert (first.sweep, first.cluster, first.devices, first.nodes, first.minutes) == ("s", "cpu", 1, 1, 10)
    assert (first.retries, first.notice_s, first.accounting) == (3, 30, "none")
    assert set(tokens(root)) == {each.token for each in found if each} and set(tokens(root).values()) == {"released"}
    jobs = fake_slurm.jobs
    assert [(job["name"], job["count"], job["held"]) for job in jobs.values()] == [
        (first.name, 10, False),
        (found[-1].name if found[-1] else "", 2, False),
    ]
    assert all(root.run(run.key).recipe.exists() for run in sweep.runs)
    assert fake_slurm.calls[-1] == "scontrol release 100,101"


def test_what_is_previewed_is_what_sbatch_gets(root: Root, hand: Any, fake_slurm: Fake, many: Any) -> None:
    fake_slurm.array_size(10)
    cluster = replace(CPU, limits=Limits(parallel=1))
    for number in (11, 12):  # an array and a plain job that follows it; then a plain job
        sweep = many(number)
        shown = preview(sweep, root, decide(sweep, root), cluster, 10)
        done = hand(sweep, cluster)
        assert len(shown) == len(done.jobs)
        for script, job in zip(shown, done.jobs, strict=True):
            assert (script.folder / f"{job}_submission.sh").read_text() == script.text
    submitted = [call for call in fake_slurm.calls if names(call) == "sbatch"]
    assert ["--dependency=afterany:100" in call for call in submitted] == [False, True, True]


def test_the_same_command_again_submits_only_what_is_new(root: Root, hand: Any, fake_slurm: Fake, many: Any) -> None:
    hand(many(2))
    again = hand(many(3))
    assert (again.submitted, again.rest) == (1, {"skip": 0, "leave": 2})
    none = hand(many(3))
    assert (none.submitted, none.jobs, none.rest["leave"]) == (0, (), 3)
    fake_slurm.set_state("COMPLETED")  # they vanished: no record is kept
    assert hand(many(3)).submitted == 3
    assert [read_submission(root.run(run.key)).job for run in many(3).runs] == ["102_0", "102_1", "102_2"]  # type: ignore[union-attr]


def test_a_thousand_runs_take_at_most_ten_calls(root: Root, hand: Any, fake_slurm: Fake, many: Any) -> None:
    sweep = many(1000)
    decide(sweep, root)  # the table that ablate prints first
    assert hand(sweep).submitted == 1000
    assert len(fake_slurm.calls) <= 10
    before = len(fake_slurm.calls)
    decide(sweep, root)
    assert hand(sweep).rest["leave"] == 1000
    assert len(fake_slurm.calls) - before <= 10


# What goes wrong.


def test_what_does_not_fit_the_site_is_refused_before_anything_is_written(
    root: Root, hand: Any, fake_slurm: Fake, many: Any
) -> None:
    with pytest.raises(UsageError, match=r"profile cpu doesn't fit this site: partition: no partition nowhere"):
        hand(many(1), replace(CPU, partition="nowhere"))
    with pytest.raises(UsageError, match="time: partition main ends jobs after 1-00:00:00"):
        hand(many(1), replace(CPU, minutes=3000))
    wide = expand("scalerl", scale="tiny", overrides=["execution.devices=5"], name="s")
    with pytest.raises(UsageError, match="a run needs 5"):
        hand(wide)
    with pytest.raises(UsageError, match="for a placeholder"):
        submit(many(1), Root(root.path / "100%"), CPU, print)
    fake_slurm.behave("scontrol down")
    with pytest.raises(SchedulerError):
        hand(many(1))
    assert not root.path.exists() and not any(names(call) == "sbatch" for call in fake_slurm.calls)


def used_five_hours(run: RunFolder) -> None:
    """An attempt on one GPU is over, and the run is to go on."""
    before = attempts.claim(run)
    write_attempt_job(before, AttemptJob("t", "1", 0, ["n1"], 1, "n1", 1, 0.0, 3600.0 * 5))
    write_json(before.process, {"pid": 1, "host": socket.gethostname(), "boot": "another", "started": 0.0})
    outcome.write(run, Outcome("interrupted", 2, "stopped"))


def test_a_cap_that_is_reached_is_refused_before_anything_is_submitted(
    root: Root, hand: Any, fake_slurm: Fake, many: Any
) -> None:
    sweep = many(2)
    used_five_hours(root.run(sweep.runs[0].key))
    with pytest.raises(UsageError, match="have used 5 GPU-hours already"):
        hand(sweep, max_gpu_hours=4.0)
    assert fake_slurm.jobs == {} and not root.sweep("s").ledger.exists()
    assert hand(sweep, max_gpu_hours=6.0).submitted == 2


def test_a_cap_is_the_sweep_s_and_holds_for_what_is_in_the_queue_already(
    root: Root, hand: Any, fake_slurm: Fake, many: Any
) -> None:
    folder = root.sweep("s")
    hand(many(2))
    assert ledger.cap(folder) is None
    hand(many(2), max_gpu_hours=6.0)
    assert ledger.cap(folder) == 6.0
    rows = len(ledger.read(folder))
    hand(many(2))  # it stays
    hand(many(2), max_gpu_hours=6.0)
    assert ledger.cap(folder) == 6.0 and len(ledger.read(folder)) == rows
    hand(many(2), max_gpu_hours=4.0)
    assert ledger.cap(folder) == 4.0
    used_five_hours(root.run(many(3).runs[2].key))
    with pytest.raises(UsageError, match="--max-gpu-hours 4: the runs of this sweep have used 5"):
        hand(many(3))
    with pytest.raises(UsageError):  # what is refused changes nothing
        hand(many(3), max_gpu_hours=3.0)
    assert ledger.cap(folder) == 4.0 and len(fake_slurm.jobs) == 1


def test_new_runs_wait_for_those_that_are_left_where_no_more_may_be_at_work(
    root: Root, hand: Any, fake_slurm: Fake, many: Any
) -> None:
    one = replace(CPU, limits=Limits(parallel=1))
    sweep = many(3)
    for number in (1, 2):
        hand(many(number), one)
    fewer = replace(sweep, runs=sweep.runs[2:])  # the others, which go on, count all the same
    hand(fewer, one)
    submitted = [call for call in fake_slurm.calls if names(call) == "sbatch"]
    assert [call.split()[1:2] for call in submitted[1:]] == [
        ["--dependency=afterany:100"],
        ["--dependency=afterany:100:101"],
    ]
    hand(many(4), replace(CPU, limits=Limits(parallel=4)))
    assert "--dependency" not in [call for call in fake_slurm.calls if names(call) == "sbatch"][-1]


def test_a_job_that_a_deleted_root_has_left_is_not_taken_for_a_new_one(
    root: Root, hand: Any, fake_slurm: Fake, many: Any
) -> None:
    hand(many(1))
    old = read_submission(root.run(many(1).runs[0].key))
    shutil.rmtree(root.path)
    fake_slurm.set_state("RUNNING")
    for _ in range(2):  # and no name is given twice after that
        assert hand(many(1)).submitted == 1
        fake_slurm.set_state("COMPLETED")
    assert old is not None and old.token not in tokens(root)
    assert len(tokens(root)) == 2 and len({str(job["name"]) for job in fake_slurm.jobs.values()}) == 3


def test_an_exclusive_job_occupies_all_gpus_of_its_nodes(root: Root, hand: Any) -> None:
    overrides = ["execution.device=cuda", "execution.devices=4"]
    sweep = expand("scalerl", scale="tiny", overrides=overrides, name="s")
    cluster = replace(CPU, gpus=Gpus(per_node=8))
    for exclusive, expected in ((False, 4), (True, 8)):
        hand(replace(sweep, name=f"s{expected}"), replace(cluster, exclusive=exclusive))
        found = read_submission(root.run(sweep.runs[0].key))
        assert found is not None and found.devices == expected
        root.run(sweep.runs[0].key).submission.unlink()


@pytest.mark.parametrize(
    ("nth", "words", "submitted", "invalid"),
    [
        (1, "Invalid account or account/partition combination specified", 0, True),
        (1, "Requested node configuration is not available", 0, True),
        (2, "Invalid qos specification", 10, False),
        (1, "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", 0, False),
        (2, "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", 10, False),
    ],
)
def test_what_was_submitted_before_a_refusal_stays_and_is_released(
    root: Root, hand: Any, fake_slurm: Fake, many: Any, nth: int, words: str, submitted: int, invalid: bool
) -> None:
    fake_slurm.array_size(10)
    fake_slurm.behave(f"sbatch refuse {nth} {words}")
    done = hand(many(12))
    assert (done.submitted, done.not_submitted, done.invalid) == (submitted, 12 - submitted, invalid)
    assert done.why is not None and words in done.why
    assert [job["held"] for job in fake_slurm.jobs.values()] == [False] * (submitted // 10)
    folder = root.sweep("s")
    assert sorted(path.name for path in folder.jobs.iterdir()) == sorted(
        each.token for each in ledger.submissions(folder) if each.state == "released"
    )
    fake_slurm.behave()
    again = hand(many(12))
    assert (again.submitted, again.rest["leave"], again.why) == (12 - submitted, submitted, None)


def test_a_job_that_was_taken_without_an_answer_is_cancelled_and_the_runs_are_submitted_once(
    root: Root, hand: Any, fake_slurm: Fake, many: Any, said: list[str]
) -> None:
    fake_slurm.behave("sbatch lose 1")
    sweep = many(2)
    done = hand(sweep)
    assert (done.submitted, done.jobs) == (2, ("101",))
    assert [(job["state"], job["held"]) for job in fake_slurm.jobs.values()] == [
        ("CANCELLED", True),
        ("PENDING", False),
    ]
    assert [read_submission(root.run(run.key)).job for run in sweep.runs] == ["101_0", "101_1"]  # type: ignore[union-attr]
    assert sorted(tokens(root).values()) == ["released", "submitting"]
    assert len(list(root.sweep("s").jobs.iterdir())) == 1
    assert any("looking for it" in text for text in said)
    assert hand(sweep).submitted == 0


def test_where_nobody_answers_the_same_command_goes_on_later(
    root: Root, hand: Any, fake_slurm: Fake, many: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*given: object) -> None:
        raise SchedulerError("down")

    fake_slurm.array_size(10)
    fake_slurm.behave("sbatch lose 2")
    with monkeypatch.context() as patched, pytest.raises(SchedulerError):
        patched.setattr(slurm, "drop", down)
        hand(many(12))
    # What is known is let go; the other may be one of two for its runs.
    assert [(job["state"], job["held"]) for job in fake_slurm.jobs.values()] == [("PENDING", False), ("PENDING", True)]
    fake_slurm.behave()
    done = hand(many(12))
    assert (done.submitted, done.rest["leave"]) == (2, 10)
    assert [(job["state"], job["held"]) for job in fake_slurm.jobs.values()] == [
        ("PENDING", False),
        ("CANCELLED", True),
        ("PENDING", False),
    ]


def test_a_release_that_did_not_come_through_is_made_up_for(
    root: Root, hand: Any, fake_slurm: Fake, many: Any, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    real = scheduler.call

    def call(arguments: list[str], **more: Any) -> str:
        if arguments[:2] == ["scontrol", "release"]:
            raise SchedulerError("down")
        return real(arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(scheduler, "call", call)
        with pytest.raises(SchedulerError, match="down; on hold until then: 100"):
            hand(many(2))
    assert list(tokens(root).values()) == ["submitted"] and fake_slurm.jobs["100"]["held"]
    done = hand(many(2))
    assert (done.submitted, done.rest["leave"]) == (0, 2)
    assert list(tokens(root).values()) == ["released"] and not fake_slurm.jobs["100"]["held"]
    assert said[-1] == "released what an earlier submission had left on hold: 100"


def test_a_job_released_by_hand_that_nobody_saw_submitted_keeps_its_runs(
    root: Root, hand: Any, fake_slurm: Fake, many: Any
) -> None:
    hand(many(2))
    folder = root.sweep("s")
    rows = [row for row in ledger.read(folder) if row["kind"] not in ("submitted", "released")]
    folder.ledger.write_text("".join(json.dumps(row) + "\n" for row in rows))
    fake_slurm.set_state("RUNNING")
    assert hand(many(2)).rest["leave"] == 2
    assert fake_slurm.jobs["100"]["state"] == "RUNNING"


def test_being_asked_to_stop_ends_after_the_chunk_and_releases_it(
    root: Root, hand: Any, fake_slurm: Fake, many: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_slurm.array_size(10)
    real = ledger.append

    def interrupting(folder: Any, rows: Any) -> None:
        real(folder, rows)
        if rows[0]["kind"] == "submitting":
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(ledger, "append", interrupting)
        done = hand(many(12))
    assert done.interrupted and (done.submitted, done.not_submitted) == (10, 2)
    assert [job["held"] for job in fake_slurm.jobs.values()] == [False]
    assert hand(many(12)).submitted == 2


def test_a_full_disk_leaves_the_chunks_before_it_released(
    root: Root, hand: Any, fake_slurm: Fake, many: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_slurm.array_size(10)
    real, written = slurm.write_submission, []

    def full(*given: Any) -> None:
        written.append(given)
        if len(written) == 12:
            raise OSError(28, "no space left on device")
        real(*given)

    with monkeypatch.context() as patched:
        patched.setattr(slurm, "write_submission", full)
        with pytest.raises(OSError, match="no space left"):
            hand(many(12))
    assert [job["held"] for job in fake_slurm.jobs.values()] == [False, True]
    done = hand(many(12))
    assert (done.submitted, done.rest["leave"]) == (2, 10)
    assert [(job["state"], job["held"]) for job in fake_slurm.jobs.values()] == [
        ("PENDING", False),
        ("CANCELLED", True),
        ("PENDING", False),
    ]


def test_two_submitters_at_a_time_are_one_too_many(root: Root, hand: Any, many: Any) -> None:
    with submitting(root, "s"), pytest.raises(RlsweepError, match="is being worked on by pid"):
        hand(many(1))


# Runs that are no longer asked for.


def test_pruning_cancels_jobs_of_runs_that_no_sweep_asks_for(
    root: Root, hand: Any, fake_slurm: Fake, many: Any, said: list[str]
) -> None:
    fake_slurm.array_size(1)  # plain jobs, one a run
    sweep = many(4)
    hand(sweep)
    other = expand("scalerl", scale="tiny", overrides=["budget.steps=4"], seeds="2", name="t")
    assert hand(other).rest["leave"] == 2
    running = attempts.claim(root.run(sweep.runs[3].key))
    mine = read_submission(root.run(sweep.runs[3].key))
    assert mine is not None
    write_attempt_job(running, AttemptJob(mine.token, mine.job, 0, ["n1"], 1, "n1", 1, 1.0))
    fewer = replace(sweep, runs=sweep.runs[2:3])
    hand(fewer)
    assert [job["state"] for job in fake_slurm.jobs.values()] == ["PENDING"] * 4
    hand(fewer, prune=True)
    assert said == ["1 cancelled, no longer asked for"]
    # Runs 0 and 1 are asked for by the other sweep, 2 by this one.
    assert [job["state"] for job in fake_slurm.jobs.values()] == ["PENDING", "PENDING", "PENDING", "CANCELLED"]
    assert running.cancelled.exists()


def lr(rate: str) -> Sweep:
    """A sweep of one run, called base whatever its rate is."""
    return expand("scalerl", scale="tiny", overrides=["budget.steps=4", f"optimizer.lr={rate}"], name="s")


@pytest.mark.parametrize("at_once", [True, False])
def test_pruning_cancels_the_job_of_a_run_that_another_one_has_replaced(
    root: Root, hand: Any, fake_slurm: Fake, at_once: bool
) -> None:
    hand(lr("1e-4"))
    if not at_once:
        hand(lr("2e-4"))
    hand(lr("2e-4"), prune=True)
    assert [job["state"] for job in fake_slurm.jobs.values()] == ["CANCELLED", "PENDING"]


def test_pruning_is_done_though_the_cap_is_reached(root: Root, hand: Any, fake_slurm: Fake, said: list[str]) -> None:
    hand(lr("1e-4"))
    used_five_hours(root.run(lr("3e-4").runs[0].key))
    with pytest.raises(UsageError, match="have used 5"):
        hand(lr("3e-4"), prune=True, max_gpu_hours=4.0)
    assert [job["state"] for job in fake_slurm.jobs.values()] == ["CANCELLED"]
    assert said == ["1 cancelled, no longer asked for"]


def test_gpus_are_asked_for_as_the_profile_says(root: Root, hand: Any, fake_slurm: Fake) -> None:
    cluster = replace(CPU, gpus=Gpus(per_node=8, type="h100", style="gres"))
    recipe = expand("scalerl", scale="tiny", overrides=["execution.device=cuda", "execution.devices=16"], name="s")
    done = hand(recipe, cluster)
    found = read_submission(root.run(recipe.runs[0].key))
    assert found is not None and (found.job, found.nodes, found.devices) == (done.jobs[0], 2, 16)
    script = next(root.sweep("s").jobs.glob("*/*_submission.sh")).read_text()
    assert "#SBATCH --gres=gpu:h100:8\n" in script and "#SBATCH --nodes=2\n" in script


def test_on_another_cluster_nothing_is_concluded_about_jobs_it_does_not_know(
    root: Root, hand: Any, fake_slurm: Fake, many: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand(many(1))
    folder = root.sweep("s")
    rows = [row for row in ledger.read(folder) if row["kind"] != "released"]
    folder.ledger.write_text("".join(json.dumps(row) + "\n" for row in rows))
    jobs = fake_slurm.jobs
    jobs["100"].update(name="somebody's", held=True)  # the same number, another job
    (fake_slurm.folder / "jobs.json").write_text(json.dumps(jobs))
    assert hand(many(1), replace(CPU, name="elsewhere")).submitted == 1
    assert sorted(tokens(root).values()) == ["released", "submitted"]
    assert [job["held"] for job in fake_slurm.jobs.values()] == [True, False]


def test_a_job_that_an_administrator_holds_is_told_and_holds_nothing_up(
    root: Root, hand: Any, fake_slurm: Fake, many: Any, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = scheduler.call

    def call(arguments: list[str], **more: Any) -> str:
        if arguments[:2] == ["scontrol", "release"]:
            raise scheduler.Refused("Access/permission denied for job 100")
        return real(arguments, **more)

    monkeypatch.setattr(scheduler, "call", call)
    assert hand(many(1)).submitted == 1
    assert said == ["the scheduler goes on holding 100: ask the site, or: scontrol release 100"]
    assert hand(many(1)).rest["leave"] == 1

"""Jobs as squeue and sacct tell them; both are small scripts that print what real ones have printed."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rlsweep.errors import SchedulerError
from rlsweep.launch import queue, scheduler
from rlsweep.launch.queue import Job, elements, own_jobs, read_jobs
from rlsweep.store.jobs import Accounting, Submission

Script = Callable[[str, str], Path]

LATE = datetime(2026, 10, 25, 0, 30, tzinfo=UTC).timestamp()
"""In the night in which clocks of Europe are put back: 2:30 stands twice there."""


def handed(job: str, token: str = "aa", accounting: Accounting = "slurmdbd", at: float = LATE) -> Submission:
    return Submission(token, "é b|x", "c", job, at, 1, 1, 60, 20, accounting, 120)


def says(*lines: str) -> str:
    """Script that prints these lines."""
    return "cat <<'END'\n" + "".join(f"{line}\n" for line in lines) + "END"


def states(*submissions: Submission) -> dict[str, tuple[str, str]]:
    return {id: (job.state, job.reason) for id, job in read_jobs(submissions).items()}


def test_nothing_submitted_nothing_asked(script: Script) -> None:
    calls = script("squeue", "")
    assert read_jobs([]) == {} and calls.read_text() == ""


def test_squeue_alone_is_asked_where_it_knows_all(script: Script) -> None:
    """Names with spaces, accents and the separator; elements one by one; a held one."""
    name = "rlsweep:é b|x:aa"
    calls = script(
        "squeue",
        says(
            f"7_0|RUNNING|None|n[1-2]|2026-10-25T01:00:00|{name}",
            f"7_1|PENDING|JobArrayTaskLimit||N/A|{name}",
            f"8|PENDING|JobHeldUser||N/A|{name}",
            f"9|REQUEUE_HOLD|launch failed requeued held||N/A|{name}",
            f"11|PENDING|job requeued in held state||N/A|{name}",
            "10|RUNNING|None|n3|2026-10-25T01:00:00|somebody else's",
        ),
    )
    found = read_jobs([handed(id) for id in ("7_0", "7_1", "8", "9", "11")])
    at = datetime(2026, 10, 25, 1, tzinfo=UTC).timestamp()
    assert found["7_0"] == Job("7_0", name, "RUNNING", "", "n[1-2]", held=False, start=at)
    assert found["7_1"] == Job("7_1", name, "PENDING", "JobArrayTaskLimit", "", held=False)
    assert [found[id].held for id in ("7_1", "8", "9", "11")] == [False, True, True, True]
    assert calls.read_text().count("\n") == 1 and "--states=all" in calls.read_text()
    assert [job.id for job in own_jobs()] == ["7_0", "7_1", "8", "9", "11", "10"]


def test_a_job_that_was_cancelled_while_held_is_not_held_any_more(script: Script) -> None:
    script("squeue", says("8|CANCELLED|JobHeldUser||2026-10-25T01:00:00|rlsweep:s:aa"))
    (job,) = own_jobs()
    assert (job.held, job.reason) == (False, "cancelled before it started")


def test_an_id_that_was_used_again_is_somebody_elses(script: Script) -> None:
    """In the queue now, and newer in the accounting: ours is the record of our name."""
    script("squeue", says("7|RUNNING|None|n1|2026-10-25T01:00:00|train"))
    script(
        "sacct",
        says(
            "7|TIMEOUT|0:0|n1|2026-10-25T01:00:00|2026-10-25T00:31:00|rlsweep:é b|x:aa",
            "7|RUNNING|0:0|n1|2026-11-25T01:00:00|2026-11-25T00:31:00|train",
            "8|COMPLETED|0:0|n1|2026-11-25T01:00:00|2026-11-25T00:31:00|rlsweep:é b|x:bb",
        ),
    )
    assert states(handed("7"), handed("8")) == {"7": ("TIMEOUT", "exit 0:0")}


def test_what_squeue_forgot_sacct_is_asked_for_from_the_day_before_in_utc(script: Script) -> None:
    """Asked shortly after midnight, or in the night in which the clocks are put back, a local time would miss it."""
    script("squeue", "true")
    calls = script("sacct", f'echo "zone $TZ" >> {{calls}}\n{says("7_3|FAILED|1:0|n1|Unknown|x|rlsweep:s:aa")}')
    text = calls.parent / "bin" / "sacct"
    text.write_text(text.read_text().replace("{calls}", f"'{calls}'"))
    job = read_jobs([handed("7_3"), handed("7_4", at=LATE + 1e6)])["7_3"]
    assert (job.state, job.reason, job.start) == ("FAILED", "exit 1:0", None)
    asked = calls.read_text()
    assert "--starttime=2026-10-24T00:30:00" in asked and "zone UTC" in asked and "--jobs=7 " in asked


def test_of_several_records_of_a_requeued_job_the_newest_counts(script: Script) -> None:
    script("squeue", "true")
    lines = [
        "7|NODE_FAIL|0:0|n1|2026-10-25T01:00:00|2026-10-25T00:31:00|rlsweep:s:aa",
        "7|CANCELLED by 0|0:15|n2|2026-10-25T03:00:00|2026-10-25T02:31:00|rlsweep:s:aa",
    ]
    for order in (lines, lines[::-1]):
        script("sacct", says(*order))
        assert states(handed("7")) == {"7": ("CANCELLED", "exit 0:15")}


def test_elements_that_never_started_are_told_from_their_arrays_record(script: Script) -> None:
    """Elements cancelled together while they waited have one record; one cancelled alone before has none."""
    script("squeue", "true")
    script(
        "sacct",
        says(
            "7_0|FAILED|1:0|n1|2026-10-25T01:00:00|2026-10-25T00:31:00|rlsweep:s:aa",
            "7_[1,3-5:2%2]|CANCELLED by 0|0:0|None assigned|None|2026-10-25T00:31:00|rlsweep:s:aa",
        ),
    )
    never = ("CANCELLED", "cancelled before it started")
    asked = [handed(f"7_{number}") for number in range(4)] + [handed("9_0")]
    assert states(*asked) == {"7_0": ("FAILED", "exit 1:0"), "7_1": never, "7_2": never, "7_3": never}


def test_a_record_without_an_end_of_a_job_that_is_not_in_the_queue_says_nothing(script: Script) -> None:
    script("squeue", "true")
    script(
        "sacct",
        says(
            "7|RUNNING|0:0|n1|2026-10-25T01:00:00|2026-10-25T00:31:00|rlsweep:s:aa",
            "8_2|RUNNING|0:0|n1|2026-10-25T01:00:00|2026-10-25T00:31:00|rlsweep:s:aa",
        ),
    )
    assert states(handed("7"), handed("8_2")) == {}


def test_accounting_that_cannot_be_asked_is_said_and_not_waited_for(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "_WAITS_S", (1e6,))
    script("squeue", says("7|RUNNING|None|n1|2026-10-25T01:00:00|rlsweep:s:aa"))
    words = "sacct: error: Problem talking to the database: Connection refused"
    calls = script("sacct", f"echo '{words}' >&2; exit 1")
    found = read_jobs([handed("7"), handed("8")])
    assert (found["7"].state, found["8"].state) == ("RUNNING", queue.UNKNOWN)
    assert words in found["8"].reason
    script("sacct", "echo Slurm accounting storage is disabled >&2; exit 1")
    assert "storage is disabled" in read_jobs([handed("8")])["8"].reason
    assert calls.read_text().count("sacct") == 2


def test_without_accounting_sacct_is_not_called(script: Script) -> None:
    script("squeue", "true")
    calls = script("sacct", "true")
    assert read_jobs([handed("7", accounting="none")]) == {}
    assert "sacct" not in calls.read_text()


def test_the_record_of_finished_jobs_serves_where_there_is_no_database(script: Script) -> None:
    """It lists elements under numbers of their own, and loses the state where the name has a blank."""
    script("squeue", "true")
    calls = script(
        "sacct",
        says("7|FAILED|1:0|n1|2026-10-25T01:00:00|2026-10-25T01:00:00|rlsweep:s:aa", "8||3:0|n1|x|x|rlsweep:é"),
    )
    asked = [handed(id, accounting="jobcomp") for id in ("7", "8", "7_0")]
    assert states(*asked) == {"7": ("FAILED", "exit 1:0")}
    assert "--completion" in calls.read_text()


def test_a_queue_that_cannot_be_read_is_an_error_of_the_scheduler(script: Script) -> None:
    script("squeue", "echo 'slurm_load_jobs error: Access denied' >&2; exit 1")
    for ask in (own_jobs, lambda: read_jobs([handed("7")])):
        with pytest.raises(SchedulerError, match="Access denied"):
            ask()


def test_the_owner_of_another_ones_jobs_is_asked_for_if_it_has_a_name(script: Script) -> None:
    """squeue refuses numbers without an account, which a network file system may well make up."""
    calls = script("squeue", "true")
    for owner in (1, 2**31 - 7):
        read_jobs([handed("7", accounting="none")], owner)
    first, second = calls.read_text().splitlines()
    assert ",1 " in first or "=1," in first
    assert str(2**31 - 7) not in second


def test_a_thousand_runs_are_a_short_command(script: Script) -> None:
    script("squeue", "true")
    calls = script("sacct", "true")
    read_jobs([handed(f"{900000 + number // 100}_{number % 100}", at=time.time()) for number in range(1000)])
    assert calls.read_text().count("\n") == 2 and len(calls.read_text()) < 1000


@pytest.mark.parametrize(
    ("id", "expected"),
    [
        ("12", ["12"]),
        ("12_3", ["12_3"]),
        ("12_[0,4-6%2]", ["12_0", "12_4", "12_5", "12_6"]),
        ("12_[1-9:4]", ["12_1", "12_5", "12_9"]),
        ("12_[1-2,...]", ["12_1", "12_2"]),
    ],
)
def test_ids_of_an_arrays_waiting_part(id: str, expected: list[str]) -> None:
    assert elements(id) == expected

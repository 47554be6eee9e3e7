import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from rlsweep.errors import RlsweepError
from rlsweep.store import attempts, checkpoints, rows
from rlsweep.store.attempts import Attempt, Superseded
from rlsweep.store.files import Check, write_bytes
from rlsweep.store.journal import Journal, newest_row, read_rows, rewind
from rlsweep.store.layout import Root, RunFolder


def row(step: int, **metrics: float) -> dict[str, Any]:
    return {"kind": "step", "step": step, "time": 1000.0 + step, "metrics": {"train/loss": step / 10, **metrics}}


def write(run: RunFolder, attempt: Attempt, steps: range) -> list[int]:
    """Append rows; the journal's length after each."""
    lengths = []
    with Journal(run, attempt) as journal:
        for step in steps:
            journal.append(row(step))
            lengths.append(journal.length)
    return lengths


def steps(path: Path) -> list[int]:
    return [found["step"] for found in read_rows(path)]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return Root(tmp_path / "dossier à moi").run("0123456789ab")


@pytest.fixture
def first(run: RunFolder) -> Attempt:
    return attempts.claim(run)


def test_rows_come_back_as_written(run: RunFolder, first: Attempt) -> None:
    evaluation = {
        "kind": "evaluation",
        "step": 0,
        "time": 1.5,
        "metrics": {"evaluation/pass_rate": 0.25},
        "counts": [1, 0, 2],
        "samples": 4,
    }
    with Journal(run, first) as journal:
        assert journal.length == 0
        journal.append(evaluation)
        journal.append(row(1))
        assert journal.length == run.journal.stat().st_size
    journal.close()
    assert read_rows(run.journal) == [evaluation, row(1)]
    assert read_rows(run.path / "none.jsonl") == []


def test_a_metric_outside_the_schema_is_a_bug(run: RunFolder, first: Attempt) -> None:
    with Journal(run, first) as journal, pytest.raises(KeyError, match="train/lose"):
        journal.append(row(1, **{"train/lose": 1.0}))
    assert read_rows(run.journal) == []


def test_values_that_are_not_finite_are_null_in_the_file_and_nan_when_read(run: RunFolder, first: Attempt) -> None:
    with Journal(run, first) as journal:
        journal.append(row(1, **{"train/grad_norm": float("inf"), "train/entropy": float("nan")}))
    assert json.loads(run.journal.read_text())["metrics"]["train/grad_norm"] is None
    metrics = read_rows(run.journal)[0]["metrics"]
    assert math.isnan(metrics["train/grad_norm"]) and math.isnan(metrics["train/entropy"])


def test_a_torn_last_line_is_ignored_and_cut_off_before_the_next_row(run: RunFolder, first: Attempt) -> None:
    write(run, first, range(3))
    whole = run.journal.read_bytes()
    for torn in (whole[:-7], whole + b'{"kind": "st', whole + b"\0" * 50, whole + b"[1]\n", whole[:-7] + b"\n"):
        run.journal.write_bytes(torn)
        before = steps(run.journal)
        assert before in ([0, 1], [0, 1, 2])
        write(run, first, range(9, 10))
        assert steps(run.journal) == [*before, 9]


def test_a_torn_line_in_the_middle_is_refused_by_name_and_line(run: RunFolder, first: Attempt) -> None:
    write(run, first, range(3))
    lines = run.journal.read_bytes().splitlines(keepends=True)
    run.journal.write_bytes(lines[0] + lines[1][:-9] + b"\n" + lines[2])
    with pytest.raises(RlsweepError, match=r"metrics.jsonl:2: not a whole row"):
        read_rows(run.journal)


def test_a_full_disk_leaves_whole_rows(run: RunFolder, first: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    write(run, first, range(2))
    real, calls = os.write, []

    def full(descriptor: int, data: bytes) -> int:
        if calls:
            raise OSError(28, "No space left on device")
        calls.append(1)
        return real(descriptor, data[:5])

    with Journal(run, first) as journal:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            journal.append(row(2))
        monkeypatch.undo()
        journal.append(row(3))
    assert steps(run.journal) == [0, 1, 3]


def test_an_attempt_that_lost_the_run_writes_nothing_more(run: RunFolder, first: Attempt) -> None:
    journal = Journal(run, first)
    journal.append(row(1))
    attempts.claim(run)
    with pytest.raises(Superseded):
        journal.append(row(2))
    with pytest.raises(Superseded):
        rewind(run, first, 0)
    journal.close()
    with pytest.raises(Superseded):
        Journal(run, first)
    assert steps(run.journal) == [1]


def test_rewinding_moves_later_rows_and_drops_a_torn_tail(run: RunFolder, first: Attempt) -> None:
    lengths = write(run, first, range(5))
    with open(run.journal, "ab") as file:
        file.write(b'{"kind": "step", "st')
    second = attempts.claim(run)
    rewind(run, second, lengths[2])
    assert run.journal.stat().st_size == lengths[2]
    assert steps(run.journal) == [0, 1, 2] and steps(second.discarded) == [3, 4]
    rewind(run, second, lengths[2])
    assert steps(run.journal) == [0, 1, 2] and steps(second.discarded) == [3, 4]


def test_rewinding_to_the_end_or_without_a_journal_takes_nothing_back(run: RunFolder, first: Attempt) -> None:
    rewind(run, first, 0)
    assert not run.journal.exists()
    lengths = write(run, first, range(2))
    rewind(run, first, lengths[-1])
    assert steps(run.journal) == [0, 1] and not first.discarded.exists()


def test_rewinding_further_keeps_what_was_taken_back_before(run: RunFolder, first: Attempt) -> None:
    lengths = write(run, first, range(5))
    second = attempts.claim(run)
    rewind(run, second, lengths[3])
    rewind(run, second, lengths[1])
    assert steps(run.journal) == [0, 1] and steps(second.discarded) == [2, 3, 4]


def test_a_length_that_is_no_end_of_a_row_is_refused(run: RunFolder, first: Attempt) -> None:
    lengths = write(run, first, range(2))
    for length in (lengths[0] - 3, lengths[1] + 1):
        with pytest.raises(RlsweepError, match=f"no row that ends at byte {length}"):
            rewind(run, first, length)
    assert steps(run.journal) == [0, 1]


@pytest.mark.parametrize("who", ["the same attempt", "the next attempt"])
@pytest.mark.parametrize("further", [0, 1])
def test_killed_between_discarding_and_truncating(
    run: RunFolder, first: Attempt, monkeypatch: pytest.MonkeyPatch, who: str, further: int
) -> None:
    lengths = write(run, first, range(6))
    second = attempts.claim(run)
    killed(run, second, lengths[3], monkeypatch)
    assert steps(run.journal) == [0, 1, 2, 3, 4, 5] and steps(second.discarded) == [4, 5]
    third = second if who == "the same attempt" else attempts.claim(run)
    killed(run, third, lengths[3 - further], monkeypatch)
    rewind(run, third, lengths[3 - further])
    assert steps(run.journal) == list(range(4 - further))
    everywhere = [step for attempt in attempts.every(run) for step in steps(attempt.discarded)]
    assert everywhere == list(range(4 - further, 6))


def killed(run: RunFolder, attempt: Attempt, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def write(path: Path, data: bytes, *check: Check) -> None:
        if path == run.journal:
            raise Killed
        write_bytes(path, data, *check)

    monkeypatch.setattr("rlsweep.store.journal.write_bytes", write)
    with pytest.raises(Killed):
        rewind(run, attempt, length)
    monkeypatch.undo()


def test_an_attempt_that_slept_just_before_its_write_changes_nothing(
    run: RunFolder, first: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had just seen that it owns the run; its successor takes nothing back, or a row, and writes on."""
    lengths = write(run, first, range(3))
    zombie = Journal(run, first)
    second = attempts.claim(run)
    rewind(run, second, lengths[2])
    monkeypatch.setattr(Attempt, "require_owner", lambda self: None)
    zombie.append(row(99))
    assert steps(run.journal) == [0, 1, 2]
    write(run, second, range(3, 5))
    zombie.append(row(100))
    zombie.close()
    assert steps(run.journal) == [0, 1, 2, 3, 4]


def test_an_attempt_that_slept_while_it_took_the_journal_over_changes_nothing(
    run: RunFolder, first: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sleeps just before its look at who owns the run, and just after; its successor writes rows meanwhile."""
    lengths = write(run, first, range(3))
    replaced, checked = Path.replace, Attempt.require_owner

    def successor() -> None:
        monkeypatch.setattr(Path, "replace", replaced)
        monkeypatch.setattr(Attempt, "require_owner", checked)
        other = attempts.claim(run)
        checkpoints.take_over(run, other)
        rewind(run, other, lengths[1])
        write(run, other, range(7, 9))

    def slept_after(path: Path, target: Path) -> Path:
        if target == run.journal:
            successor()
        return replaced(path, target)

    second = attempts.claim(run)
    with monkeypatch.context() as patch, pytest.raises(Superseded):
        patch.setattr(Path, "replace", slept_after)
        rewind(run, second, lengths[1])
    assert steps(run.journal) == [0, 1, 7, 8]

    calls = []

    def slept_before(attempt: Attempt) -> None:
        calls.append(attempt)
        if len(calls) == 2:
            successor()
        checked(attempt)

    fourth = attempts.claim(run)
    with monkeypatch.context() as patch, pytest.raises(Superseded):
        patch.setattr(Attempt, "require_owner", slept_before)
        rewind(run, fourth, lengths[1])
    assert steps(run.journal) == [0, 1, 7, 8]
    assert not list(run.path.glob(".*"))


def test_rows_lost_at_different_times_stay_with_their_attempts(run: RunFolder, first: Attempt) -> None:
    lengths = write(run, first, range(4))
    second = attempts.claim(run)
    rewind(run, second, lengths[1])
    write(run, second, range(2, 7))
    third = attempts.claim(run)
    rewind(run, third, lengths[1])
    assert steps(second.discarded) == [2, 3] and steps(third.discarded) == [2, 3, 4, 5, 6]


def test_the_newest_row_of_a_kind_is_found_from_the_end(run: RunFolder, first: Attempt) -> None:
    assert newest_row(run.journal, "step") is None
    with Journal(run, first) as journal:
        for step in range(3):
            journal.append({**row(step), "kind": "evaluation", "metrics": {"evaluation/pass_rate": 0.1 * step}})
            journal.append(row(step))
            journal.append(row(step + 0))
    with open(run.journal, "ab") as file:
        file.write(b'{"kind": "evaluation", "step": 9')
    evaluation, step_row = newest_row(run.journal, "evaluation"), newest_row(run.journal, "step")
    assert evaluation is not None and evaluation["step"] == 2
    assert step_row is not None and step_row["step"] == 2
    assert newest_row(run.journal, "other") is None
    run.journal.write_bytes(run.journal.read_bytes().splitlines(keepends=True)[0])
    only = newest_row(run.journal, "evaluation")
    assert only is not None and only["step"] == 0


@pytest.mark.parametrize("steps", [0, 1, 40, 400])
@pytest.mark.parametrize("tail", [1, 60, 97, 4096])
def test_newest_rows_are_found_however_little_is_read_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, tail: int
) -> None:
    """Wherever the first block begins: between rows, inside one, before the file. Only the first row is of its kind."""
    monkeypatch.setattr(rows, "_TAIL", tail)
    path = tmp_path / "metrics.jsonl"
    written = [{"kind": "evaluation", "step": 0, "time": 0.0, "metrics": {}, "counts": [1] * 50}]
    written += [{"kind": "step", "step": 1 + step, "time": 1.0, "metrics": {"é": 0.5}} for step in range(steps)]
    path.write_text("".join(json.dumps(each) + "\n" for each in written) + '{"kind": "step", "st')
    found = rows.newest_rows(path, ("step", "evaluation"))
    assert found == {"evaluation": written[0]} | ({"step": written[-1]} if steps else {})


def test_only_the_tail_of_a_long_journal_is_read(tmp_path: Path) -> None:
    """By the kernel's count of what this process has read."""

    def bytes_read() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    path = tmp_path / "metrics.jsonl"
    kinds = ("step", "evaluation")
    written = [{"kind": kind, "step": step, "time": 1.0, "metrics": {}} for step in range(50_000) for kind in kinds]
    path.write_text("".join(json.dumps(each) + "\n" for each in written))
    before = bytes_read()
    assert rows.newest_rows(path, kinds) == dict(zip(kinds, written[-2:], strict=True))
    assert bytes_read() - before < 100_000 < path.stat().st_size / 50


@pytest.mark.parametrize(
    "bad",
    [{"kind": "step"}, {"kind": "step", "step": 3, "metrics": 3, "time": 1.0}, {"kind": "evaluation", "step": "x"}],
)
def test_a_row_without_step_or_metrics_is_damage(tmp_path: Path, bad: dict[str, object]) -> None:
    path = tmp_path / "metrics.jsonl"
    good = {"kind": "step", "step": 1, "time": 1.0, "metrics": {}}
    path.write_text("".join(json.dumps(each) + "\n" for each in (bad, good)))
    with pytest.raises(RlsweepError, match=r"metrics.jsonl:1: not a whole row"):
        read_rows(path)
    path.write_text("".join(json.dumps(each) + "\n" for each in (good, bad)))
    found = newest_row(path, "step")
    assert found is not None and found["step"] == 1

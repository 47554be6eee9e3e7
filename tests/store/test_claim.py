"""One holder at a time, whoever died before."""

import os
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from rlsweep.errors import RlsweepError
from rlsweep.store.claim import Claim, claimed, holder
from rlsweep.store.files import read_json, write_json


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "held"


def _names(path: Path) -> list[str]:
    return sorted(each.name for each in path.parent.iterdir())


def test_a_second_taker_gets_nothing_until_the_first_has_ended(path: Path) -> None:
    with claimed(path) as first:
        assert first is not None
        with claimed(path) as second:
            assert second is None
        found = holder(path)
        assert found is not None and found["pid"] == os.getpid()
        assert _names(path) == ["held"]
    assert _names(path) == [] and holder(path) is None


def test_it_is_given_up_when_the_work_fails(path: Path) -> None:
    with pytest.raises(KeyError), claimed(path):
        raise KeyError
    assert _names(path) == []


def _leave(path: Path, **changed: object) -> None:
    claim = Claim.take(path)
    assert claim is not None
    write_json(path / "holder.json", {**read_json(path / "holder.json"), **changed})


def test_a_dead_holder_is_replaced(path: Path) -> None:
    _leave(path, start_ticks=1)
    with claimed(path) as claim:
        assert claim is not None
    assert _names(path) == []


def test_a_holder_on_another_host_is_believed_for_an_hour(path: Path) -> None:
    _leave(path, host="elsewhere", start_ticks=1)
    with claimed(path) as claim:
        assert claim is None
    old = time.time() - 4000
    os.utime(path / "holder.json", (old, old))
    with claimed(path) as claim:
        assert claim is not None


def test_a_folder_without_a_holder_does_not_block(path: Path) -> None:
    path.mkdir()
    with claimed(path) as claim:
        assert claim is not None


def test_a_holder_that_was_replaced_notices_and_leaves_the_claim_alone(path: Path) -> None:
    claim = Claim.take(path)
    assert claim is not None
    os.utime(path / "holder.json", (0, 0))
    claim.refresh()
    assert (path / "holder.json").stat().st_mtime > 0
    write_json(path / "holder.json", {**read_json(path / "holder.json"), "token": "another"})
    with pytest.raises(RlsweepError, match="took over"):
        claim.refresh()
    claim.release()
    assert _names(path) == ["held"]


def _race(path: Path, pipe: Connection) -> None:
    pipe.recv()
    claim = Claim.take(path)
    pipe.send(claim is not None)
    pipe.recv()


@pytest.mark.parametrize("stale", [False, True])
def test_of_many_at_once_exactly_one_wins(path: Path, stale: bool) -> None:
    if stale:
        _leave(path, start_ticks=1)
    context = get_context("fork")
    pipes, processes = [], []
    for _ in range(6):
        ours, theirs = context.Pipe()
        process = context.Process(target=_race, args=(path, theirs))
        process.start()
        pipes.append(ours)
        processes.append(process)
    for pipe in pipes:
        pipe.send("go")
    assert sum(pipe.recv() for pipe in pipes) == 1
    for pipe in pipes:
        pipe.send("end")
    for process in processes:
        process.join()

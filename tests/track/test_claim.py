"""One sync at a time under a root, whoever died before."""

from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from rlsweep.errors import RlsweepError
from rlsweep.store.files import read_json, write_json
from rlsweep.track.claim import Claim, claimed


def _names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_a_second_taker_gets_nothing_until_the_first_has_ended(tmp_path: Path) -> None:
    with claimed(tmp_path) as first:
        assert first is not None
        with claimed(tmp_path) as second:
            assert second is None
        assert _names(tmp_path) == ["mlflow.sync"]
    assert _names(tmp_path) == []


def test_it_is_given_up_when_the_work_fails(tmp_path: Path) -> None:
    with pytest.raises(KeyError), claimed(tmp_path):
        raise KeyError
    assert _names(tmp_path) == []


def _leave(root: Path, **holder: object) -> None:
    claim = Claim.take(root / "mlflow.sync")
    assert claim is not None
    path = root / "mlflow.sync" / "holder.json"
    write_json(path, {**read_json(path), **holder})


def test_a_dead_holder_is_replaced(tmp_path: Path) -> None:
    _leave(tmp_path, start_ticks=1)
    with claimed(tmp_path) as claim:
        assert claim is not None
    assert _names(tmp_path) == []


def test_a_holder_on_another_host_is_believed_for_an_hour(tmp_path: Path) -> None:
    import os
    import time

    _leave(tmp_path, host="elsewhere", start_ticks=1)
    with claimed(tmp_path) as claim:
        assert claim is None
    old = time.time() - 4000
    os.utime(tmp_path / "mlflow.sync" / "holder.json", (old, old))
    with claimed(tmp_path) as claim:
        assert claim is not None


def test_a_folder_without_a_holder_does_not_block(tmp_path: Path) -> None:
    (tmp_path / "mlflow.sync").mkdir()
    with claimed(tmp_path) as claim:
        assert claim is not None


def test_a_holder_that_was_replaced_notices_and_leaves_the_claim_alone(tmp_path: Path) -> None:
    claim = Claim.take(tmp_path / "mlflow.sync")
    assert claim is not None
    claim.refresh()
    path = tmp_path / "mlflow.sync" / "holder.json"
    write_json(path, {**read_json(path), "token": "another"})
    with pytest.raises(RlsweepError, match="took over"):
        claim.refresh()
    claim.release()
    assert _names(tmp_path) == ["mlflow.sync"]


def _race(root: Path, pipe: Connection) -> None:
    pipe.recv()
    claim = Claim.take(root / "mlflow.sync")
    pipe.send(claim is not None)
    pipe.recv()


@pytest.mark.parametrize("stale", [False, True])
def test_of_many_at_once_exactly_one_wins(tmp_path: Path, stale: bool) -> None:
    if stale:
        _leave(tmp_path, start_ticks=1)
    context = get_context("fork")
    pipes, processes = [], []
    for _ in range(6):
        ours, theirs = context.Pipe()
        process = context.Process(target=_race, args=(tmp_path, theirs))
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

"""What ranks agree on and add up: their gradients are those of one process, whatever share each of them has."""

import os
import signal
import socket
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from rlsweep.train import ranks
from rlsweep.train.asked import Asked, Stop
from rlsweep.train.ranks import Lost, Ranks
from rlsweep.train.update import share

SCRIPT = Path(__file__).with_name("share.py")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def start(world: int, model: str, folder: Path) -> list[dict[str, Any]]:
    """What each of so many ranks found."""
    port, processes = str(free_port()), []
    for rank in range(world):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "RANK": str(rank), "WORLD_SIZE": str(world)}
        environment |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        if world == 1:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(SCRIPT), model, str(folder / f"{world}-{rank}")]
        processes.append(subprocess.Popen(command, env=environment))
    assert [process.wait(timeout=250) for process in processes] == [0] * world
    return [torch.load(folder / f"{world}-{rank}") for rank in range(world)]


@pytest.fixture(scope="module")
def found(random_model_folder: str, tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """By number of ranks."""
    folder = tmp_path_factory.mktemp("shares")
    return {world: start(world, random_model_folder, folder) for world in (1, 2)}


def test_gradients_of_ranks_are_those_of_one_process(found: dict[int, list[dict[str, Any]]]) -> None:
    (alone,) = found[1]
    assert len(alone) == 3 * 4 * 3
    for name, (expected, measured, _) in alone.items():
        for rank in found[2]:
            gradients, metrics, _ = rank[name]
            assert metrics == pytest.approx(measured, rel=1e-5, abs=1e-7), name
            if expected is None:  # nothing to train on
                assert gradients is None and " none " in name
                continue
            assert [each is None for each in gradients] == [each is None for each in expected], name
            assert any(each is None for each in expected)
            one, both = (torch.cat([g.flatten() for g in each if g is not None]) for each in (expected, gradients))
            assert (one - both).norm() < 1e-5 * one.norm() and one.norm() > 0, name


def test_each_micro_batch_is_one_ranks(found: dict[int, list[dict[str, Any]]]) -> None:
    (alone,) = found[1]
    lengths = set()
    for name, (_, _, parts) in alone.items():
        shares = [rank[name][2] for rank in found[2]]
        assert len({len(each) for each in shares}) == 1, "each rank looks up as often"
        lengths.add(len(parts))
        assert sorted(part for each in shares for part in each if part) == sorted(parts), name
    assert 1 in lengths and max(lengths) > 5


def test_shares_go_round() -> None:
    parts = [[0], [1], [2], [3], [4]]
    shares = [share(parts, Ranks(rank, 3)) for rank in range(3)]
    assert shares == [[[0], [3]], [[1], [4]], [[2], []]]
    assert share(parts, Ranks()) == parts and share([], Ranks(1, 3)) == []


def test_gradients_are_summed_in_messages_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_MOST", 10)
    sizes = [4, 6, 1, 12, 3, 3]
    gradients = [torch.zeros(size) for size in sizes] + [torch.zeros(2, dtype=torch.bfloat16)]
    buckets = [[each.numel() for each in bucket] for bucket in ranks._buckets(gradients)]
    assert buckets == [[4, 6], [1], [12], [3, 3], [2]]
    assert list(ranks._buckets([])) == []


def test_one_rank_asks_nobody() -> None:
    alone = Ranks(stop=Stop())
    alone.check()
    alone.check_sparingly()
    alone.require_same("weights", lambda: 1 // 0)
    assert alone.gather([1.0, 2.0]) == [[1.0, 2.0]] and alone.from_lead("x") == "x"
    assert alone.any("saving", True) and not alone.any("saving", False)
    alone.stop.asked = True
    for look in (alone.check, alone.check_sparingly):
        with pytest.raises(Asked):
            look()


def test_a_rank_that_never_comes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "TIMEOUT", timedelta(seconds=1))
    with pytest.raises(Lost, match="only 1 of 2 ranks have come within 0:00:01"):
        Ranks(0, 2, ("127.0.0.1", free_port())).meet(cuda=False)
    with pytest.raises(Lost, match=r"rank 1 of 2 has lost another rank \(the ranks meet\)"):
        Ranks(1, 2, ("127.0.0.1", free_port())).meet(cuda=False)


def test_a_port_that_is_taken_is_named() -> None:
    """It was free when the job drew it, and another job's since: the next attempt draws another one."""
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Lost, match=f"rank 0 can't listen on port {port}"):
            Ranks(0, 2, ("127.0.0.1", port)).meet(cuda=False)


@pytest.mark.parametrize("asked", [0, 1])
def test_ranks_of_which_one_is_asked_before_all_have_come_all_stop(asked: int) -> None:
    """Three are expected and two have come; the one that is asked may be either."""
    port = free_port()
    both = [Ranks(rank, 3, ("127.0.0.1", port), Stop()) for rank in range(2)]
    ends: list[int] = []

    def meet(rank: Ranks) -> None:
        with pytest.raises(Asked):
            rank.meet(cuda=False)
        ends.append(rank.rank)

    threads = [threading.Thread(target=meet, args=(rank,)) for rank in both]
    for thread in threads:
        thread.start()
    threading.Event().wait(1.0)
    assert ends == []
    both[asked].stop.asked = True
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(ends) == [0, 1]


def test_a_signal_raises_while_loading_once_and_later_only_sets_a_flag() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    try:
        stop = Stop()
        stop.listen()
        with pytest.raises(Asked), stop.at_once():
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)  # while it cleans up
        with pytest.raises(Asked), stop.at_once():
            raise AssertionError("asked already")
        later = Stop()
        later.listen()
        signal.raise_signal(signal.SIGINT)
        assert later.asked
        with pytest.raises(Asked):
            later.check()
        swallowed = Stop()
        swallowed.listen()
        with pytest.raises(Asked), swallowed.at_once():
            try:
                signal.raise_signal(signal.SIGTERM)
            except BaseException:  # a library
                signal.raise_signal(signal.SIGTERM)
    finally:
        for number, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
            signal.signal(number, handler)

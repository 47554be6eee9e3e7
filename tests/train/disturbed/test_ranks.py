"""Two ranks train one run: as one process would, stopping at the same step, and never hanging when one is gone."""

import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from rlsweep.recipe.budget import Budget
from rlsweep.recipe.execution import Execution
from rlsweep.recipe.key import run_key
from rlsweep.recipe.off_policy import Ppo
from rlsweep.recipe.resolved import dump
from rlsweep.recipe.reward import Reward
from rlsweep.recipe.schema import Recipe
from rlsweep.store import attempts, checkpoints, outcome
from rlsweep.store.journal import read_rows
from rlsweep.store.layout import Root, RunFolder


@dataclass(frozen=True)
class Ended:
    """How a rank ended."""

    code: int
    said: str
    wrote: list[str]


@dataclass(frozen=True)
class Pair:
    """Starts both ranks of a run on this machine, and waits for their ends."""

    forges: tuple[Any, Any]

    def __call__(self, run: RunFolder, *disturbed: Any, **how: Any) -> list[Ended]:
        self.begin(run, *disturbed, **how)
        return self.end()

    def begin(
        self, run: RunFolder, disturbed: int = 0, moment: str | None = None, *given: int, **how: Any
    ) -> list[int]:
        """The processes of both."""
        attempt = attempts.claim(run)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        processes = []
        for rank, forge in enumerate(self.forges):
            environment = {
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
            befalls = (moment, *given) if rank == disturbed else ()
            words = ("--attempt", str(attempt.number))
            processes.append(forge.begin(run, *befalls, **how, words=words, environment=environment))
        return processes

    def end(self) -> list[Ended]:
        ends = [Ended(*forge.end(), forge.wrote) for forge in self.forges]
        assert ends[1].wrote == []
        return ends


@pytest.fixture(scope="module")
def pair(forge: Any, zombies: Any) -> Pair:
    return Pair((forge, zombies))


@pytest.fixture(scope="module")
def two(recipe: Recipe) -> Recipe:
    """Micro-batches of about three sequences, so that a step has several; every step's weights are kept."""
    execution = replace(recipe.execution, devices=2, microbatch_tokens=64, keep_every=1)
    return replace(recipe, execution=execution)


@pytest.fixture(scope="module")
def undisturbed(
    pair: Pair, two: Recipe, tmp_path_factory: pytest.TempPathFactory, models: Path, model_folder: str
) -> RunFolder:
    base = tmp_path_factory.mktemp("undisturbed")
    (base / "models").symlink_to(models)
    run = Root(base).run(run_key(two))
    run.path.mkdir(parents=True)
    run.recipe.write_text(dump(two))
    ends = pair(run)
    assert [each.code for each in ends] == [0, 0], ends
    assert [f"rank {rank} of 2, DistributedType.MULTI_CPU" in ends[rank].said for rank in (0, 1)] == [True, True]
    return run


def test_two_ranks_learn_what_one_process_learns(
    forge: Any, two: Recipe, folder: Any, undisturbed: RunFolder, ending: Any
) -> None:
    """To rounding, which Adam makes larger from step to step; counts exactly."""
    run = folder(replace(two, execution=replace(two.execution, devices=1)))
    assert forge.train(run)[0] == 0
    one, both = ending(run), ending(undisturbed)
    for step, tensors in both["weights"].items():
        apart = max(float((tensor - one["weights"][step][name]).abs().max()) for name, tensor in tensors.items())
        assert apart < 1e-5 or step > 3, (step, apart)
    assert len(both["weights"]) == 8
    for found, expected in zip(both["rows"], one["rows"], strict=True):
        assert {**found, "metrics": 0} == {**expected, "metrics": 0}
        assert found["metrics"] == pytest.approx(expected["metrics"], rel=1e-3, abs=1e-5)
        whole = {name for name, value in expected["metrics"].items() if isinstance(value, int)}
        assert "train/groups_trained" in whole or found["kind"] == "evaluation"
        assert {name: found["metrics"][name] for name in whole} == {name: expected["metrics"][name] for name in whole}
    assert both["samples"].keys() == one["samples"].keys()


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("moment", "times"),
    [("loading", 1), ("generation", 70), ("grading", 50), ("forward", 9), ("clipping", 4), ("optimizer", 3)],
)
def test_both_stop_at_the_same_step_whichever_is_asked(
    pair: Pair,
    two: Recipe,
    folder: Any,
    undisturbed: RunFolder,
    ending: Any,
    same: Any,
    rank: int,
    moment: str,
    times: int,
) -> None:
    run = folder(two)
    ends = pair(run, rank, moment, times, how="SIGTERM")
    assert [each.code for each in ends] == [75, 75], ends
    ended, saved = outcome.read(run), checkpoints.resumable(run)
    assert ended is not None and ended.step == (saved.step if saved else 0)
    assert (ended.step > 0) == (moment != "loading") and ended.reason.startswith("asked to stop")
    assert all(f"interrupted at step {ended.step}: asked to stop" in each.said for each in ends), ends
    ends = pair(run)
    assert [each.code for each in ends] == [0, 0], ends
    assert same(ending(run), ending(undisturbed))


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("moment", ["generation", "micro-batch", "updated"])
def test_a_rank_that_is_killed_leaves_no_other_waiting(
    pair: Pair, two: Recipe, folder: Any, undisturbed: RunFolder, ending: Any, same: Any, rank: int, moment: str
) -> None:
    """Rank 0, if it is left, saves the last finished step; if rank 1 is left, the newest checkpoint is what stands."""
    run = folder(two)
    times = {"generation": 60, "micro-batch": 9, "updated": 3}[moment]
    ends = pair(run, rank, moment, times, how="SIGKILL")
    assert ends[rank].code == -9 and ends[1 - rank].code == 75, ends
    left = ends[1 - rank].said
    assert f"rank {1 - rank} of 2 has lost another rank (" in left and "Traceback" not in left
    ended, saved = outcome.read(run), checkpoints.resumable(run)
    if rank == 0:
        assert ended is None
    else:
        assert ended is not None and saved is not None
        assert (ended.state, ended.step) == ("interrupted", saved.step) and "has lost another rank" in ended.reason
        assert [row for row in read_rows(run.journal) if row["kind"] == "step"][-1]["step"] == saved.step
    ends = pair(run)
    assert [each.code for each in ends] == [0, 0], ends
    assert same(ending(run), ending(undisturbed))


def test_a_rank_that_stands_still_is_given_up(pair: Pair, two: Recipe, folder: Any) -> None:
    """After a while: here seconds, really minutes."""
    run = folder(two)
    _, still = pair.begin(run, 1, "micro-batch", 9, how="SIGSTOP", timeout_s=10)
    left = pair.forges[0].end()
    os.kill(still, signal.SIGKILL)
    assert left[0] == 75 and "rank 0 of 2 has lost another rank" in left[1], left
    assert pair.forges[1].end()[0] == -9
    ended, saved = outcome.read(run), checkpoints.resumable(run)
    assert ended is not None and saved is not None and ended.step == saved.step > 0


def test_a_rank_that_fails_says_why_to_the_others(pair: Pair, two: Recipe, folder: Any) -> None:
    run = folder(two)
    ends = pair(run, 1, "forward", 3, how="fail")
    assert [each.code for each in ends] == [1, 1], ends
    ended = outcome.read(run)
    assert ended is not None and ended.state == "failed"
    assert ended.reason == "rank 1 of 2 failed: ValueError: made to fail"
    assert "ValueError: made to fail" in ends[1].said and "Traceback" not in ends[0].said


def test_ranks_that_would_not_train_on_the_same_batch_fail(pair: Pair, two: Recipe, folder: Any) -> None:
    """One verifier finds what the other doesn't: in the first step, after the evaluation's 16 responses."""
    run = folder(two)
    ends = pair(run, 1, "grading", 20, how="differ")
    assert [each.code for each in ends] == [1, 1], ends
    ended = outcome.read(run)
    assert ended is not None and ended.state == "failed"
    assert "the ranks no longer do the same work (rollouts of step 1)" in ended.reason
    assert [row["kind"] for row in read_rows(run.journal)] == ["evaluation"]


def test_both_diverge(pair: Pair, two: Recipe, folder: Any) -> None:
    wild = replace(two, reward=Reward(correct=3e38, wrong=-3e38), normalization="none")
    run = folder(replace(wild, off_policy=Ppo(k=1), budget=Budget(steps=200)))
    ends = pair(run)
    assert [each.code for each in ends] == [76, 76], ends
    ended = outcome.read(run)
    assert ended is not None and ended.state == "diverged"


def test_another_number_of_ranks_goes_on_and_says_so(
    pair: Pair, forge: Any, two: Recipe, folder: Any, undisturbed: RunFolder, ending: Any
) -> None:
    run = folder(two)
    assert [each.code for each in pair(run, 1, "forward", 9, how="SIGTERM")] == [75, 75]
    folder(replace(two, execution=replace(two.execution, devices=1)))
    code, said = forge.train(run)
    assert code == 0 and "was written by 2 rank(s) and 1 go on" in said
    counts = [[row.get("counts") for row in each["rows"]] for each in (ending(run), ending(undisturbed))]
    assert len(counts[0]) == len(counts[1])


@pytest.mark.parametrize(
    ("environment", "words", "devices", "message"),
    [
        ({}, (), 2, "execution.devices: 2, and the run was started as 1 process"),
        (
            {"WORLD_SIZE": "2"},
            (),
            2,
            "WORLD_SIZE is 2, and RANK, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT",
        ),
        ({"RANK": "2"}, (), 2, "RANK: 2 is not one of 0..1"),
        ({"RANK": "one"}, (), 2, "must be whole numbers"),
        ({"RANK": "0"}, (), 2, "several ranks need --attempt"),
        ({"RANK": "0"}, ("--attempt", "1"), 3, "execution.devices: 3, and the run was started as 2 process"),
    ],
)
def test_what_does_not_fit_is_one_sentence(
    forge: Any,
    two: Recipe,
    folder: Any,
    environment: dict[str, str],
    words: tuple[str, ...],
    devices: int,
    message: str,
) -> None:
    run = folder(replace(two, execution=replace(two.execution, devices=devices)))
    if words:
        attempts.claim(run)
    if "RANK" in environment:
        environment = {
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "1",
        } | environment
    forge.begin(run, words=words, environment=environment)
    code, said = forge.end()
    assert code == 2 and message in said and "Traceback" not in said


def test_the_only_rank_is_one_process(
    forge: Any, recipe: Recipe, folder: Any, ending: Callable[[RunFolder], dict[str, Any]]
) -> None:
    """As a launcher starts it that sets the variables always: nobody is waited for."""
    run = folder(replace(recipe, budget=Budget(steps=1)))
    names = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "RANK", "LOCAL_RANK")
    environment = dict(zip(names, "1100", strict=True)) | {"MASTER_ADDR": "no.such.host", "MASTER_PORT": "1"}
    forge.begin(run, environment=environment)
    code, said = forge.end()
    assert code == 0 and "one process, DistributedType.NO" in said
    assert Execution().devices != 1 and ending(run)["ended"] == ("finished", 1)

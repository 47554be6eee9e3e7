from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlsweep.launch.status import RunStatus, status
from rlsweep.report.runs import read_run
from rlsweep.store import attempts
from rlsweep.store.journal import Journal, rewind
from rlsweep.store.layout import Root, RunFolder, SweepFolder

Make = Callable[..., SweepFolder]


Only = tuple[RunFolder, RunStatus]


@pytest.fixture
def only(tmp_path: Path, make_sweep: Make, fake: Any) -> Only:
    """The one run of a sweep, without any row yet, and its status."""
    root = Root(tmp_path)
    folder = make_sweep(root, "s", {"base": fake(points=0, seeds=(0,))})
    seen = status(folder, root).runs[0]
    return root.run(seen.run_key), seen


def step(number: int, **metrics: float) -> dict[str, Any]:
    return {"kind": "step", "step": number, "time": 1.0, "metrics": {"clock/flops": 100.0 * number, **metrics}}


def evaluation(number: int, **metrics: float) -> dict[str, Any]:
    metrics = {"clock/flops": 100.0 * number, "clock/samples": 7.0 * number, **metrics}
    return {"kind": "evaluation", "step": number, "time": 1.0, "metrics": metrics, "counts": [1, 2], "samples": 2}


def test_what_was_discarded_on_the_way_counts_as_lost(tmp_path: Path, make_sweep: Make, fake: Any) -> None:
    root = Root(tmp_path)
    folder = make_sweep(root, "s", {"base": fake(points=0, seeds=(0,))})
    run = root.run(status(folder, root).runs[0].run_key)
    with Journal(run, attempts.claim(run)) as journal:
        journal.append(evaluation(0))
        journal.append(step(1))
        journal.append(step(2))
        saved = journal.length
        journal.append(step(3))
        journal.append(step(4))
    again = attempts.claim(run)
    rewind(run, again, saved)
    with Journal(run, again) as journal:
        journal.append(step(3))
    row = read_run(run, status(folder, root).runs[0], "flops")
    assert (row.attempts, row.step, row.compute, row.lost) == (2, 3, 300.0, 200.0)
    assert row.sizes == ((2, 2),)
    assert row.pass_rate == 0.75


def test_truncation_is_the_larger_of_evaluation_and_training(only: Only) -> None:
    run, seen = only
    with Journal(run, attempts.claim(run)) as journal:
        journal.append(step(1, **{"train/truncated": 0.9}))
        journal.append(evaluation(1))
        journal.append(step(2, **{"train/truncated": 0.1}))
        journal.append(step(3, **{"train/truncated": 0.3}))
        journal.append(evaluation(3, **{"evaluation/truncated": 0.05, "evaluation/interrupted": 0.5}))
    row = read_run(run, seen, "flops")
    assert row.interrupted == 0.5
    assert row.truncated == pytest.approx((0.9 + 0.1 + 0.3) / 3)
    with Journal(run, attempts.newest(run) or attempts.claim(run)) as journal:
        journal.append(evaluation(4, **{"evaluation/truncated": 0.6}))
    assert read_run(run, seen, "flops").truncated == 0.6


def test_truncation_at_its_worst(only: Only) -> None:
    """The mean of training between two evaluations, so that one step says little, or an evaluation."""
    run, seen = only
    assert read_run(run, seen, "flops").most_truncated is None
    with Journal(run, attempts.claim(run)) as journal:
        journal.append(evaluation(0, **{"evaluation/truncated": 0.1}))
        journal.append(step(1, **{"train/truncated": 0.9}))
        journal.append(step(2, **{"train/truncated": 0.3}))
        journal.append(evaluation(2, **{"evaluation/truncated": 0.02}))
        journal.append(step(3, **{"train/truncated": 0.01}))
    assert read_run(run, seen, "flops").most_truncated == pytest.approx(0.6)
    with Journal(run, attempts.newest(run) or attempts.claim(run)) as journal:
        journal.append(step(4, **{"train/truncated": float("nan")}))
        journal.append(evaluation(4, **{"evaluation/truncated": 0.7}))
        journal.append(step(5, **{"train/truncated": 0.8}))  # since the last evaluation
    assert read_run(run, seen, "flops").most_truncated == pytest.approx(0.8)
    assert read_run(run, seen, "flops").truncated == pytest.approx(0.7)


def test_verifier_errors_add_up(only: Only) -> None:
    run, seen = only
    with Journal(run, attempts.claim(run)) as journal:
        journal.append(evaluation(0, **{"evaluation/verifier_errors": 2}))
        journal.append(step(1, **{"train/verifier_errors": 3}))
        journal.append(step(2))  # of a version that didn't count them
    assert read_run(run, seen, "flops").verifier_errors == 5


def test_evaluations_are_marked_down_to_each_prompt(only: Only) -> None:
    run, seen = only
    with Journal(run, attempts.claim(run)) as journal:
        journal.append(evaluation(0))
        journal.append(evaluation(1))
        journal.append({**evaluation(2), "counts": [2, 1]})
        journal.append(evaluation(3, **{"evaluation/response_tokens": 5.0}))
        journal.append({**evaluation(4), "counts": [0, 0]})
        journal.append({**evaluation(5), "counts": [2, 2]})
        journal.append({**evaluation(6), "samples": 3})
    marks = read_run(run, seen, "flops").marks
    assert list(marks) == [0, 1, 2, 3, 6]  # all wrong and all right say nothing
    assert marks[0] == marks[1] and len({marks[n] for n in (1, 2, 3, 6)}) == 4


def test_steps_and_samples_are_axes_too(tmp_path: Path, make_sweep: Make, fake: Any) -> None:
    root = Root(tmp_path)
    folder = make_sweep(root, "s", {"base": fake(points=3, seeds=(0,))})
    seen = status(folder, root).runs[0]
    run = root.run(seen.run_key)
    assert read_run(run, seen, "steps").curve.compute.tolist() == [0, 10, 20]
    assert read_run(run, seen, "samples").curve.compute.tolist() == [0, 640, 1280]
    assert read_run(run, seen, "steps").curve.unit == "steps"


def test_a_run_that_never_began_has_a_row(tmp_path: Path, make_sweep: Make, fake: Any) -> None:
    root = Root(tmp_path)
    folder = make_sweep(root, "s", {"base": fake(points=0, seeds=(5,))})
    row = read_run(root.run("none"), status(folder, root).runs[0], "flops")
    assert (row.state, row.seed, row.step, row.attempts, row.pass_rate, row.compute) == ("waiting", 5, 0, 0, None, None)

"""A curve is the same from the journal and from MLflow."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlsweep.curves.journal import from_run
from rlsweep.curves.mlflow import from_mlflow
from rlsweep.curves.read import read_curves
from rlsweep.errors import UsageError
from rlsweep.law.curve import Curve
from rlsweep.report.build import build
from rlsweep.store.files import read_json, write_json
from rlsweep.store.layout import Root
from rlsweep.track import sync


def _same(left: Curve, right: Curve) -> None:
    assert (left.name, left.seed, left.unit) == (right.name, right.seed, right.unit)
    assert left.steps is not None
    assert right.steps is not None
    for ours, theirs in zip(
        (left.compute, left.pass_rate, left.variance, left.steps),
        (right.compute, right.pass_rate, right.variance, right.steps),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)


@pytest.fixture
def trainers(world: Any) -> list[tuple[str, int, Any]]:
    found = []
    for variant, seed in (("base", 0), ("base", 1), ("loss=dapo", 0)):
        trainer = world.begin(variant, seed).evaluate()
        for steps in (3, 4 + seed, 5):
            trainer.steps(steps).evaluate()
        found.append((variant, seed, trainer.save().end("finished")))
    return found


@pytest.mark.parametrize("unit", ["flops", "device_hours"])
def test_the_curves_of_a_sweep(world: Any, trainers: list[tuple[str, int, Any]], unit: str) -> None:
    sync(world.root, world.sweep, say=print)
    curves = from_mlflow(world.sweep, world.root, unit=unit)
    assert len(curves) == 3
    for curve, (variant, seed, trainer) in zip(curves, trainers, strict=True):
        assert len(curve.compute) == 4
        assert (curve.variance[1:] > 0).all()
        _same(curve, from_run(trainer.run, variant, seed, unit))


def test_a_run_or_a_sweep_by_its_id(world: Any, trainers: list[tuple[str, int, Any]]) -> None:
    from mlflow import MlflowClient

    from rlsweep.track.where import locate

    parent = sync(world.root, world.sweep, say=print).parent
    assert parent is not None
    assert len(from_mlflow(parent, world.root)) == 3
    client = MlflowClient(tracking_uri=locate(world.root.path, {}).uri)
    experiment = client.get_experiment_by_name("tiny")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id], "attributes.run_name = 'base seed 1'")
    (curve,) = from_mlflow(run.info.run_id, world.root)
    assert curve.unit == "flops"  # by the device of the run
    _same(curve, from_run(trainers[1][2].run, "base", 1, "flops"))


def test_a_raised_budget_has_the_curve_of_the_direct_run(world: Any) -> None:
    """An evaluation off the schedule stands only while it is the last."""
    trainer = world.begin().evaluate().steps(2).evaluate().steps(1).evaluate(off_schedule=True).save().end("finished")
    sync(world.root, world.sweep, say=print)
    (before,) = from_mlflow(world.sweep, world.root)
    _same(before, from_run(trainer.run, "base", 0, "flops"))
    trainer.resume().steps(1).evaluate().save().end("finished")
    sync(world.root, world.sweep, say=print)
    (after,) = from_mlflow(world.sweep, world.root)
    _same(after, from_run(trainer.run, "base", 0, "flops"))
    assert before.steps is not None
    assert after.steps is not None
    assert (list(before.steps), list(after.steps)) == ([0, 2, 3], [0, 2, 4])


def test_a_mixed_sweep_is_counted_in_flops_and_a_run_in_what_it_had(world: Any) -> None:
    cpu, gpu = world.begin().evaluate(), world.begin("loss=dapo").evaluate()
    found = read_json(gpu.run.provenance)
    write_json(gpu.run.provenance, {**found, "devices": {"kind": "cuda", "name": "H200", "count": 8}})
    for trainer in (cpu, gpu):
        trainer.steps(2).evaluate().end("finished")
    sync(world.root, world.sweep, say=print)
    assert {curve.unit for curve in from_mlflow(world.sweep, world.root)} == {"flops"}
    assert build(world.root, world.sweep).unit == "flops"
    assert [read_curves(trainer.run.path)[0].unit for trainer in (cpu, gpu)] == ["flops", "device_hours"]


def test_only_what_stands_now(world: Any) -> None:
    """Neither a superseded MLflow run nor a run without an evaluation gives a curve."""
    trainer = world.begin().evaluate().steps(2).save().steps(2).evaluate().end("diverged")
    world.begin("loss=dapo").steps(1).end("failed")
    sync(world.root, world.sweep, say=print)
    assert len(from_mlflow(world.sweep, world.root)[0].compute) == 2
    trainer = trainer.resume().steps(3).evaluate().end("finished")
    sync(world.root, world.sweep, say=print)
    (curve,) = from_mlflow(world.sweep, world.root)
    assert curve.steps is not None
    assert list(curve.steps) == [0, 5]
    _same(curve, from_run(trainer.run, "base", 0, "flops"))


@pytest.mark.parametrize("source", ["nothing", "it's", "", "0" * 32])
def test_what_is_not_there(world: Any, trainers: list[tuple[str, int, Any]], source: str) -> None:
    sync(world.root, world.sweep, say=print)
    with pytest.raises(UsageError, match="neither a sweep nor a"):
        from_mlflow(source, world.root)


def test_reading_makes_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(UsageError, match="there is no MLflow store"):
        from_mlflow("x", Root(tmp_path))
    assert list(tmp_path.iterdir()) == []

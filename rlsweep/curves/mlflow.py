"""The curves of a sweep or a run as MLflow has them: the same as those of the journals."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rlsweep.curves.axis import default_axis
from rlsweep.curves.journal import from_run
from rlsweep.errors import UsageError
from rlsweep.law.curve import Curve
from rlsweep.store.layout import Root, RunFolder
from rlsweep.track.connect import connected
from rlsweep.track.search import all_experiments, all_runs
from rlsweep.track.where import locate

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_ROWS = "evaluations.jsonl"


def from_mlflow(source: str, root: Root, *, unit: str | None = None) -> list[Curve]:
    """Curves by variant and seed. `source` is the name of a sweep, or the id of one of the MLflow runs that `rlsweep
    sync` made: a sweep's or a single run's. The store is that of the root, or the one MLFLOW_TRACKING_URI names.

    `unit` is by default device_hours where every run had accelerators, else flops. Runs without an evaluation are left
    out. UsageError where there is no such sweep or run, TrackingError where the store can't be read.
    """
    tracking = locate(root.path)
    if tracking.file is not None and not tracking.file.exists():
        raise UsageError(f"there is no MLflow store {tracking.shown} yet; `rlsweep sync` makes it")
    with connected(tracking) as client:
        runs = _runs(client, source)
        chosen = unit or default_axis(run.data.tags.get("rlsweep.device") for run in runs)
        curves = [_curve(client, run, chosen) for run in runs]
    return sorted((curve for curve in curves if len(curve.compute)), key=lambda curve: (curve.name, curve.seed or 0))


def _runs(client: "MlflowClient", source: str) -> list["Run"]:
    """The runs that stand for what is wanted now: not superseded, nor of a variant that came to mean another recipe."""
    if not source.isprintable() or "'" in source:
        raise UsageError(f"{source!r} names neither a sweep nor an MLflow run")
    experiments = all_experiments(client)
    named = all_runs(client, experiments, f"attributes.run_id = '{source}'")
    if named and named[0].data.tags.get("rlsweep.kind") == "run":
        return named
    if named:
        found = all_runs(client, experiments, f"tags.`mlflow.parentRunId` = '{source}'")
    else:
        found = all_runs(client, experiments, f"tags.`rlsweep.sweep` = '{source}'")
    found = [run for run in found if run.data.tags.get("rlsweep.kind") == "run"]
    if not found:
        raise UsageError(f"MLflow has neither a sweep nor a run {source!r}; `rlsweep sync` sends them there")
    parents = sorted({run.data.tags["mlflow.parentRunId"] for run in found})
    if len(parents) > 1:
        raise UsageError(f"MLflow has several sweeps named {source!r}: give the run id of one, {', '.join(parents)}")
    superseded = {run.data.tags.get("rlsweep.supersedes") for run in found}
    return [run for run in found if run.info.run_id not in superseded and run.data.tags.get("rlsweep.wanted") == "true"]


def _curve(client: "MlflowClient", run: "Run", unit: str) -> Curve:
    """From the evaluation rows, which are an artifact as they stood: counts have no place among metrics."""
    tags = run.data.tags
    with tempfile.TemporaryDirectory() as folder:
        if any(artifact.path == _ROWS for artifact in client.list_artifacts(run.info.run_id)):
            downloaded = client.download_artifacts(run.info.run_id, _ROWS, folder)
            Path(downloaded).rename(RunFolder(Path(folder)).journal)
        return from_run(RunFolder(Path(folder)), tags["rlsweep.variant"], int(tags["rlsweep.seed"]), unit)

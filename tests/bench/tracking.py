"""`tracking.py FOLDER ROUNDS`: the journals of three runs to MLflow, by `sync` and by a plain loop, in turns."""

import json
import sys
from pathlib import Path

import synthetic
from mlflow import MlflowClient
from mlflow.entities import Metric
from phases import Phases
from race import in_turns

from rlsweep.store.journal import read_rows
from rlsweep.store.layout import Root
from rlsweep.track import sync
from rlsweep.track.connect import connected
from rlsweep.track.where import locate

folder = Path(sys.argv[1])
places = iter(range(10_000))
inside = Phases()
inside.book(MlflowClient, "log_batch", "log_batch")


def new_root() -> Root:
    """Runs that MLflow knows nothing of, and a store with its tables: neither is measured."""
    root = Root(folder / f"root-{next(places)}")
    synthetic.make(root, ("loss=dapo,cispo,gspo",), seeds=1, evaluations=20)
    with connected(locate(root.path, {})):
        pass
    return root


def ours(root: Root) -> dict[str, float]:
    """`rlsweep sync`: points, parameters, tags and artifacts, and how far it came, so that it can go on from there."""
    inside.spent.clear()
    result = sync(root, root.all_sweeps()[0].name, say=print)
    assert not result.problems and result.runs == 3, result
    return {"points": result.points, "log_batch_s": inside.complete()["log_batch"]}


def plain(root: Root) -> dict[str, float]:
    """What one would write by hand: every metric of every row, 1,000 to a call."""
    inside.spent.clear()
    client = MlflowClient(tracking_uri=locate(root.path, {}).uri)
    experiment = client.create_experiment("plain", artifact_location=str(root.path / "artifacts"))
    points = 0
    for run in root.runs.iterdir():
        id_ = client.create_run(experiment).info.run_id
        metrics = [
            Metric(name, value, round(row["time"] * 1000), row["step"])
            for row in read_rows(root.run(run.name).journal)
            for name, value in row["metrics"].items()
        ]
        for at in range(0, len(metrics), 1000):
            client.log_batch(id_, metrics=metrics[at : at + 1000])
        points += len(metrics)
    return {"points": points, "log_batch_s": inside.complete()["log_batch"]}


rounds, warm_up = int(sys.argv[2]), 1
roots = iter([new_root() for _ in range(2 * (rounds + warm_up))])
work = {"rlsweep sync": lambda: ours(next(roots)), "log_batch": lambda: plain(next(roots))}
sys.stdout, answers = sys.stderr, sys.stdout
print(json.dumps(in_turns(work, rounds, warm_up)), file=answers)

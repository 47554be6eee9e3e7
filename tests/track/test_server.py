"""Against a real tracking server, on a port of this machine."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlsweep.curves.journal import from_run
from rlsweep.curves.mlflow import from_mlflow
from rlsweep.track import TrackingError, sync


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(empty_store, folder / "server.db")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/server.db"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    with open(folder / "server.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=environment, start_new_session=True)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait(process, address, folder / "server.log")
        yield address
    finally:
        os.killpg(process.pid, 15)
        process.wait(30)


def _wait(process: "subprocess.Popen[bytes]", address: str, log: Path) -> None:
    end = time.monotonic() + 180
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(log.read_text())


def test_a_sweep_on_a_server(
    world: Any, server: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.replace("//", "//me:s3cret@"))
    trainer = world.begin().evaluate().steps(400, train__grad_norm=float("nan")).evaluate().save().steps(2)
    result = sync(world.root, world.sweep, say=print)
    assert result.store == server
    assert result.points == 3 + 1 + 400 * 4
    trainer.end("finished")
    assert sync(world.root, world.sweep, say=print).points == 2 * 3
    result = sync(world.root, world.sweep, say=print)
    assert (result.points, result.created) == (0, 0)
    (curve,) = from_mlflow(world.sweep, world.root)
    journal = from_run(trainer.run, "base", 0, "flops")
    np.testing.assert_array_equal(
        [curve.compute, curve.pass_rate, curve.variance], [journal.compute, journal.pass_rate, journal.variance]
    )
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=server)
    experiment = client.get_experiment_by_name("tiny")
    assert experiment is not None
    assert experiment.artifact_location.startswith("mlflow-artifacts:")
    (run,) = client.search_runs([experiment.experiment_id], "tags.`rlsweep.kind` = 'run'")
    assert run.info.status == "FINISHED"
    values = [point.value for point in client.get_metric_history(run.info.run_id, "train/loss")]
    assert values == [1 / step for step in range(1, 403)]
    norms = [point.value for point in client.get_metric_history(run.info.run_id, "train/grad_norm")]
    assert len(norms) == 400
    assert np.isnan(norms).all()
    assert capfd.readouterr() == ("", "")


def test_a_wrong_path_on_a_server(world: Any, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world.begin().steps(1).end("finished")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{server.replace('//', '//me:s3cret@')}/not/here")
    with pytest.raises(TrackingError) as caught:
        sync(world.root, world.sweep, say=print)
    assert "404" in str(caught.value)
    assert "s3cret" not in str(caught.value)

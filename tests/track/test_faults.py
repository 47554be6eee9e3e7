"""A store that is locked, damaged, out of reach or out of date: one sentence, in bounded time, and nothing lost."""

import os
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from mlflow import MlflowClient

from rlsweep.cli import main
from rlsweep.curves.journal import from_run
from rlsweep.curves.mlflow import from_mlflow
from rlsweep.launch import local
from rlsweep.store.layout import Root
from rlsweep.track import TrackingError, sync
from rlsweep.track.where import locate

FAKE = Path(__file__).parent.parent / "launch" / "fake_trainer.py"


def _message(world: Any) -> str:
    with pytest.raises(TrackingError) as caught:
        sync(world.root, world.sweep, say=print)
    message = str(caught.value)
    assert "\n" not in message
    assert not (world.root.path / "mlflow.sync").exists()
    return message


@pytest.fixture
def ready(world: Any) -> Any:
    world.begin().steps(2).end("finished")
    return world


def test_a_locked_store(ready: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlsweep.track.connect._BUSY_S", 0.1)
    with closing(sqlite3.connect(ready.root.path / "mlflow.db", isolation_level=None)) as database:
        database.execute("BEGIN EXCLUSIVE")
        message = _message(ready)
    assert "database is locked" in message
    assert "the journals are complete" in message
    assert "`rlsweep sync`" in message
    assert sync(ready.root, ready.sweep, say=print).points == 2 * 3


@pytest.mark.parametrize("content", [b"not a database, " * 1000, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_store(ready: Any, content: bytes) -> None:
    for file in ready.root.path.glob("mlflow.db*"):
        file.unlink()
    (ready.root.path / "mlflow.db").write_bytes(content)
    assert f"MLflow store sqlite:///{ready.root.path}/mlflow.db: " in _message(ready)


def test_a_store_with_pages_lost(ready: Any) -> None:
    file = ready.root.path / "mlflow.db"
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA journal_mode=DELETE")
    data = bytearray(file.read_bytes())
    data[8192:] = b"\x5a" * (len(data) - 8192)
    file.write_bytes(data)
    assert "the journals are complete" in _message(ready)


def test_a_store_of_another_version(ready: Any) -> None:
    with closing(sqlite3.connect(ready.root.path / "mlflow.db")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = 'older'")
    assert "mlflow db upgrade" in _message(ready)


def test_a_root_that_was_moved(ready: Any, tmp_path: Path) -> None:
    sync(ready.root, ready.sweep, say=print)
    shutil.copytree(ready.root.path, tmp_path / "elsewhere")
    moved = replace(ready, root=Root(tmp_path / "elsewhere"))
    message = _message(moved)
    assert f"its artifacts lay in {ready.root.path}/mlartifacts" in message
    assert f"move {tmp_path}/elsewhere/mlflow.db away" in message


def test_an_experiment_that_was_deleted(ready: Any) -> None:
    sync(ready.root, ready.sweep, say=print)
    client = MlflowClient(tracking_uri=locate(ready.root.path, {}).uri)
    experiment = client.get_experiment_by_name("tiny")
    assert experiment is not None
    client.delete_experiment(experiment.experiment_id)
    assert "mlflow experiments restore" in _message(ready)


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("scheme", ["http", "file", "postgresql", "nonsense"])
def test_a_server_that_is_not_there(ready: Any, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    uri = f"{scheme}://me:s3cret@127.0.0.1:{port}/x"
    if scheme == "file":
        uri = f"file://{ready.root.path}/mlruns"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    message = _message(ready)
    assert "the journals are complete" in message
    assert "s3cret" not in message
    assert scheme in message


def test_a_server_that_hangs(ready: Any, monkeypatch: pytest.MonkeyPatch, silent_port: int) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:s3cret@127.0.0.1:{silent_port}")
    message = _message(ready)
    assert f"MLflow store http://127.0.0.1:{silent_port}: " in message
    assert "s3cret" not in message


def test_another_sync_is_no_error(ready: Any) -> None:
    from rlsweep.store.claim import claimed

    said: list[str] = []
    with claimed(ready.root.path / "mlflow.sync"):
        result = sync(ready.root, ready.sweep, say=said.append)
    assert result.skipped
    assert f"another sync under {ready.root.path} is running, so tiny-loss was not sent" in said[0]
    assert f"rlsweep sync tiny-loss --root {ready.root.path}" in said[0]
    assert sync(ready.root, ready.sweep, say=said.append).points == 2 * 3


def test_a_store_that_is_cut_off_while_it_is_made_leaves_nothing(
    tmp_path: Path, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a schema would never be opened again; so the file gets its name last."""
    (world.root.path / "mlflow.db").unlink()
    world.begin().steps(1).end("finished")

    def fail(engine: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr("mlflow.store.db.utils._initialize_tables", fail)
    assert "disk I/O error" in _message(world)
    assert not list(world.root.path.glob("*mlflow.db*"))


def _held(world: Any) -> tuple[int, int, list[str]]:
    """What MLflow holds of a root: runs that stand for a sweep, points of all runs, names of those runs."""
    tracking = locate(world.root.path)
    client = MlflowClient(tracking_uri=tracking.uri)
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    found = client.search_runs(ids, "tags.`rlsweep.sweep` != ''")
    runs = [run for run in found if run.data.tags["rlsweep.kind"] == "run"]
    points = sum(len(client.get_metric_history(run.info.run_id, name)) for run in runs for name in run.data.metrics)
    return len(found) - len(runs), points, sorted(run.info.run_name for run in runs)


def _same_curve(world: Any, trainer: Any) -> bool:
    """Whether MLflow has one curve of the run, that of its journal."""
    (curve,), journal = from_mlflow(world.sweep, world.root), from_run(trainer.run, "base", 0, "flops")
    return bool((curve.compute == journal.compute).all() and (curve.pass_rate == journal.pass_rate).all())


def test_a_run_made_twice_by_a_server_that_was_asked_twice_counts_once(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow's client asks again where no answer came in time; the server did what it was asked all the same."""
    trainer = world.begin().evaluate().steps(5).evaluate().save()
    create = MlflowClient.create_run

    def twice(client: MlflowClient, *given: Any, **named: Any) -> Any:
        create(client, *given, **named)
        return create(client, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "create_run", twice)
        points = sync(world.root, world.sweep, say=print).points
    assert _held(world) == (2, points, ["base seed 0"] * 2) and _same_curve(world, trainer)
    trainer.steps(2).end("finished")
    result = sync(world.root, world.sweep, say=print)
    assert (result.created, result.points) == (0, 2 * 3)
    assert _held(world) == (1, points + 2 * 3, ["base seed 0"]) and _same_curve(world, trainer)


def test_ctrl_c_in_the_midst_of_a_sync(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = world.begin().evaluate().steps(700).evaluate().end("finished")
    send = MlflowClient.log_batch
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell

    def press(client: MlflowClient, *given: Any, metrics: Any = (), **named: Any) -> None:
        send(client, *given, metrics=metrics, **named)
        if metrics:
            signal.raise_signal(signal.SIGINT)

    try:
        with monkeypatch.context() as patch:
            patch.setattr(MlflowClient, "log_batch", press)
            result = CliRunner().invoke(main, ["sync", "--root", str(world.root.path)])
    finally:
        signal.signal(signal.SIGINT, before)
    assert isinstance(result.exception, SystemExit) and (result.exit_code, result.output) == (130, "")
    assert not (world.root.path / "mlflow.sync").exists()
    _, points, _ = _held(world)
    assert 0 < points < 1000
    sync(world.root, world.sweep, say=print)
    assert _held(world) == (1, 700 * 3 + 3 + 1, ["base seed 0"]) and _same_curve(world, trainer)


def test_a_full_disk(world: Any) -> None:
    trainer = world.begin().evaluate().steps(300).evaluate().end("finished")
    line = [sys.executable, "-m", "rlsweep", "sync", "--root", str(world.root.path)]
    done = subprocess.run(
        line,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, resource.RLIM_INFINITY)),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (1, "") and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"rlsweep: MLflow store sqlite:///{world.root.path}/mlflow.db: d")
    assert "[SQL:" not in done.stderr and "the journals are complete, so nothing is lost" in done.stderr
    sync(world.root, world.sweep, say=print)
    assert _held(world) == (1, 300 * 3 + 3 + 1, ["base seed 0"]) and _same_curve(world, trainer)


def test_a_path_with_quotes(world: Any, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow writes the first experiment's folder into SQL as it is."""

    def tables(engine: Any) -> None:
        with closing(sqlite3.connect(empty_store)) as source, closing(sqlite3.connect(engine.url.database)) as target:
            source.backup(target)
            target.execute("DELETE FROM experiments")
            target.commit()

    monkeypatch.setattr("mlflow.store.db.utils._initialize_tables", tables)
    trainer = replace(world, root=Root(world.root.path / 'l\'été "a" :b\\')).begin().evaluate().steps(2).end("finished")
    moved = replace(world, root=Root(trainer.run.path.parent.parent))
    assert sync(moved.root, moved.sweep, say=print).points == 3 + 2 * 3
    assert _same_curve(moved, trainer) and (moved.root.path / "mlflow.db").exists()


class Server:
    """A tracking server on a port of this machine, which can be killed, started again and frozen."""

    def __init__(self, folder: Path, store: Path):
        self._folder = folder
        shutil.copy(store, folder / "server.db")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self._port}"
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self._port)]
        command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{self._folder}/server.db"]
        command += ["--artifacts-destination", str(self._folder / "artifacts")]
        environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
        with open(self._folder / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self._folder, env=environment, start_new_session=True
            )
        end = time.monotonic() + 180
        while True:
            assert self._process.poll() is None and time.monotonic() < end, (self._folder / "server.log").read_text()
            try:
                with urllib.request.urlopen(f"{self.address}/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.2)

    def signal(self, number: signal.Signals) -> None:
        os.killpg(self._process.pid, number)
        if number == signal.SIGKILL:
            self._process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"), empty_store)
    yield server
    server.signal(signal.SIGKILL)


@pytest.fixture
def on_server(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    """The store is the server's, which is asked twice."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.address)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")


def _when(act: Callable[[], None], patch: pytest.MonkeyPatch, name: str, call: int, **holding: Any) -> None:
    """Act before the `call`-th call of a client's method that has an argument of that name."""
    real, calls = getattr(MlflowClient, name), []

    def wrapped(client: MlflowClient, *given: Any, **named: Any) -> Any:
        if all(named.get(argument) for argument in holding):
            calls.append(name)
            if len(calls) == call:
                act()
        return real(client, *given, **named)

    patch.setattr(MlflowClient, name, wrapped)


def test_a_server_killed_halfway(world: Any, server: Server, on_server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = world.begin().evaluate().steps(700).evaluate().end("finished")
    with monkeypatch.context() as patch:
        _when(lambda: server.signal(signal.SIGKILL), patch, "log_batch", 2, metrics=True)
        message = _message(world)
    assert f"MLflow store {server.address}: no connection: " in message and "the journals are complete" in message
    assert "no connection: Connection refused" in _message(world)
    server.start()
    assert sync(world.root, world.sweep, say=print).created == 0
    assert _held(world) == (1, 700 * 3 + 3 + 1, ["base seed 0"]) and _same_curve(world, trainer)
    assert sync(world.root, world.sweep, say=print).points == 0


@pytest.mark.parametrize(("name", "call"), [("create_run", 2), ("log_batch", 2)])
def test_a_server_that_stops_answering_halfway_and_then_does_all_it_was_asked(
    world: Any, server: Server, on_server: None, monkeypatch: pytest.MonkeyPatch, name: str, call: int
) -> None:
    world = replace(world, sweep=f"slow-{name}", recipe=f"slow-{name}")
    trainer = world.begin().evaluate().steps(700).evaluate().end("finished")
    with monkeypatch.context() as patch:
        holding = {"metrics": True} if name == "log_batch" else {}

        def freeze() -> None:
            server.signal(signal.SIGSTOP)
            patch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")

        _when(freeze, patch, name, call, **holding)
        message = _message(world)
    assert f"MLflow store {server.address}: no answer in time" in message
    server.signal(signal.SIGCONT)
    sync(world.root, world.sweep, say=print)
    assert _same_curve(world, trainer)
    assert sync(world.root, world.sweep, say=print).points == 0
    client = MlflowClient(tracking_uri=server.address)
    experiment = client.get_experiment_by_name(world.recipe)
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], "tags.`rlsweep.kind` = 'run'")
    assert [run.info.status for run in runs] == ["FINISHED"]
    points = [client.get_metric_history(runs[0].info.run_id, name) for name in runs[0].data.metrics]
    assert sum(map(len, points)) == 700 * 3 + 3 + 1


def test_training_ends_whole_whatever_mlflow_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent_port: int
) -> None:
    """One warning, the command to try again, and the exit code of the runs."""
    monkeypatch.setattr(local, "TRAINER", (sys.executable, str(FAKE)))
    monkeypatch.setattr(local, "_FOLLOW_S", 0.1)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{silent_port}")
    monkeypatch.delenv("RLSWEEP_ROOT", raising=False)
    root = tmp_path / "dossier à moi"
    words = ["ablate", "scalerl", "--scale", "tiny", "--set", "budget.steps=4", "--name", "s", "--root", str(root)]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0 and "sweep s: 1 finished" in result.stderr
    warning, again, after = result.stderr.splitlines()[-3:]
    assert warning.startswith(
        f"warning: MLflow was not updated: MLflow store http://127.0.0.1:{silent_port}: no answer"
    )
    assert again == f"The runs are whole; to try again: rlsweep sync s --root '{root}'"
    assert after == f"next: rlsweep report s --root '{root}'"
    result = CliRunner().invoke(main, ["sync", "s", "--root", str(root)])
    assert (result.exit_code, result.stdout) == (1, "") and len(result.stderr.splitlines()) == 1

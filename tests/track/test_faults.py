"""A store that is locked, damaged, out of reach or out of date: one sentence, in bounded time, and nothing lost."""

import shutil
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rlsweep.track import TrackingError, sync
from rlsweep.track.where import locate


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
    from dataclasses import replace

    from rlsweep.store.layout import Root

    sync(ready.root, ready.sweep, say=print)
    shutil.copytree(ready.root.path, tmp_path / "elsewhere")
    moved = replace(ready, root=Root(tmp_path / "elsewhere"))
    message = _message(moved)
    assert f"its artifacts lay in {ready.root.path}/mlartifacts" in message
    assert f"move {tmp_path}/elsewhere/mlflow.db away" in message


def test_an_experiment_that_was_deleted(ready: Any) -> None:
    from mlflow import MlflowClient

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
    assert "another sync" in said[0]
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

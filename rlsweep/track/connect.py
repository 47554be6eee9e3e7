"""A quiet MLflow client whose failures are one sentence, and the creation of a SQLite store."""

import logging
import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlsweep.track.where import Tracking, TrackingError, network_filesystem

if TYPE_CHECKING:
    from mlflow import MlflowClient

# No network call but to the tracking server, nothing printed, and an end within a minute where that server hangs:
# MLflow alone would wait 120 s and try 7 times more.
_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
_PATIENCE = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
}
_LOGGERS = ("mlflow", "alembic", "sqlalchemy", "urllib3")
_BUSY_S = 20.0
"""How long to wait for another process that writes to the SQLite file; MLflow waits as long."""


@contextmanager
def connected(tracking: Tracking) -> Iterator["MlflowClient"]:
    """A client of the store, which is made first where it is a SQLite file that doesn't exist.

    What MLflow, its database or its server raise inside becomes a TrackingError: one sentence, no credentials.
    """
    os.environ.update(_QUIET)
    for name, value in _PATIENCE.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from requests import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        if tracking.file is None:
            yield MlflowClient(tracking_uri=tracking.uri)
        else:
            _prepare(tracking.file)
            # With WAL, a power cut can take the newest rows and never the rest: the next sync sends them again.
            with _synchronous("NORMAL"):
                yield MlflowClient(tracking_uri=tracking.uri)
    # ImportError: the driver of a database server. OSError: the disk that holds the store or its artifacts.
    except (MlflowException, RequestException, SQLAlchemyError, sqlite3.Error, OSError, ImportError) as error:
        reason = tracking.scrub(" ".join(_reason(error).split()))
        if len(reason) > 300:
            reason = reason[:300] + "..."
        raise TrackingError(
            f"MLflow store {tracking.shown}: {reason}; the journals are complete, so nothing is lost: "
            "run `rlsweep sync` again when the store is in order"
        ) from error


def _reason(error: BaseException) -> str:
    """What went wrong in few words: where there was no connection, the error at the bottom says it best."""
    import requests

    chain = [error]
    while (below := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(below)
    if any(isinstance(each, requests.Timeout | TimeoutError) for each in chain):
        return "no answer in time"
    if any(isinstance(each, requests.ConnectionError) for each in chain):
        bottom = chain[-1]
        return f"no connection: {(isinstance(bottom, OSError) and bottom.strerror) or bottom}"
    # SQLAlchemy tells the statement too: hundreds of letters that say nothing to the owner of a full disk.
    return str(error).partition("[SQL: ")[0].removeprefix("(sqlite3.OperationalError) ") or type(error).__name__


def _prepare(file: Path) -> None:
    """Make the SQLite file, or see within bounded time that it is one and isn't locked."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        _create(file)
    # MLflow takes a minute and a half to give up on a file it can't read; SQLite says it at once.
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=rw", uri=True, timeout=_BUSY_S)) as database:
        database.execute("BEGIN IMMEDIATE")
        database.execute("SELECT count(*) FROM sqlite_master")
        database.execute("ROLLBACK")


def _create(file: Path) -> None:
    """Make the tables beside, then give the file its name: migrations that are cut off, or run twice at once, leave a
    file that no MLflow opens again."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    beside = file.with_name(f".{file.name}.{os.getpid()}-{secrets.token_hex(4)}")
    beside.touch()  # where that can't be done, MLflow would try for a minute and a half
    try:
        with _synchronous("OFF"):  # hundreds of small transactions on a file that has no name yet
            # MLflow puts this root of artifacts into SQL as it is, quotes and all, so no path of a user's can stand
            # there. Every experiment of ours names a folder of its own.
            SqlAlchemyStore(f"sqlite:///{beside}", "mlflow-artifacts:/").engine.dispose()
        if network_filesystem(file.parent) is None:
            with closing(sqlite3.connect(beside)) as database:
                # Kept in the file. Readers and the writer don't wait for each other; needs memory shared by processes.
                database.execute("PRAGMA journal_mode=WAL")
        with open(beside, "rb") as written:
            os.fsync(written.fileno())
        try:
            os.link(beside, file)  # unlike a rename it doesn't replace the file of another process that was quicker
        except FileExistsError:
            return
        except OSError:
            if not file.exists():  # a file system without hard links
                beside.rename(file)
    finally:
        for left in file.parent.glob(f"{beside.name}*"):
            left.unlink()


@contextmanager
def _synchronous(level: str) -> Iterator[None]:
    """Let SQLite connections that are opened inside sync to disk at this level."""
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    def on_connect(connection: Any, _: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute(f"PRAGMA synchronous={level}")

    event.listen(Engine, "connect", on_connect)
    try:
        yield
    finally:
        event.remove(Engine, "connect", on_connect)

"""The MLflow store: the only module of a package that imports MLflow, and only when asked."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import locks
from .errors import TrackingError
from .files import reason_of

DEFAULT_URI = "sqlite:///mlflow.db"

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("DO_NOT_TRACK", "true")


def mlflow_module() -> Any:
    """MLflow, imported now.

    Raises:
        TrackingError: It is not installed.
    """
    try:
        import mlflow
    except ImportError:
        package = "isocompute-" + (__package__ or "").split(".")[1]
        raise TrackingError(f'MLflow is not installed: pip install "{package}[mlflow]"') from None
    return mlflow


def ensure_store(uri: str | None = None, *, create: bool = True) -> str:
    """Point MLflow at a store and make sure that it answers.

    Two processes that touch a new SQLite store at once both fail, so the first contact is made under a
    file lock.

    Args:
        uri: Tracking URI; by default ``MLFLOW_TRACKING_URI``, else ``sqlite:///mlflow.db`` here.
        create: Whether a local store that is not there is made, as for writing; a reader would only leave an
            empty one behind.

    Returns:
        The URI in use.

    Raises:
        TrackingError: MLflow is not installed, or the store cannot be reached or, unless it may be made, is not
            there.
    """
    mlflow = mlflow_module()
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI
    if not create:
        _refuse_missing(uri)
        if uri.startswith("file:"):
            # MLflow no longer writes stores of files, and reads them on request.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(uri)
    with _first_contact(uri), _little_patience():
        try:
            mlflow.MlflowClient().search_experiments(max_results=1)
        except Exception as error:
            what = f"server at {uri} does not answer" if _is_server(uri) else f"store {uri} cannot be opened"
            raise TrackingError(f"the MLflow {what} ({reason_of(error)})") from None
    for setting, value in PATIENCE.items():
        os.environ.setdefault(setting, value)
    return uri


PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "30", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}
"""Of a request to a server that has answered before: by MLflow's own settings one that hangs takes 20 minutes."""


def _is_server(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))


@contextlib.contextmanager
def _little_patience() -> Iterator[None]:
    """Keep a first question short: MLflow's own client tries for minutes."""
    brief = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
    added = {name: value for name, value in brief.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _refuse_missing(uri: str) -> None:
    """Refuse a local store that is not there: MLflow makes one of any path, and its tables in any database."""
    parts = urllib.parse.urlsplit(uri)
    if parts.scheme.startswith("sqlite"):
        path = Path(uri.partition(":///")[2].partition("?")[0])
        if path.is_file() and _holds_experiments(path):
            return
        what = f"{path} is not an MLflow store" if path.is_file() else f"there is no MLflow store {path}"
    elif parts.scheme in {"", "file"} and not uri.startswith("databricks"):
        path = Path(urllib.parse.unquote(parts.path))
        if path.is_dir():
            return
        what = f"there is no MLflow store {path}"
    else:
        return
    raise TrackingError(f"{what}; set MLFLOW_TRACKING_URI to one: sqlite:///PATH/mlflow.db or http://HOST:PORT")


def _holds_experiments(database: Path) -> bool:
    query = "SELECT 1 FROM sqlite_master WHERE name = 'experiments'"
    try:
        with contextlib.closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            return connection.execute(query).fetchone() is not None
    except sqlite3.OperationalError:
        # Busy or unreadable: MLflow says so itself.
        return True
    except sqlite3.DatabaseError:
        return False


@contextlib.contextmanager
def _first_contact(uri: str) -> Iterator[None]:
    """Hold a lock beside a SQLite store, so that one process at a time creates it."""
    if not uri.startswith("sqlite:///"):
        yield
        return
    database = Path(uri.removeprefix("sqlite:///"))
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        lock = (database.parent / f"{database.name}.lock").open("w")
    except OSError as error:
        raise TrackingError(f"the MLflow store {uri} cannot be opened ({error.strerror})") from None
    with lock:
        locks.lock(lock.fileno(), wait=True)
        yield


def ensure_experiment(name: str) -> str:
    """Return the id of an experiment, made (or restored) when it is not there.

    The experiment is marked for MLflow's model-training view; without the mark the UI opens it in its
    view for generative applications, which has no charts.
    """
    client = mlflow_module().MlflowClient()
    with _first_contact(mlflow_module().get_tracking_uri()):
        found = client.get_experiment_by_name(name)
        if found is None:
            tags = {"mlflow.experimentKind": "custom_model_development"}
            # Artifacts go beside a SQLite store, wherever the process runs.
            return str(client.create_experiment(name, artifact_location=_artifact_root(name), tags=tags))
        if found.lifecycle_stage == "deleted":
            client.restore_experiment(found.experiment_id)
    return str(found.experiment_id)


def _artifact_root(experiment: str) -> str | None:
    uri = mlflow_module().get_tracking_uri()
    if not uri.startswith("sqlite:///"):
        return None
    root = Path(uri.removeprefix("sqlite:///")).resolve().parent / "mlartifacts"
    return (root / experiment.replace("/", "_")).as_uri()

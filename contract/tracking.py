"""Access to MLflow: tables and documents as artifacts of runs, found by name and linked by content.

A run holds a table as the artifact ``NAME.parquet`` (a document as ``NAME.json``) and the tag
``isocompute.artifact.NAME = sha256:…``. MLflow is imported on demand; in the packages, only this file imports it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import sqlite3
import tempfile
import urllib.parse
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from .errors import TrackingError
from .files import reason_of

STORES = ("sqlite:///", "file:///", "http://", "https://")
"""Prefixes of tracking URIs."""
DEFAULT_URI = "sqlite:///mlflow.db"
ARTIFACT_TAG = "isocompute.artifact."
SUPERSEDED_TAG = "isocompute.superseded"
OWNER_TAG = "isocompute.owner"
"""Who made a run, and in which folder; nobody else changes the run."""
RUN_ID = re.compile(r"[\w-]+", re.ASCII)

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("DO_NOT_TRACK", "true")


def is_of_mlflow(source: str) -> bool:
    """Return whether a source is MLflow's rather than a file or a folder."""
    return source.startswith(("mlflow:", "runs:/", *STORES))


def mlflow_module() -> Any:
    """Import and return MLflow; unless the user set limits, it gives up on a hanging server after half a minute."""
    try:
        import mlflow
        from mlflow import environment_variables as defaults
    except ImportError:
        package = "isocompute-" + (__package__ or "").split(".")[1]
        raise TrackingError(f'MLflow is not installed: pip install "{package}[mlflow]"') from None
    # MLflow's own limits take 20 minutes. Not set in the environment, which the trainers that we start inherit.
    defaults.MLFLOW_HTTP_REQUEST_TIMEOUT.default = 15
    defaults.MLFLOW_HTTP_REQUEST_MAX_RETRIES.default = 1
    return mlflow


def connect(uri: str | None = None, *, create: bool = False) -> Any:
    """Point MLflow at a store that answers; return its client.

    Args:
        uri: Tracking URI; by default ``MLFLOW_TRACKING_URI``, else ``sqlite:///mlflow.db`` here.
        create: Whether to create a missing local store; a reader would only leave an empty one behind.
    """
    mlflow = mlflow_module()
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI
    if not create:
        _refuse_missing(uri)
        if uri.startswith("file:"):
            # MLflow no longer writes file stores, but reads them on request.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(uri)
    client = mlflow.MlflowClient()
    try:
        client.search_experiments(max_results=1)
    except Exception as error:
        is_server = uri.startswith(("http://", "https://"))
        what = f"server at {uri} does not answer" if is_server else f"store {uri} cannot be opened"
        raise TrackingError(f"the MLflow {what} ({reason_of(error)})") from None
    return client


def _refuse_missing(uri: str) -> None:
    """Refuse a missing local store: MLflow would create one at any path, and its tables in any database."""
    parts = urllib.parse.urlsplit(uri)
    if parts.scheme.startswith("sqlite"):
        path = Path(uri.partition(":///")[2].partition("?")[0])
        is_there = path.is_file() and _holds_experiments(path)
    elif parts.scheme in {"", "file"} and not uri.startswith("databricks"):
        path = Path(urllib.parse.unquote(parts.path))
        is_there = path.is_dir()
    else:
        return
    if not is_there:
        what = f"{path} is not an MLflow store" if path.is_file() else f"there is no MLflow store {path}"
        raise TrackingError(f"{what}; set MLFLOW_TRACKING_URI to one: sqlite:///PATH/mlflow.db or http://HOST:PORT")


def _holds_experiments(database: Path) -> bool:
    try:
        with contextlib.closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            query = "SELECT 1 FROM sqlite_master WHERE name = 'experiments'"
            return connection.execute(query).fetchone() is not None
    except sqlite3.DatabaseError as error:
        # A busy or unreadable store is left to MLflow, which reports it.
        return isinstance(error, sqlite3.OperationalError)


@contextlib.contextmanager
def answering(source: str) -> Iterator[None]:
    """Turn MLflow's errors while reading a source into one sentence."""
    try:
        yield
    except TrackingError:
        raise
    except Exception as error:
        uri = mlflow_module().get_tracking_uri()
        raise TrackingError(f"{source}: could not be fetched from {uri} ({reason_of(error)})") from None


def fetch(source: str, name: str) -> list[Path]:
    """Download a named artifact from MLflow.

    Args:
        source: ``runs:/RUN_ID[/NAME]`` for one run, ``mlflow:EXPERIMENT[?owner=OWNER]`` for every run of an experiment
            (and an owner) that has the artifact, or a tracking URI (``sqlite:///…``, ``http://…``) for every run there.
        name: Artifact to fetch, such as ``evals``; a NAME in the source overrides it.

    Returns:
        The files, each in a folder named after its run, removed when the process ends.

    Raises:
        TrackingError: No such run or experiment, none of its runs has the artifact, or those of several owners do,
            which must not be mixed.
    """
    client, runs = runs_of(source)
    with answering(source):
        if source.startswith("runs:/"):
            name = source.removeprefix("runs:/").partition("/")[2] or name
        else:
            runs = [run for run in runs if SUPERSEDED_TAG not in run.data.tags]
        carriers = [run for run in runs if ARTIFACT_TAG + name in run.data.tags]
        if not carriers:
            raise TrackingError(f"{source}: none of its {len(runs)} runs carries the artifact {name}")
        if source.startswith("mlflow:"):
            _refuse_several_owners(source, name, carriers)
        folder = Path(tempfile.mkdtemp(prefix="isocompute-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return [_download(client, str(run.info.run_id), name, folder) for run in carriers]


def _refuse_several_owners(source: str, name: str, carriers: Collection[Any]) -> None:
    """Refuse to mix several owners' artifacts, unless one of them owns everything there."""
    contents: dict[str, set[str]] = {}
    for run in carriers:
        if OWNER_TAG in run.data.tags:
            contents.setdefault(run.data.tags[OWNER_TAG], set()).add(run.data.tags[ARTIFACT_TAG + name])
    if contents and set().union(*contents.values()) not in contents.values():
        owners = sorted(contents)
        raise TrackingError(
            f"{source}: runs of {len(owners)} owners carry different {name} ({', '.join(owners)}); name the owner "
            f"that is meant: {source}?owner={owners[0]}"
        )


def runs_of(source: str) -> tuple[Any, list[Any]]:
    """The MLflow client of a source's store, and the runs in the source."""
    whole = source.startswith(STORES)
    client = connect(source if whole else None)
    search = partial(mlflow_module().search_runs, output_format="list", order_by=["attributes.start_time"])
    with answering(source):
        if whole:
            return client, search(search_all_experiments=True)
        if source.startswith("runs:/"):
            return client, [client.get_run(source.removeprefix("runs:/").partition("/")[0])]
        named, _, owner = source.removeprefix("mlflow:").partition("?owner=")
        experiment = client.get_experiment_by_name(named)
        if experiment is None:
            names = ", ".join(sorted(e.name for e in client.search_experiments())) or "none"
            uri = mlflow_module().get_tracking_uri()
            raise TrackingError(f"{source}: the store {uri} has no such experiment (it has {names})")
        runs = search([experiment.experiment_id])
        return client, [run for run in runs if not owner or run.data.tags.get(OWNER_TAG) == owner]


def _download(client: Any, run_id: str, name: str, folder: Path) -> Path:
    # A server chooses its run names, and MLflow checks only the paths of artifacts.
    if not RUN_ID.fullmatch(run_id):
        raise TrackingError(
            f"a run has the id {run_id!r}, which is no name of a folder: its server is not to be trusted"
        )
    target = folder / run_id
    target.mkdir(exist_ok=True)
    present = [f.path for f in client.list_artifacts(run_id) if Path(f.path).stem == name]
    if not present:
        raise TrackingError(f"runs:/{run_id}: the artifact {name} is tagged but not stored")
    return Path(client.download_artifacts(run_id, present[0], str(target)))

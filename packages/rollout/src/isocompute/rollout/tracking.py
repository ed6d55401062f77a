"""Writes to MLflow: stores that several processes may create, experiments, and artifacts linked by content."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from .contract.errors import TrackingError, redacted
from .contract.files import reason_of
from .contract.tracking import ARTIFACT_TAG, DEFAULT_URI, connect, mlflow_module

SQLITE = "sqlite:///"
INPUT_TAG = "isocompute.input."


def content_hash(path: Path) -> str:
    """Hash of a file's content, as artifacts are linked by it: ``sha256:…``."""
    with path.open("rb") as stream:
        return "sha256:" + hashlib.file_digest(stream, "sha256").hexdigest()


def ensure_store(uri: str | None = None) -> str:
    """Point MLflow at a reachable store, creating a local one if needed; return its address."""
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI
    with _alone(uri):
        connect(uri, create=True)
    return uri


@contextlib.contextmanager
def _alone(uri: str) -> Iterator[None]:
    """Lock out other processes from a SQLite store: if two open a new one at once, both fail."""
    if not uri.startswith(SQLITE):
        yield
        return
    database = Path(uri.removeprefix(SQLITE))
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        # Lock a separate empty SQLite file; the OS releases it when the process ends.
        lock = sqlite3.connect(f"{database}.lock", timeout=600, isolation_level=None)
        with contextlib.closing(lock):
            lock.execute("BEGIN EXCLUSIVE")
            yield
    except (OSError, sqlite3.Error) as error:
        raise TrackingError(f"the MLflow store {uri} cannot be opened ({reason_of(error)})") from None


def ensure_experiment(name: str) -> str:
    """Return the id of an experiment, which is created or restored if needed.

    The experiment is marked for MLflow's model-training view; without the mark the UI opens it in its view for
    generative applications, which has no charts.
    """
    mlflow = mlflow_module()
    client, uri = mlflow.MlflowClient(), mlflow.get_tracking_uri()
    with _alone(uri):
        found = client.get_experiment_by_name(name)
        if found is None:
            place = None
            if uri.startswith(SQLITE):
                # Next to the store, wherever the process runs.
                root = Path(uri.removeprefix(SQLITE)).resolve().parent / "mlartifacts"
                place = (root / name.replace("/", "_")).as_uri()
            tags = {"mlflow.experimentKind": "custom_model_development"}
            return str(client.create_experiment(name, artifact_location=place, tags=tags))
        if found.lifecycle_stage == "deleted":
            client.restore_experiment(found.experiment_id)
    return str(found.experiment_id)


def context_tags() -> dict[str, str]:
    """MLflow's tags for who runs this and from which commit: ``mlflow.user``, ``mlflow.source.git.commit``, …."""
    found = mlflow_module().tracking.context.registry.resolve_tags()
    # A repository's address may contain a token.
    return {name: redacted(str(value)) for name, value in found.items()}


def log_artifacts(
    experiment: str,
    artifacts: Mapping[str, Path],
    *,
    run_name: str,
    params: Mapping[str, Any],
    metrics: Mapping[str, float],
    inputs: Mapping[str, Path],
) -> str:
    """Log one finished run with tables or documents, linked to its inputs by their content.

    Returns the MLflow run id; ``runs:/ID/NAME`` is then a source.
    """
    ensure_store()
    client = mlflow_module().MlflowClient()
    tags = context_tags() | {INPUT_TAG + name: content_hash(path) for name, path in inputs.items()}
    try:
        run_id = str(client.create_run(ensure_experiment(experiment), run_name=run_name, tags=tags).info.run_id)
        for key, value in params.items():
            client.log_param(run_id, key, redacted(str(value)))
        for key, number in metrics.items():
            client.log_metric(run_id, key, number)
        attach(run_id, artifacts)
        client.set_terminated(run_id)
    except TrackingError:
        raise
    except Exception as error:
        raise TrackingError(f"logging to MLflow failed ({reason_of(error)})") from None
    return run_id


def attach(run_id: str, artifacts: Mapping[str, Path], *, figures: Collection[Path] = ()) -> None:
    """Log files as named artifacts of an existing run; figures have no such name, since they are only viewed."""
    client = mlflow_module().MlflowClient()
    for figure in figures:
        client.log_artifact(run_id, str(figure), "figures")
    for name, path in artifacts.items():
        with tempfile.TemporaryDirectory() as folder:
            client.log_artifact(run_id, shutil.copyfile(path, Path(folder) / f"{name}{path.suffix}"))
        # Last, so that tagged files exist.
        client.set_tag(run_id, ARTIFACT_TAG + name, content_hash(path))

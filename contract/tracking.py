"""Tables and documents as artifacts of MLflow runs, found by name and linked by content.

A run carries a table as the artifact ``NAME.parquet`` (a document as ``NAME.json``) and the tag
``isocompute.artifact.NAME = sha256:…``, so that a consumer finds it by name and links it by content.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from .errors import TrackingError, redacted
from .files import reason_of
from .store import DEFAULT_URI, ensure_experiment, ensure_store, mlflow_module

__all__ = [
    "ARTIFACT_TAG",
    "DEFAULT_URI",
    "INPUT_TAG",
    "KEY_TAG",
    "OWNER_TAG",
    "SUPERSEDED_TAG",
    "TrackingError",
    "answering",
    "attach",
    "content_hash",
    "context_tags",
    "ensure_experiment",
    "ensure_store",
    "fetch",
    "is_gone",
    "is_store",
    "log_artifacts",
    "runs_of",
    "supersede_runs",
]

ARTIFACT_TAG = "isocompute.artifact."
INPUT_TAG = "isocompute.input."
SUPERSEDED_TAG = "isocompute.superseded"
OWNER_TAG = "isocompute.owner"
"""Who made a run, and in which folder: nobody else changes it."""
KEY_TAG = "isocompute.run_id"
"""Identity of what a run shows: an owner has one run of each."""
RUN_ID = re.compile(r"[\w-]+", re.ASCII)


def content_hash(path: Path) -> str:
    """Hash of a file's content, as artifacts are linked by it: ``sha256:…``."""
    with path.open("rb") as stream:
        return "sha256:" + hashlib.file_digest(stream, "sha256").hexdigest()


def context_tags() -> dict[str, str]:
    """MLflow's tags of who runs this and from which commit: ``mlflow.user``, ``mlflow.source.git.commit``, …."""
    found = mlflow_module().tracking.context.registry.resolve_tags()
    # The address of a repository may carry a token.
    return {name: redacted(str(value)) for name, value in found.items()}


def is_gone(error: Exception) -> bool:
    """Return whether MLflow says that something does not exist; other errors say nothing about that."""
    return getattr(error, "error_code", None) == "RESOURCE_DOES_NOT_EXIST"


def log_artifacts(
    experiment: str,
    artifacts: Mapping[str, Path],
    *,
    run_name: str | None = None,
    params: Mapping[str, Any] | None = None,
    metrics: Mapping[str, float] | None = None,
    inputs: Mapping[str, Path] | None = None,
) -> str:
    """Log one finished run that carries tables or documents.

    Args:
        experiment: Name of the experiment, made when it is not there.
        run_name: Name shown in the UI.
        inputs: Name to file of what the run was made from, linked by content.

    Returns:
        The MLflow run id; ``runs:/ID/NAME`` is then a source.

    Raises:
        TrackingError: MLflow is not installed or does not answer.
    """
    ensure_store()
    client = mlflow_module().MlflowClient()
    try:
        run = client.create_run(ensure_experiment(experiment), run_name=run_name, tags=context_tags())
        run_id = str(run.info.run_id)
        for key, value in (params or {}).items():
            client.log_param(run_id, key, redacted(str(value)))
        for key, number in (metrics or {}).items():
            client.log_metric(run_id, key, number)
        for name, path in (inputs or {}).items():
            client.set_tag(run_id, INPUT_TAG + name, content_hash(path))
        attach(run_id, artifacts)
        client.set_terminated(run_id)
    except TrackingError:
        raise
    except Exception as error:
        raise TrackingError(f"logging to MLflow failed ({reason_of(error)})") from None
    return run_id


def supersede_runs(experiment: str, *, owner: str, keep: Collection[str]) -> None:
    """Mark an owner's runs of an experiment as superseded, except those of some keys; other owners' stay as they are.

    Superseded runs are not deleted and can still be read as ``runs:/ID``; ``mlflow:EXPERIMENT`` ignores them.

    Args:
        keep: What the experiment means, by ``KEY_TAG``; where it was superseded before, it is no longer.
    """
    client = mlflow_module().MlflowClient()
    for run in _all_runs(client, ensure_experiment(experiment)):
        tags = run.data.tags
        if tags.get(OWNER_TAG) != owner or (tags.get(KEY_TAG) in keep) != (SUPERSEDED_TAG in tags):
            continue
        if SUPERSEDED_TAG in tags:
            client.delete_tag(run.info.run_id, SUPERSEDED_TAG)
        else:
            client.set_tag(run.info.run_id, SUPERSEDED_TAG, "true")


def attach(run_id: str, artifacts: Mapping[str, Path], *, figures: Collection[Path] = ()) -> None:
    """Log files as named artifacts of an existing run.

    Args:
        figures: Files without such a name, which are only looked at.
    """
    mlflow = mlflow_module()
    client, hashes = mlflow.MlflowClient(), []
    for figure in figures:
        client.log_artifact(run_id, str(figure), "figures")
    for name, path in artifacts.items():
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / f"{name}{path.suffix}"
            shutil.copyfile(path, copy)
            client.log_artifact(run_id, str(copy))
        hashes.append(mlflow.entities.RunTag(ARTIFACT_TAG + name, content_hash(path)))
    # Last, so that what is tagged is there.
    client.log_batch(run_id, tags=hashes)


def fetch(source: str, name: str) -> list[Path]:
    """Download a named artifact from MLflow.

    Args:
        source: ``runs:/RUN_ID[/NAME]`` for one run, ``mlflow:EXPERIMENT[?owner=OWNER]`` for every run of an
            experiment (and an owner) that carries the artifact, a tracking URI (``sqlite:///…``, ``http://…``) for
            every run there.
        name: Artifact wanted, such as ``evals``; a NAME in the source overrides it.

    Returns:
        The files, each in a folder named after its run, removed when the process ends.

    Raises:
        TrackingError: No such run or experiment, none of its runs carries the artifact, or several owners' do, which
            are not to be mixed.
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
    """Refuse to mix what several owners made, unless one of them has all that is there."""
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


def is_store(source: str) -> bool:
    """Return whether a source is a tracking URI."""
    return source.startswith(("sqlite:///", "file:///", "http://", "https://"))


def runs_of(source: str) -> tuple[Any, list[Any]]:
    """The MLflow client of a source's store, and the runs that the source names.

    Args:
        source: ``runs:/RUN_ID``, ``mlflow:EXPERIMENT``, or a tracking URI for every run there.

    Raises:
        TrackingError: No such store, run or experiment.
    """
    uri = ensure_store(source if is_store(source) else None, create=False)
    client = mlflow_module().MlflowClient()
    with answering(source):
        return client, _runs_of(client, source, uri)


@contextlib.contextmanager
def answering(source: str) -> Iterator[None]:
    """Put what MLflow raises while it reads a source into one sentence.

    Raises:
        TrackingError: Instead of anything else.
    """
    try:
        yield
    except TrackingError:
        raise
    except Exception as error:
        uri = mlflow_module().get_tracking_uri()
        raise TrackingError(f"{source}: could not be fetched from {uri} ({reason_of(error)})") from None


def _runs_of(client: Any, source: str, uri: str) -> list[Any]:
    """The runs that a source names."""
    if is_store(source):
        return [run for e in client.search_experiments() for run in _all_runs(client, str(e.experiment_id))]
    if source.startswith("runs:/"):
        return [client.get_run(source.removeprefix("runs:/").partition("/")[0])]
    named, _, owner = source.removeprefix("mlflow:").partition("?owner=")
    experiment = client.get_experiment_by_name(named)
    if experiment is None:
        names = ", ".join(sorted(e.name for e in client.search_experiments())) or "none"
        raise TrackingError(f"{source}: the store {uri} has no such experiment (it has {names})")
    runs = _all_runs(client, str(experiment.experiment_id))
    return [run for run in runs if not owner or run.data.tags.get(OWNER_TAG) == owner]


def _all_runs(client: Any, experiment_id: str) -> list[Any]:
    runs: list[Any] = []
    token = None
    while True:
        page = client.search_runs([experiment_id], max_results=500, page_token=token)
        runs += page
        token = page.token
        if not token:
            return sorted(runs, key=lambda run: str(run.info.run_id))


def _download(client: Any, run_id: str, name: str, folder: Path) -> Path:
    # A server names its runs, and MLflow looks at the paths of artifacts alone.
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

"""The MLflow store that several tests begin with, and the Ray cluster that they share."""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, chdir
from functools import partial
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of the tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty MLflow database, which takes seconds to make."""
    from isocompute.rollout import tracking

    made = tmp_path_factory.mktemp("empty") / "mlflow.db"
    tracking.ensure_store(f"sqlite:///{made}")
    return made


@pytest.fixture
def store(empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty MLflow store, which is in use, and a folder to work in."""
    from isocompute.rollout import tracking

    shutil.copyfile(empty_store, tmp_path / "mlflow.db")
    # MLflow keeps the store of the last test, which counts more than the variable.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking.ensure_store(f"sqlite:///{tmp_path}/mlflow.db"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "mlflow.db"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder to work in."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def unhashed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code has its entry point for a hash, for what is not about that: to follow all that is reached takes seconds."""
    for module in ("running.cells", "stages.footprint"):
        monkeypatch.setattr(f"experiments.{module}.code_of", lambda entry: entry)
    monkeypatch.setattr("experiments.stages.inputs.entries_of", lambda stage: ("experiments.errors:listed",))


@pytest.fixture
def short_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits of few short chains, whether they agree or not, for what does not hang by their digits."""
    from isocompute.frontier import notebook
    from isocompute.frontier.posterior import posterior

    monkeypatch.setattr(posterior, "AGREED", float("inf"))
    monkeypatch.setattr(notebook, "posterior", partial(posterior.posterior, size=(32, 40, 16)))


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cluster of four processors, as a stage run alone starts it; its users are one ``xdist_group``."""
    from experiments.running.cluster import open_cluster

    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("RAY_TMPDIR", os.environ.get("RAY_TMPDIR", "/tmp"))
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.delenv("ISOCOMPUTE_SESSION", raising=False)
        with chdir(tmp_path_factory.mktemp("cluster")):
            stack.enter_context(open_cluster(4))
        yield

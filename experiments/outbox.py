"""What is to be sent to MLflow, on disk until it has been: it outlives the process, and the next one sends it."""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path

from filelock import FileLock
from isocompute.budget.contract import tracking
from isocompute.budget.contract.files import write_text

WORK = Path("work")
context = cache(tracking.context_tags)
"""MLflow's tags of who runs this and from which commit, asked for once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """One MLflow run, as far as it is known, or what an experiment means.

    Attributes:
        key: What the run shows (``tracking.KEY_TAG``); an owner has one run of each in an experiment.
        folder: The folder of its spool, and of the note of what was sent.
        begun: When it began, in ms since 1970, where no record says so.
        ended: When it ended; None while it goes on.
        failed: Whether it ended badly.
        rollouts: The budget that it ended at; None where it has none.
        tags: Its tags; those that are known at its end only are set then.
        metrics: Metrics at step 0.
        artifacts: Artifact name to file.
        figures: Files to be looked at.
        means: Keys of the owner's runs that the experiment means from then on; None: as before. Without ``folder``
            that is all there is to be said.
    """

    experiment: str
    key: str
    name: str
    folder: str = ""
    begun: int = 0
    ended: int | None = None
    failed: bool = False
    rollouts: int | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    artifacts: Mapping[str, str] = field(default_factory=dict)
    figures: Sequence[str] = ()
    means: Sequence[str] | None = None

    @property
    def id(self) -> str:
        """Name of its file."""
        return hashlib.sha256(f"{self.experiment}\n{self.key}".encode()).hexdigest()[:16]


class Outbox:
    """A folder of parcels, in the order in which they were put there."""

    def __init__(self) -> None:
        self.folder = (WORK / "outbox").resolve()

    def parcels(self) -> list[Parcel]:
        """What is to be sent, the oldest first."""
        paths = sorted(self.folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        return [Parcel(**json.loads(path.read_text())) for path in paths]

    def put(self, parcel: Parcel) -> None:
        """Keep a parcel, in place of an earlier one of the same run."""
        write_text(self.folder / f"{parcel.id}.json", json.dumps(asdict(parcel)) + "\n")

    def put_copies(self, parcel: Parcel) -> None:
        """Keep a parcel and copies of its files, which the next stage may replace."""
        place = self.folder / parcel.id
        place.mkdir(parents=True)
        artifacts = {}
        for name, path in parcel.artifacts.items():
            artifacts[name] = str(shutil.copyfile(path, place / f"{name}{Path(path).suffix}"))
        (place / "figures").mkdir()
        figures = [str(shutil.copyfile(path, place / "figures" / Path(path).name)) for path in parcel.figures]
        self.put(replace(parcel, folder=str(place), artifacts=artifacts, figures=figures))

    def remove(self, parcel: Parcel) -> None:
        """Forget a parcel that was sent, and the copies of its files."""
        (self.folder / f"{parcel.id}.json").unlink(missing_ok=True)
        shutil.rmtree(self.folder / parcel.id, ignore_errors=True)

    def sending(self) -> FileLock:
        """What to hold while sending: one process at a time sends."""
        return FileLock(self.folder / "lock")


def tags(experiment: str) -> dict[str, str]:
    """The tags of every run: whose it is, from which commit, and of which sweep.

    Args:
        experiment: ``PRESET-WHAT`` or ``PRESET-SET-WHAT``.
    """
    found = context()
    owner = f"{found.get('mlflow.user', 'nobody')}-{folder_id()}"
    return {**found, tracking.OWNER_TAG: owner, "isocompute.sweep": experiment.rpartition("-")[0] or experiment}


def folder_id() -> str:
    """The random id of this work folder, made when it is first needed."""
    path = WORK / "owner"
    if not path.exists():
        # Of two processes that make it at once, one's is read by both.
        with FileLock(path.with_suffix(".lock")):
            if not path.exists():
                write_text(path, f"{secrets.token_hex(4)}\n")
    return path.read_text().strip()

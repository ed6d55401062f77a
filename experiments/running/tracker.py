"""Cells as MLflow runs that can be watched while they train.

Only the driver writes to MLflow, in a thread of its own: workers append to spool files, and what has been sent is
noted beside them. When the server goes away, training goes on, and what was not sent is sent later, by this command or
the next.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..outbox import Parcel, tags
from . import starts, work
from .cells import Cell
from .delivery import is_sent, read_note
from .health import health_of
from .sender import Sender

TABLES = ("evals", "ledger", "pass_rates", "timings")
"""Tables that the run of a finished cell carries; the log of another trainer does not give all of them."""
STATUS_TAG = "isocompute.status"
HEALTH_TAG = "isocompute.health"
BUDGET_TAG = "isocompute.budget_rollouts"


class Tracker:
    """Sends the metrics of cells to one MLflow experiment; no method but ``drain`` waits for MLflow."""

    def __init__(self, experiment: str) -> None:
        self._experiment = experiment
        self._sender = Sender()
        self._running: dict[Path, Parcel] = {}

    def send(self, cell: Cell, folder: Path, *, finished: bool = False) -> None:
        """Send what is new of a cell, as soon as MLflow takes it.

        Args:
            finished: Whether the cell has ended, so that its tables are sent and its MLflow run ends.
        """
        if not finished:
            if folder not in self._running:
                self._running[folder] = self._parcel(cell, folder)
                self._sender.outbox.put(self._running[folder])
            self._sender.put(self._running[folder])
            return
        note = read_note(folder, self._experiment)
        sent = is_sent(note, cell.rollouts)
        parcel = self._ended(cell, folder, note["tags"] if sent else self._final_tags(cell, folder))
        # What was sent whole is looked at again, since its run may have been deleted, but not kept for later.
        if not sent:
            self._sender.outbox.put(parcel)
        self._sender.put(parcel)

    def send_start(self, cell: Cell, folder: Path) -> None:
        """Send the first evaluation that cells of one seed share, as a run with what it cost."""
        made = _written(folder / "evaluation.json")
        parcel = Parcel(
            experiment=self._experiment, key=cell.start_id, name=f"{cell.origin.base_model}, seed {cell.seed}",
            folder=str(folder.resolve()), begun=made, ended=made, tags=tags(self._experiment),
            metrics={f"eval/{name}": value for name, value in starts.read(folder).metrics.items()},
            artifacts={"ledger": str((folder / "ledger.parquet").resolve())},
        )  # fmt: skip
        if not is_sent(read_note(folder, self._experiment), None):
            self._sender.outbox.put(parcel)
        self._sender.put(parcel)

    def drain(self) -> list[str]:
        """Wait until everything is sent or MLflow does not answer; returns the names of what still waits."""
        return [parcel.name for parcel in self._sender.drain()]

    def close(self) -> None:
        """Stop sending; what was not sent stays in the outbox."""
        self._sender.close()

    def mean(self, cells: Sequence[Cell]) -> None:
        """Make ``mlflow:EXPERIMENT`` mean these cells and no others of this owner's."""
        keys = sorted({key for cell in cells for key in (cell.run_id, cell.start_id) if key})
        parcel = Parcel(
            experiment=self._experiment, key="means", name=f"which runs {self._experiment} means", means=keys,
            tags=tags(self._experiment),
        )  # fmt: skip
        self._sender.outbox.put(parcel)
        self._sender.put(parcel)

    def _parcel(self, cell: Cell, folder: Path) -> Parcel:
        plain = asdict(cell)
        del plain["rollouts"]
        return Parcel(
            experiment=self._experiment, key=cell.run_id, name=cell.name, folder=str(folder.resolve()),
            begun=int(time.time() * 1000), params={key: str(value) for key, value in _flatten(plain)},
            tags=self._tags(cell),
        )  # fmt: skip

    def _tags(self, cell: Cell) -> dict[str, str]:
        return {**tags(self._experiment), "isocompute.problem_set": cell.origin.problem_set}

    def _ended(self, cell: Cell, folder: Path, final: Mapping[str, str]) -> Parcel:
        found = work.done(folder)
        return replace(
            self._parcel(cell, folder), ended=_written(folder / "done.json"), tags=final,
            failed=final[STATUS_TAG] == "diverged", rollouts=found.rollouts if found else cell.rollouts,
            artifacts={
                name: str(path.resolve()) for name in TABLES if (path := folder / f"{name}.parquet").exists()
            },
        )  # fmt: skip

    def _final_tags(self, cell: Cell, folder: Path) -> dict[str, str]:
        found = work.done(folder)
        return {
            **self._tags(cell),
            BUDGET_TAG: str(cell.rollouts),
            HEALTH_TAG: health_of(cell, folder).text(),
            STATUS_TAG: "diverged" if found is not None and found.diverged_at is not None else "finished",
        }


def _written(path: Path) -> int:
    """When a file was written, in ms since 1970."""
    return path.stat().st_mtime_ns // 10**6


def _flatten(plain: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in plain.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value

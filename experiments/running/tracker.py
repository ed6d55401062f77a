"""Cells as MLflow runs that can be watched while they train.

Only the driver writes to MLflow, in a thread of its own: workers append to spool files, and what has been sent is
noted beside them. When the server goes away, training goes on, and what was not sent is sent later, by this command or
the next.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from isocompute.learner.records.health import Flag, flags, judged

from ..outbox import Parcel, tags
from ..settings.paper import leaves
from . import starts, work
from .cells import Cell
from .delivery import is_sent, read_note
from .sender import Sender
from .spool import Spool

TABLES = ("evals", "ledger", "pass_rates", "timings")
"""Tables that the run of a finished cell carries; the log of another trainer does not give all of them."""
STATUS_TAG = "isocompute.status"
HEALTH_TAG = "isocompute.health"
BUDGET_TAG = "isocompute.budget_rollouts"
TOO_SHORT = "too short to judge"


class Tracker(Sender):
    """Sends the metrics of cells to one MLflow experiment; no method but ``drain`` waits for MLflow."""

    def __init__(self, experiment: str) -> None:
        super().__init__()
        self._experiment = experiment
        self._running: dict[str, Parcel] = {}

    def send(self, cell: Cell, *, finished: bool = False) -> None:
        """Send what is new of a cell, as soon as MLflow takes it; of one that is finished its tables, too."""
        if not finished:
            known = self._running.get(cell.run_id)
            self._running[cell.run_id] = known or self._parcel(cell)
            self.put(self._running[cell.run_id], keep=known is None)
            return
        parcel = self._parcel(cell)
        note = read_note(parcel)
        sent = is_sent(note, cell.rollouts)
        # What was sent whole is looked at again, since its run may have been deleted, but not kept for later.
        self.put(self._ended(parcel, cell, note["tags"] if sent else None), keep=not sent)

    def send_start(self, cell: Cell) -> None:
        """Send the first evaluation that cells of one seed, of which this is any, share, with what it cost."""
        folder = work.start_of(cell)
        made = _written(folder / "evaluation.json")
        parcel = Parcel(
            experiment=self._experiment, key=cell.start_id, name=f"{cell.origin.base_model}, seed {cell.seed}",
            folder=str(folder.resolve()), begun=made, ended=made, tags=tags(self._experiment),
            metrics={f"eval/{name}": value for name, value in starts.read(folder).metrics.items()},
            artifacts={"ledger": str((folder / "ledger.parquet").resolve())},
        )  # fmt: skip
        self.put(parcel, keep=not is_sent(read_note(parcel), None))

    def mean(self, cells: Sequence[Cell]) -> None:
        """Make ``mlflow:EXPERIMENT`` mean these cells and no others of this owner's."""
        keys = sorted({key for cell in cells for key in (cell.run_id, cell.start_id) if key})
        self.put(Parcel(
            experiment=self._experiment, key="means", name=f"which runs {self._experiment} means", means=keys,
            tags=tags(self._experiment),
        ))  # fmt: skip

    def _parcel(self, cell: Cell) -> Parcel:
        plain = asdict(cell)
        del plain["rollouts"]
        return Parcel(
            experiment=self._experiment, key=cell.run_id, name=cell.name, folder=str(work.folder_of(cell).resolve()),
            begun=int(time.time() * 1000), params={key: str(value) for key, value in leaves(plain)},
            tags={**tags(self._experiment), "isocompute.problem_set": cell.origin.problem_set},
        )  # fmt: skip

    @staticmethod
    def _ended(parcel: Parcel, cell: Cell, final: Mapping[str, str] | None) -> Parcel:
        """The parcel of a cell that has ended, with its tags as they were sent, or are now."""
        folder = work.folder_of(cell)
        found = work.done(folder)
        diverged = found is not None and found.diverged_at is not None
        final = final or {
            **parcel.tags, BUDGET_TAG: str(cell.rollouts), HEALTH_TAG: health_text(*health_of(cell)),
            STATUS_TAG: "diverged" if diverged else "finished",
        }  # fmt: skip
        paths = {name: folder / f"{name}.parquet" for name in TABLES}
        return replace(
            parcel, ended=_written(folder / "done.json"), tags=final, failed=final[STATUS_TAG] == "diverged",
            rollouts=found.rollouts if found else cell.rollouts,
            artifacts={name: str(path.resolve()) for name, path in paths.items() if path.exists()},
        )  # fmt: skip


def _written(path: Path) -> int:
    """When a file was written, in ms since 1970."""
    return path.stat().st_mtime_ns // 10**6


def health_of(cell: Cell) -> tuple[Sequence[Flag], bool]:
    """What is wrong with a cell within its budget, and whether it has enough steps for every flag.

    A longer run's later steps are left out. Of a cell that is too short to judge only ``mismatch`` is looked for.
    """
    records = [r for r in Spool(work.folder_of(cell) / "metrics.jsonl").records() if r.rollouts <= cell.rollouts]
    return flags(records), judged(records)


def health_text(found: Sequence[Flag], is_judged: bool) -> str:
    """The names of the flags, or that there is none, or that too few steps were there to say so."""
    names = ", ".join(flag.name for flag in found)
    if is_judged:
        return names or "no flags"
    return f"{names}, otherwise {TOO_SHORT}" if names else TOO_SHORT

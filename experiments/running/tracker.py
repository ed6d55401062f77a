"""Cells as MLflow runs that can be watched while they train.

Only the driver writes to MLflow: workers append to spool files, and what has been sent is remembered beside
them. When the server goes away, training goes on, and what was not sent is sent later, or named.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from isocompute.budget.contract import tracking
from isocompute.learner import EvaluationRecord

from . import starts, work
from .cells import Cell
from .health import health_of
from .spool import Position, Spool

RETRY_SECONDS = 15.0
LARGEST_BATCH = 100
"""Parameters that MLflow takes at a time."""
TABLES = ("evals", "ledger", "pass_rates", "timings")
"""Tables that the run of a finished cell carries."""
STATUS_TAG = "isocompute.status"
HEALTH_TAG = "isocompute.health"
BUDGET_TAG = "isocompute.budget_rollouts"


class Tracker:
    """Sends the metrics of cells to one MLflow experiment.

    Args:
        experiment: Its name.

    Raises:
        TrackingError: MLflow cannot be reached at the start.
    """

    def __init__(self, experiment: str) -> None:
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        tracking.ensure_store()
        self._experiment = experiment
        self._id = tracking.ensure_experiment(experiment)
        self._down_until = 0.0
        self.unsent: dict[str, str] = {}

    def send(self, cell: Cell, folder: Path, *, finished: bool = False, wait: bool = False) -> None:
        """Send what is new of a cell; when MLflow does not answer, remember and go on.

        Args:
            cell: The cell.
            folder: Its folder.
            finished: Whether the cell has ended, so that its tables are sent and its MLflow run ends.
            wait: Whether to try even when MLflow did not answer a moment ago.
        """
        if not wait and time.monotonic() < self._down_until:
            self.unsent[cell.run_id] = cell.name
            return
        try:
            self._send(cell, folder, finished)
            self.unsent.pop(cell.run_id, None)
        except Exception:
            self.unsent[cell.run_id] = cell.name
            self._down_until = time.monotonic() + RETRY_SECONDS

    def send_start(self, cell: Cell, folder: Path) -> None:
        """Send the first evaluation that cells of one seed share, as a run with what it cost.

        Args:
            cell: Any of these cells.
            folder: The folder of the evaluation.
        """
        name = f"base model, seed {cell.seed}"
        try:
            self._send_start(cell, folder, name)
            self.unsent.pop(cell.start_id, None)
        except Exception:
            self.unsent[cell.start_id] = name

    def close(self, cells: Sequence[Cell], folders: Mapping[str, Path], *, supersede: bool = True) -> None:
        """Make ``mlflow:EXPERIMENT`` mean these cells, and print which could not be sent.

        Args:
            cells: The cells.
            folders: Their folders by run id.
            supersede: Whether these are all cells that the experiment means; else what it means stays as it is.
        """
        if not self.unsent and not supersede:
            return
        if not self.unsent:
            with contextlib.suppress(Exception):
                places = [*(folders[c.run_id] for c in cells), *(work.start_of(c) for c in cells)]
                runs = {json.loads((folder / "sent.json").read_text())[self._experiment]["run"] for folder in places}
                tracking.supersede_runs(self._experiment, keep=runs)
                return
        names = "; ".join(sorted(self.unsent.values())) or "none, but older runs are not marked as superseded"
        print(f"MLflow did not answer: not sent are the runs {names}. Run the stage again to send them.")

    def _send(self, cell: Cell, folder: Path, finished: bool) -> None:
        from mlflow import MlflowClient

        client = MlflowClient()
        sent = self._sent(client, folder)
        if sent.get("finished", -1) >= cell.rollouts:
            return
        if not sent:
            sent = {"run": self._create(client, cell), "rollouts": -1, "kinds": [], "inode": 0, "read": 0}
        elif "finished" in sent:
            # A longer run begins as the shorter one: its MLflow run goes on.
            client.update_run(sent["run"], status="RUNNING")
            del sent["finished"]
        batch = list(_new_metrics(folder, sent))
        for begin in range(0, len(batch), 900):
            client.log_batch(sent["run"], metrics=batch[begin : begin + 900])
        if finished:
            self._end(client, cell, folder, sent)
        self._remember(folder, sent)

    def _end(self, client: Any, cell: Cell, folder: Path, sent: dict[str, Any]) -> None:
        found = work.done(folder)
        diverged = found is not None and found.diverged_at is not None
        tracking.attach(sent["run"], {name: folder / f"{name}.parquet" for name in TABLES})
        client.set_tag(sent["run"], BUDGET_TAG, str(cell.rollouts))
        client.set_tag(sent["run"], HEALTH_TAG, health_of(cell, folder).text())
        client.set_tag(sent["run"], STATUS_TAG, "diverged" if diverged else "finished")
        client.set_terminated(sent["run"], status="FAILED" if diverged else "FINISHED")
        sent["finished"] = found.rollouts if found else cell.rollouts

    def _send_start(self, cell: Cell, folder: Path, name: str) -> None:
        from mlflow import MlflowClient

        client = MlflowClient()
        if self._sent(client, folder):
            return
        run = client.create_run(self._id, run_name=name, tags={"isocompute.run_id": cell.start_id}).info.run_id
        for metric, value in starts.read(folder).metrics.items():
            client.log_metric(run, metric, value, step=0)
        tracking.attach(run, {"ledger": folder / "ledger.parquet"})
        client.set_terminated(run)
        self._remember(folder, {"run": run})

    def _sent(self, client: Any, folder: Path) -> dict[str, Any]:
        """What was sent of a folder to this experiment; empty where its MLflow run was deleted."""
        mark = folder / "sent.json"
        sent: dict[str, Any] = json.loads(mark.read_text()).get(self._experiment, {}) if mark.exists() else {}
        return sent if sent and self._is_active(client, sent["run"]) else {}

    def _remember(self, folder: Path, sent: Mapping[str, Any]) -> None:
        mark = folder / "sent.json"
        every = json.loads(mark.read_text()) if mark.exists() else {}
        work.write_json(mark, {**every, self._experiment: dict(sent)})

    def _create(self, client: Any, cell: Cell) -> str:
        """Make the run of a cell, and delete one that another work folder left behind."""
        from mlflow.entities import Param

        for old in client.search_runs([self._id], f"tags.`isocompute.run_id` = '{cell.run_id}'"):
            client.delete_run(old.info.run_id)
        tags = {"isocompute.run_id": cell.run_id, "isocompute.problem_set": cell.origin.problem_set}
        run = client.create_run(self._id, run_name=cell.name, tags=tags)
        plain = asdict(cell)
        del plain["rollouts"]
        params = [Param(key, str(value)) for key, value in _flatten(plain)]
        for begin in range(0, len(params), LARGEST_BATCH):
            client.log_batch(run.info.run_id, params=params[begin : begin + LARGEST_BATCH])
        return str(run.info.run_id)

    @staticmethod
    def _is_active(client: Any, run_id: str) -> bool:
        try:
            return bool(client.get_run(run_id).info.lifecycle_stage == "active")
        except Exception:
            return False


def _new_metrics(folder: Path, sent: dict[str, Any]) -> Iterator[Any]:
    """Yield what a spool holds beyond what was sent, and note in ``sent`` how far that is."""
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    last, kinds = sent["rollouts"], set(sent["kinds"])
    records, position = Spool(folder / "metrics.jsonl").since(Position(inode=sent["inode"], read=sent["read"]))
    for record in records:
        # A step and the evaluation after it share their rollouts; either may be sent already.
        kind = "eval" if isinstance(record, EvaluationRecord) else "train"
        if record.rollouts < last or (record.rollouts == last and kind in kinds):
            continue
        if record.rollouts > last:
            last, kinds = record.rollouts, set()
        kinds.add(kind)
        yield from (Metric(name, value, now, last) for name, value in record.metrics().items())
    sent |= {"rollouts": last, "kinds": sorted(kinds), "inode": position.inode, "read": position.read}


def _flatten(plain: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in plain.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value

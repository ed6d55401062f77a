"""Cells as MLflow runs that can be watched while they train.

Only the driver writes to MLflow: workers append to spool files, and what has been sent is remembered beside
them. When the server goes away, training goes on, and what was not sent is sent later, or named.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from isocompute.budget import tracking

from .cells import Cell
from .spool import Spool

RETRY_SECONDS = 15.0
TABLES = ("evals", "ledger", "pass_rates", "timings")
"""Tables that the run of a finished cell carries."""


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
        """Send what is new of a cell; when MLflow does not answer, remember and go on."""
        if not wait and time.monotonic() < self._down_until:
            self.unsent[cell.run_id] = cell.name
            return
        try:
            self._send(cell, folder, finished)
            self.unsent.pop(cell.run_id, None)
        except Exception:
            self.unsent[cell.run_id] = cell.name
            self._down_until = time.monotonic() + RETRY_SECONDS

    def close(self, cells: Sequence[Cell], folders: Mapping[str, Path]) -> None:
        """Let ``mlflow:EXPERIMENT`` mean these cells, and say which could not be sent."""
        if not self.unsent:
            with contextlib.suppress(Exception):
                runs = {json.loads((folders[c.run_id] / "sent.json").read_text())["run"] for c in cells}
                tracking.supersede_runs(self._experiment, keep=runs)
                return
        names = "; ".join(sorted(self.unsent.values())) or "none, but older runs are not marked as superseded"
        print(f"MLflow did not answer: not sent are the runs {names}. Run the stage again to send them.")

    def _send(self, cell: Cell, folder: Path, finished: bool) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric

        client = MlflowClient()
        mark = folder / "sent.json"
        sent = json.loads(mark.read_text()) if mark.exists() else {}
        if sent.get("finished"):
            if self._alive(client, sent["run"]):
                return
            sent = {}
        if not sent:
            sent = {"run": self._create(client, cell), "rollouts": -1, "kinds": []}
        now = int(time.time() * 1000)
        batch: list[Any] = []
        last, kinds = sent["rollouts"], set(sent["kinds"])
        for line in Spool(folder / "metrics.jsonl").lines():
            # A step and the evaluation after it share their rollouts; either may be sent already.
            kind = "eval" if any("_at_" in name for name in line["metrics"]) else "train"
            if line["rollouts"] < last or (line["rollouts"] == last and kind in kinds):
                continue
            if line["rollouts"] > last:
                last, kinds = line["rollouts"], set()
            kinds.add(kind)
            batch += [Metric(k, v, now, int(last)) for k, v in line["metrics"].items()]
        for start in range(0, len(batch), 900):
            client.log_batch(sent["run"], metrics=batch[start : start + 900])
        sent |= {"rollouts": last, "kinds": sorted(kinds)}
        if finished:
            files = {name: folder / f"{name}.parquet" for name in TABLES}
            tracking.attach(sent["run"], files)
            client.set_terminated(sent["run"])
            sent["finished"] = True
        aside = mark.with_suffix(".writing")
        aside.write_text(json.dumps(sent))
        aside.rename(mark)

    def _create(self, client: Any, cell: Cell) -> str:
        """Make the run of a cell; one that another work folder left behind gives way."""
        for old in client.search_runs([self._id], f"tags.`isocompute.run_id` = '{cell.run_id}'"):
            client.delete_run(old.info.run_id)
        tags = {"isocompute.run_id": cell.run_id, "isocompute.problem_set": cell.problem_set}
        run = client.create_run(self._id, run_name=cell.name, tags=tags)
        plain = {k: v for k, v in asdict(cell).items() if k not in ("learner", "sampling")}
        plain |= {f"learner.{k}": v for k, v in asdict(cell.learner).items()}
        for key, value in plain.items():
            client.log_param(run.info.run_id, key, value)
        return str(run.info.run_id)

    @staticmethod
    def _alive(client: Any, run_id: str) -> bool:
        try:
            return bool(client.get_run(run_id).info.lifecycle_stage == "active")
        except Exception:
            return False

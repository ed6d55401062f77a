"""Runs in databases: an MLflow store, as any framework logs to it, and Trackio's ``PROJECT.db``."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from ...checks import reason
from ...contract import tracking
from ...contract.errors import TrackingError
from ...errors import BudgetError, DamagedLogError
from .log import Log, LogLayout, Row, fields_of, flat, join, metrics_of, step_columns, step_of

MAGIC = b"SQLite format 3\0"
OF_MLFLOW = {"alembic_version", "experiments", "runs", "metrics", "latest_metrics", "params", "tags"}
"""Tables without which MLflow would make some in the file that it is to read."""


def read_store(source: str, layout: LogLayout) -> list[Log]:
    """The runs of an MLflow store."""
    return [log for _, _, read in runs_of(source) for log in read(layout)]


def runs_of(source: str) -> Iterator[tuple[str, set[str], Callable[[LogLayout], list[Log]]]]:
    """The runs of an MLflow store: ``runs:/RUN_ID``, ``mlflow:EXPERIMENT``, or a tracking URI for every run there.

    Yields:
        The name of a run, its metrics, and what reads it.
    """
    client, runs = tracking.runs_of(source)
    if not runs:
        kind = "experiment" if source.startswith("mlflow:") else "store"
        raise TrackingError(f"{source}: the {kind} holds no run")
    for run in runs:
        name = f"runs:/{run.info.run_id}" + (f" ({run.info.run_name})" if run.info.run_name else "")
        yield name, set(run.data.metrics), partial(_run, name, _points(client, run, source), dict(run.data.params))


def _points(client: Any, run: Any, source: str) -> list[tuple[int, int, str, float]]:
    """What a run logged: time, step, metric and value."""
    with tracking.answering(source):
        return sorted(
            (int(point.timestamp), int(point.step), key, float(point.value))
            for key in run.data.metrics
            for point in client.get_metric_history(str(run.info.run_id), key)
        )


def _run(
    name: str, points: Sequence[tuple[int, int, str, float]], config: dict[str, Any], layout: LogLayout
) -> list[Log]:
    rows: list[Row] = [(step, metrics_of({key: value}, layout, name)) for _, step, key, value in points]
    return [join(name, [rows], layout, config)]


def read_database(path: Path, layout: LogLayout) -> list[Log]:
    """The runs of a file of SQLite: a project of Trackio's, or a store of MLflow's."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            # What is no table, such as a view, may never end.
            found = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE '%VIRTUAL%'")
            tables = {str(name) for (name,) in found}
            if {"metrics", "configs"} <= tables:
                return _projects(path, database, layout)
    except BudgetError:
        raise
    except (sqlite3.Error, OSError, ValueError) as error:
        raise DamagedLogError(
            f"{path}: is damaged, or no database of Trackio's or MLflow's ({reason(error)})"
        ) from None
    if OF_MLFLOW - tables:
        has = ", ".join(sorted(tables)) or "no table"
        raise BudgetError(f"{path}: is no database of Trackio's or MLflow's: it has {has}")
    try:
        return read_store(f"sqlite:///{path.resolve()}", layout)
    except TrackingError as error:
        # Whoever looks through a folder goes on.
        raise BudgetError(str(error)) from None


def _projects(path: Path, database: sqlite3.Connection, layout: LogLayout) -> list[Log]:
    """The runs of a project of Trackio's."""
    configured = database.execute("SELECT run_id, config FROM configs").fetchall()
    configs = {run: flat(_object(path, f"the configuration of {run}", text), path) for run, text in configured}
    names: dict[str, str] = {}
    rows: dict[str, list[Row]] = {}
    logged = database.execute("SELECT id, run_id, run_name, metrics FROM metrics ORDER BY id").fetchall()
    for number, run, name, document in logged:
        where = f"{path}: entry {number} ({name})"
        entry = fields_of(_object(path, f"entry {number} ({name})", document), layout, where)
        names[run] = name
        metrics = metrics_of(entry, layout, where)
        step = step_of(entry, step_columns(entry, layout, None, str(path)), where)
        if step is not None:
            rows.setdefault(run, []).append((step, metrics))
        elif any(layout.needed.match(key) for key in metrics):
            raise DamagedLogError(f"{where} has no {layout.steps[0]}")
    return [join(f"{path} ({names[run]})", [entries], layout, configs.get(run)) for run, entries in rows.items()]


def _object(path: Path, what: str, text: Any) -> dict[str, Any]:
    """A JSON object."""
    try:
        document = json.loads(text)
        if isinstance(document, dict):
            return document
    except (ValueError, TypeError, RecursionError):
        pass
    raise DamagedLogError(f"{path}: {what} is no JSON object")

"""Trackio's database of a project, ``PROJECT.db``: SQLite, read without Trackio."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from ...errors import BudgetError
from .lines import flat
from .log import Layout, Log, Row, join, numbers
from .steps import step_columns, step_of


def read_trackio(path: Path, layout: Layout) -> list[Log]:
    """The runs of a project.

    Raises:
        BudgetError: It is not such a database.
    """
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            configs = dict(database.execute("SELECT run_id, config FROM configs"))
            logged = database.execute("SELECT run_id, run_name, metrics FROM metrics ORDER BY id").fetchall()
        names: dict[str, str] = {}
        rows: dict[str, list[Row]] = {}
        for run, name, metrics in logged:
            entry = json.loads(metrics)
            names[run] = name
            columns = step_columns(entry, layout, None, str(path))
            step = step_of(entry, columns, f"{path} ({name})")
            if step is not None:
                rows.setdefault(run, []).append((step, numbers(entry)))
        return [
            join(f"{path} ({names[run]})", [found], layout, flat(json.loads(configs.get(run, "{}"))))
            for run, found in rows.items()
        ]
    except (sqlite3.Error, ValueError, TypeError) as error:
        if isinstance(error, BudgetError):
            raise
        raise BudgetError(f"{path}: is no database of Trackio's ({error})") from None

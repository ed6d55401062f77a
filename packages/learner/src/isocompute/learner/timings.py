"""The ``timings`` table of a run, from the seconds that the training loop told its watcher."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from .contract import tables

SUFFIX = "_seconds"


def timings_table(lines: Iterable[Mapping[str, Any]], run_id: str, devices: int = 1) -> pl.DataFrame:
    """Make the ``timings`` table.

    A line ``{"step": 3, "rollouts": 96, "metrics": {"sample_seconds": 0.5, "reward": 0.2}}`` gives the row of
    step 3 and phase ``sample``; metrics that are no seconds are left out. Where a step was taken again after a
    crash, its last line counts, as in the ``ledger``.

    Args:
        lines: What ``watch`` was told, a mapping a line, in the order it was told.
        run_id: The run.
        devices: Devices held throughout, for device-seconds.

    Returns:
        The table, checked and sorted by its keys.

    Raises:
        TableError: No line has seconds, or seconds are negative or not finite.
    """
    seconds = {
        (int(line["step"]), name.removesuffix(SUFFIX)): float(value)
        for line in lines
        for name, value in line["metrics"].items()
        if name.endswith(SUFFIX)
    }
    rows = [(run_id, step, phase, value, value * devices) for (step, phase), value in seconds.items()]
    columns = [column.name for column in tables.schema("timings").columns]
    return tables.check(pl.DataFrame(rows, schema=columns, orient="row"), "timings", where=f"run {run_id}")

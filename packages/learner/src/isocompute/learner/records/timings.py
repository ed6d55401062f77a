"""The ``timings`` table of a run, from the records that the training loop hands to its watcher."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from ..contract import tables
from .steps import Record


def timings_table(records: Iterable[Record], run_id: str, devices: int = 1) -> pl.DataFrame:
    """Make the ``timings`` table: a row per step and phase (``sample``, ``update``, ``sync``, ``evaluate``).

    Where a step was taken again after a crash, its last record counts, as in the ``ledger``.

    Args:
        records: What ``watch`` was called with, in that order.
        devices: Devices held throughout, for device-seconds.

    Returns:
        The table, checked and sorted by its keys.

    Raises:
        TableError: There is no record, or seconds are negative or not finite.
    """
    seconds = {(record.step, phase): value for record in records for phase, value in record.seconds().items()}
    rows = [(run_id, step, phase, value, value * devices) for (step, phase), value in seconds.items()]
    columns = [column.name for column in tables.schema("timings").columns]
    return tables.check(pl.DataFrame(rows, schema=columns, orient="row"), "timings", where=f"run {run_id}")

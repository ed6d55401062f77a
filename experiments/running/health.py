"""Health flags of a cell, from the records that it spooled."""

from __future__ import annotations

from pathlib import Path

from isocompute.learner.health import Flag, flags

from .cells import Cell
from .spool import Spool


def health_of(cell: Cell, folder: Path) -> list[Flag]:
    """What is wrong with a cell within its budget: a longer run's later steps are left out.

    Args:
        cell: The cell, with its budget.
        folder: Its folder.
    """
    records = Spool(folder / "metrics.jsonl").records()
    return flags(record for record in records if record.rollouts <= cell.rollouts)

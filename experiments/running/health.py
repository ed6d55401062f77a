"""Health of a cell, from the records that it spooled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isocompute.learner.records.health import Flag, flags, judged

from .cells import Cell
from .spool import Spool
from .work import folder_of

TOO_SHORT = "too short to judge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What is wrong with a cell, as far as it could be judged.

    Attributes:
        flags: What is wrong; of a cell that is too short to judge, only ``mismatch``.
        judged: Whether it has enough steps for every flag.
    """

    flags: Sequence[Flag]
    judged: bool

    def text(self) -> str:
        """Return the names of the flags, or that there is none, or that too few steps were there to say so."""
        names = ", ".join(flag.name for flag in self.flags)
        if self.judged:
            return names or "no flags"
        return f"{names}, otherwise {TOO_SHORT}" if names else TOO_SHORT


def health_of(cell: Cell) -> Health:
    """What is wrong with a cell within its budget: a longer run's later steps are left out."""
    records = [r for r in Spool(folder_of(cell) / "metrics.jsonl").records() if r.rollouts <= cell.rollouts]
    return Health(flags=flags(records), judged=judged(records))

"""The results of fitting a sweep: readable, and written as ``fits.json`` and Parquet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from . import storage, summary
from .sweep import FittedSweep


@dataclass(frozen=True, slots=True, kw_only=True)
class Fits(FittedSweep):
    """A fitted sweep that can be printed and saved; its attributes are those of ``FittedSweep``."""

    def summary(self) -> str:
        """A table of the curves and of n*(C), with intervals, to be printed."""
        return summary.summary(self)

    def save(self, folder: str | Path) -> None:
        """Write ``fits.json``, ``frontier.parquet`` and the refits; the same fits give the same bytes.

        Raises:
            FrontierError: The folder cannot be written to.
        """
        storage.save(self, folder)

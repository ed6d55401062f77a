"""Write the report."""

from __future__ import annotations

from ..report.page import write
from ..settings import Preset
from .shared import OUT, log


def run(preset: Preset) -> None:
    """Write one self-contained HTML file from what the other stages wrote."""
    path = write(preset, OUT)
    print(f"report: {path}")
    log(preset, "report", {"report": path})

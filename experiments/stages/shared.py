"""What stages have in common: where their files are, and how they are logged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isocompute.budget.contract import tracking

from ..settings.model import Preset

OUT = Path("outputs")


def log(preset: Preset, what: str, artifacts: Mapping[str, Path], **further: Any) -> None:
    """Log what a stage wrote as a run of its own; the newest is what ``mlflow:EXPERIMENT`` means.

    Args:
        preset: The preset; the name of the experiment begins with its name.
        what: Name of the run, and the rest of the name of the experiment.
        artifacts: Name of each artifact to its file.
        further: More of what ``tracking.log_artifacts`` takes: ``params``, ``metrics``, ``inputs``.
    """
    tracking.log_artifacts(f"{preset.name}-{what}", artifacts, run_name=what, supersede=True, **further)

"""Logs what a stage wrote as an MLflow run of its own."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isocompute.rollout.contract.tracking import INPUT_TAG, content_hash

from ..running.tracker import Outbox, Parcel, tags
from ..settings import Preset

BEGAN = time.time_ns() // 10**6
"""When this stage began, in ms since 1970."""


def log(
    preset: Preset,
    what: str,
    artifacts: Mapping[str, Path],
    *,
    figures: Sequence[Path] = (),
    params: Mapping[str, Any] | None = None,
    metrics: Mapping[str, float] | None = None,
    inputs: Mapping[str, Path] | None = None,
) -> None:
    """Log what a stage wrote as a run of its own; the newest is what ``mlflow:EXPERIMENT`` means.

    It is put into the outbox, which is sent when the stage has ended.

    Args:
        what: Name of the run, and the rest of the name of the experiment.
        inputs: Name to file of what the run was made from, linked by content.
    """
    experiment, key = f"{preset.name}-{what}", f"{what}-{secrets.token_hex(4)}"
    linked = {INPUT_TAG + name: content_hash(path) for name, path in (inputs or {}).items()}
    parcel = Parcel(
        experiment=experiment,
        key=key,
        name=what,
        begun=BEGAN,
        ended=time.time_ns() // 10**6,
        params={name: str(value) for name, value in (params or {}).items()},
        metrics={name: float(value) for name, value in (metrics or {}).items()},
        artifacts={name: str(path) for name, path in artifacts.items()},
        figures=[str(path) for path in figures],
        tags={**tags(experiment), **linked},
        means=[key],
    )
    Outbox().put(parcel, copy=True)

"""Runs in TensorBoard's event files: every folder is a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import FrontierError
from .config import flat
from .run import Layout, Row, Run, run_of

ARGUMENTS = "args/text_summary"
"""Where a transformers Trainer writes its arguments."""


def read_events(files: Sequence[Path], layout: Layout) -> list[Run]:
    """Runs of event files, one a folder; folders without metrics, such as those of hyperparameters, hold none.

    Raises:
        FrontierError: A file cannot be read, or one folder holds two runs.
    """
    folders: dict[Path, list[Path]] = {}
    for path in sorted(files):
        folders.setdefault(path.parent, []).append(path)
    runs = []
    for folder, members in folders.items():
        rows: list[Row] = []
        config: dict[str, Any] = {}
        for path in members:
            # Every start of a trainer opens a file of its own, so steps that go back do so between files.
            found, arguments = _read(path)
            rows += found
            config |= arguments
        if rows:
            runs.append(run_of(str(folder), rows, layout, config))
    return runs


def _read(path: Path) -> tuple[list[Row], dict[str, Any]]:
    """Scalars of one file by step, and the arguments it holds."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        raise FrontierError('event files need TensorBoard: pip install "isocompute-frontier[ingest]"') from None
    events: Any = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    by_step: dict[int, dict[str, float]] = {}
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            by_step.setdefault(int(event.step), {})[tag] = float(event.value)
    config: dict[str, Any] = {}
    for tag in events.Tags()["tensors"]:
        for event in events.Tensors(tag):
            tensor = event.tensor_proto
            if len(tensor.float_val) == 1:
                by_step.setdefault(int(event.step), {})[tag] = float(tensor.float_val[0])
            elif tag == ARGUMENTS and tensor.string_val:
                config |= _arguments(tensor.string_val[0])
    return sorted(by_step.items()), config


def _arguments(text: bytes) -> dict[str, Any]:
    try:
        document = json.loads(text)
        return flat(document) if isinstance(document, dict) else {}
    except (ValueError, RecursionError):
        return {}

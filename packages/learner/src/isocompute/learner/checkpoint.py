"""Atomic checkpoints: safetensors and JSON, written aside, flushed to disk, renamed. Nothing is unpickled."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from .contract.files import reason_of
from .errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A run after ``step`` updates.

    Attributes:
        step: Updates taken; the batch position, since a step's problems and seeds depend on it alone.
        tensors: Policy and optimizer.
        values: Plain values of the learner.
        progress: Plain values of the run: cumulative counts and the evaluations so far.
    """

    step: int
    tensors: dict[str, torch.Tensor]
    values: dict[str, Any]
    progress: dict[str, Any] = field(default_factory=dict)


class Checkpoints:
    """The checkpoints of one run, in one folder; only the newest is kept.

    Args:
        folder: The folder, made with the first checkpoint.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint whole or not at all, and delete older ones.

        Returns:
            Its folder.

        Raises:
            CheckpointError: It cannot be written; the one before stays.
        """
        final = self.folder / f"step-{checkpoint.step:09d}"
        aside = self.folder / f".{final.name}.writing"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir()
            save_file(checkpoint.tensors, aside / "tensors.safetensors")
            state = {"step": checkpoint.step, "values": checkpoint.values, "progress": checkpoint.progress}
            (aside / "state.json").write_text(json.dumps(state, sort_keys=True))
            for path in (*aside.iterdir(), aside):
                _flush(path)
            if final.exists():
                shutil.rmtree(final)
            aside.rename(final)
            _flush(self.folder)
        except (OSError, SafetensorError) as error:
            # safetensors reports a full disk as an error of its own.
            shutil.rmtree(aside, ignore_errors=True)
            raise CheckpointError(f"{final}: the checkpoint cannot be written ({reason_of(error)})") from None
        for old in self._complete():
            if old != final:
                shutil.rmtree(old, ignore_errors=True)
        return final

    def newest(self) -> Checkpoint | None:
        """Read the newest checkpoint, or None when there is none.

        Raises:
            CheckpointError: It is damaged.
        """
        complete = self._complete()
        if not complete:
            return None
        folder = complete[-1]
        try:
            state = json.loads((folder / "state.json").read_text())
            tensors = load_file(folder / "tensors.safetensors")
            return Checkpoint(step=state["step"], tensors=tensors, values=state["values"], progress=state["progress"])
        except Exception as error:
            raise CheckpointError(
                f"{folder}: the checkpoint is damaged ({error}); delete the folder to start the run again"
            ) from None

    def _complete(self) -> list[Path]:
        return sorted(self.folder.glob("step-*")) if self.folder.is_dir() else []


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

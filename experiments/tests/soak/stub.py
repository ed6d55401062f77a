"""A worker without an engine and a learner, whose faults are named in a file: all else of a sweep is real."""

from __future__ import annotations

import fcntl
import json
import os
import random
import resource
import signal
import time
from pathlib import Path
from typing import Any

import polars as pl

from experiments.running import cell_folder
from experiments.running.cell_folder import Spool
from experiments.running.cells import Cell, WorkerConfig
from experiments.running.cluster import WorkerActor

from ..made import ended, evaluation_record, first_evaluation, keep, kept_checkpoint, step_record, took

STEPS = 12
"""Of a cell of 96 rollouts."""


class StubActor:
    """Takes the place of ``WorkerActor``."""

    place = WorkerActor.place

    def open(self, config: WorkerConfig) -> tuple[str, int]:
        return "stub", os.getpid()

    def evaluate_baseline(self, cell: Cell, problems: pl.DataFrame, folder: str) -> None:
        home = Path(folder)
        os.chdir(home.parents[2])
        if random.random() < json.loads(Path("faults.json").read_text())["deaths"]:
            os.kill(os.getpid(), signal.SIGKILL)
        cell_folder.write_baseline(home, first_evaluation({"avg_at_4": 0.25}, 8))
        note(f"start {cell.baseline_id}")

    def train(self, cell: Cell, problems: pl.DataFrame, home: str, start: str) -> None:
        """Take steps, a checkpoint after each fourth, and die or fail as the file says."""
        folder = Path(home)
        os.chdir(folder.parents[2])
        folder.mkdir(parents=True, exist_ok=True)
        faults = json.loads(Path("faults.json").read_text())
        with (folder / "lock").open("w") as lock:
            # A second worker on one cell would be an error of the code.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # As a worker does: its node may be lost after the cell was finished, before the driver hears of it.
            if not cell_folder.finished(cell, folder):
                self._train(cell, folder, faults)

    def _train(self, cell: Cell, folder: Path, faults: dict[str, Any]) -> None:
        note(f"begun {cell.run_id}")
        if cell.name in faults["fails"]:
            raise ValueError("this cell cannot be trained")
        spool = Spool(folder)
        at = int(cell_folder.newest_checkpoint(folder).rpartition("-")[2] or 0)
        spool.rewind(8 * at)
        dies_at = random.randint(1, STEPS) if random.random() < faults["deaths"] else 0
        while at < STEPS:
            at += 1
            time.sleep(faults["step_seconds"])
            if at == dies_at or cell.name in faults["kills"]:
                os.kill(os.getpid(), signal.SIGKILL)
            spool.write(step_record(at))
            stopped = cell_folder.stop_requested(folder)
            if at % 4 == 0 or stopped:
                spool.write(evaluation_record(at, 0.25))
                self._save(folder, at)
            if stopped:
                note(f"stopped {cell.run_id}")
                return
        ended(cell, budget=8 * STEPS)
        keep(folder, "timings", took(cell))
        note(f"finished {cell.run_id}")

    def _save(self, folder: Path, at: int) -> None:
        """Write a checkpoint; to a disk that is full while the file ``full`` is there."""
        if Path("full").exists():
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        try:
            kept_checkpoint(folder, step=at)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def note(line: str) -> None:
    """Append to what the campaign reads afterwards; one write, so that lines of several workers stay whole."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    handle = os.open("work/attempts", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{line} {node}\n".encode())
    os.close(handle)

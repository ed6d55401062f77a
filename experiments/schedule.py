"""Cells onto workers: finished ones are skipped, interrupted ones continue, progress is shown."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from .cells import Cell
from .cluster import cause
from .errors import ExperimentError
from .spool import Spool
from .tracker import Tracker

WORK = Path("work/cells")
POLL_SECONDS = 2.0


def run_cells(
    cells: Sequence[Cell],
    problems: pl.DataFrame,
    workers: Sequence[Any],
    tracker: Tracker,
    *,
    title: str,
    reverse: bool = False,
) -> dict[str, Path]:
    """Run what is not finished, and return the folder of each cell by run id.

    What a cell finds depends on its configuration only, not on the order, nor on which worker runs it.

    Raises:
        ExperimentError: A cell failed; the others that were running are finished first.
    """
    import ray

    folders = {cell.run_id: WORK / cell.run_id for cell in cells}
    waiting = deque(cell for cell in (cells[::-1] if reverse else cells) if not finished(folders[cell.run_id]))
    display = Progress(title, cells, folders)
    idle = deque(workers)
    running: dict[Any, tuple[Cell, Any]] = {}
    failed: dict[str, str] = {}
    while waiting or running:
        while waiting and idle and not failed:
            cell, worker = waiting.popleft(), idle.popleft()
            folder = folders[cell.run_id].resolve()
            running[worker.train.remote(cell, problems, str(folder))] = (cell, worker)
        done, _ = ray.wait(list(running), timeout=POLL_SECONDS)
        for task in done:
            cell, worker = running.pop(task)
            idle.append(worker)
            try:
                ray.get(task)
            except ray.exceptions.RayError as error:
                failed[cell.name] = cause(error)
                continue
            tracker.send(cell, folders[cell.run_id], finished=True)
        for cell, _ in running.values():
            tracker.send(cell, folders[cell.run_id])
        display.show()
        if failed and not running:
            name, message = next(iter(failed.items()))
            raise ExperimentError(f"the cell {name} failed: {message}")
    for cell in cells:
        tracker.send(cell, folders[cell.run_id], finished=True, wait=True)
    display.show(last=True)
    tracker.close(cells, folders)
    return folders


def finished(folder: Path) -> bool:
    """Whether the cell of a folder is finished."""
    return (folder / "done.json").exists()


def tidy(folder: Path) -> None:
    """Drop a finished cell's checkpoints."""
    if finished(folder):
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def summary(folder: Path) -> dict[str, Any]:
    """What a finished cell recorded of itself."""
    loaded: dict[str, Any] = json.loads((folder / "done.json").read_text())
    return loaded


class Progress:
    """Cells done, rollouts spent of the budget, and time left, on one line."""

    def __init__(self, title: str, cells: Sequence[Cell], folders: dict[str, Path]) -> None:
        self._title, self._cells, self._folders = title, cells, folders
        self._total = sum(cell.rollouts for cell in cells)
        self._began, self._at_start = time.monotonic(), self._spent()
        self._shown = 0.0

    def _spent(self) -> int:
        spent = 0
        for cell in self._cells:
            folder = self._folders[cell.run_id]
            if finished(folder):
                spent += cell.rollouts
            else:
                lines = list(Spool(folder / "metrics.jsonl").lines())
                spent += int(lines[-1]["rollouts"]) if lines else 0
        return spent

    def show(self, *, last: bool = False) -> None:
        """Print the line: in place on a terminal, now and then elsewhere."""
        terminal = sys.stdout.isatty()
        if not last and time.monotonic() - self._shown < (1 if terminal else 20):
            return
        self._shown = time.monotonic()
        done = sum(finished(self._folders[c.run_id]) for c in self._cells)
        spent, elapsed = self._spent(), time.monotonic() - self._began
        rate = (spent - self._at_start) / elapsed if elapsed else 0.0
        left = f", about {(self._total - spent) / rate / 60:.1f} min left" if rate and spent < self._total else ""
        line = f"{self._title}: {done}/{len(self._cells)} cells, {spent:,} of {self._total:,} rollouts{left}"
        print(f"\r{line:<90}" if terminal else line, end="\n" if last or not terminal else "", flush=True)

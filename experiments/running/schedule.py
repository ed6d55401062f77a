"""Schedules cells on workers: finished ones are skipped, interrupted ones continue, dead workers are replaced."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from ..errors import ExperimentError
from . import starts, work
from .cells import Cell
from .cluster import cause
from .display import Progress, plan_summary
from .pool import Pool
from .tracker import Tracker

POLL_SECONDS = 2.0
REPLACEMENTS = 2
"""How often a cell whose worker died is continued on another one."""


def run_cells(
    cells: Sequence[Cell],
    problems: pl.DataFrame,
    pool: Pool,
    tracker: Tracker,
    *,
    title: str,
    reverse: bool = False,
    supersede: bool = True,
) -> dict[str, Path]:
    """Run what is not finished, and return the folder of each cell by run id.

    A cell's result depends only on its identity, not on the order or the worker. A cell that diverges counts as
    finished; one whose worker died is continued on another.

    Args:
        cells: The cells.
        problems: The ``problems`` table of their problem set.
        pool: Workers.
        tracker: Sends what they find to MLflow.
        title: Name shown with the progress.
        reverse: Whether the last cells are started first.
        supersede: Whether these are all cells of the tracker's experiment; else others may follow.

    Raises:
        ExperimentError: A cell failed; the others that were running are finished first.
    """
    folders = {cell.run_id: work.folder_of(cell) for cell in cells}
    checkpoints = [work.has_checkpoint(folders[cell.run_id]) for cell in cells]
    print(f"{title}: {plan_summary(cells, folders, checkpoints)}", flush=True)
    Run(cells, problems, pool, tracker, folders, title).finish(reverse=reverse, supersede=supersede)
    return folders


class Run:
    """One pass over some cells."""

    def __init__(
        self,
        cells: Sequence[Cell],
        problems: pl.DataFrame,
        pool: Pool,
        tracker: Tracker,
        folders: dict[str, Path],
        title: str,
    ) -> None:
        self._cells, self._problems, self._pool, self._tracker = cells, problems, pool, tracker
        self._folders, self._title = folders, title
        self._display = Progress(title, cells, folders)
        self._running: dict[Any, tuple[Cell, Any]] = {}
        self._moved: dict[Any, tuple[Any, float]] = {}
        self._deaths: Counter[str] = Counter()
        self._failed: dict[str, str] = {}

    def finish(self, *, reverse: bool, supersede: bool) -> None:
        """Run everything that is left, and send it."""
        left = [cell for cell in self._cells if self._is_left(cell)]
        self._starts(self._cells)
        self._train(deque(left[::-1] if reverse else left))
        for cell in self._cells:
            self._tracker.send(cell, self._folders[cell.run_id], finished=True)
        for cell in {cell.start_id: cell for cell in self._cells}.values():
            self._tracker.send_start(cell, work.start_of(cell))
        self._display.show(last=True)
        if supersede:
            self._tracker.mean(self._cells)

    def _is_left(self, cell: Cell) -> bool:
        """Whether a cell is to be trained, or has only its policy to save, which its checkpoint holds."""
        folder = self._folders[cell.run_id]
        return not work.finished(cell, folder) or work.lacks_policy(cell, folder, self._pool.keep_policies)

    def _starts(self, cells: Sequence[Cell]) -> None:
        """Make each first evaluation once, before cells that share it ask for it."""
        import ray

        missing = {cell.start_id: cell for cell in cells if not starts.exists(work.start_of(cell))}
        tasks = [
            self._pool.actors[i % len(self._pool.actors)].start.remote(
                cell, self._problems, str(work.start_of(cell).resolve())
            )
            for i, cell in enumerate(missing.values())
        ]
        _, late = ray.wait(tasks, num_returns=len(tasks), timeout=self._pool.stall_seconds) if tasks else ([], [])
        if late:
            raise ExperimentError(
                f"{self._title}: the base model was not evaluated within {self._pool.stall_seconds:g} s"
            )
        try:
            ray.get(tasks)
        except ray.exceptions.RayError as error:
            raise ExperimentError(f"{self._title}: the base model cannot be evaluated: {cause(error)}") from None

    def _train(self, waiting: deque[Cell]) -> None:
        import ray

        idle = deque(self._pool.actors)
        while waiting or self._running:
            while waiting and idle and not self._failed:
                self._begin(waiting.popleft(), idle.popleft())
            done, _ = ray.wait(list(self._running), timeout=POLL_SECONDS)
            for task in done:
                cell, actor = self._running.pop(task)
                try:
                    ray.get(task)
                    self._tracker.send(cell, self._folders[cell.run_id], finished=True)
                except ray.exceptions.RayActorError as error:
                    self._continue_elsewhere(cell, cause(error), waiting)
                    actor = self._pool.replace(actor)
                except ray.exceptions.RayError as error:
                    self._failed[cell.name] = cause(error)
                idle.append(actor)
            for cell, _ in self._running.values():
                self._tracker.send(cell, self._folders[cell.run_id])
            self._display.show()
            self._kill_stalled()
            if self._failed and not self._running:
                name, message = next(iter(self._failed.items()))
                raise ExperimentError(f"the cell {name} failed: {message}")

    def _begin(self, cell: Cell, actor: Any) -> None:
        home, start = (str(path.resolve()) for path in (self._folders[cell.run_id], work.start_of(cell)))
        task = actor.train.remote(cell, self._problems, home, start)
        self._running[task] = (cell, actor)
        self._moved[task] = (self._display.position(cell), time.monotonic())

    def _continue_elsewhere(self, cell: Cell, reason: str, waiting: deque[Cell]) -> None:
        """Continue a cell whose worker died, a few times."""
        self._deaths[cell.run_id] += 1
        times = self._deaths[cell.run_id]
        if times > REPLACEMENTS:
            self._failed[cell.name] = f"its worker died {times} times ({reason})"
            return
        print(f"{self._title}: the worker of {cell.name} died ({reason}); it continues on another one", flush=True)
        waiting.appendleft(cell)

    def _kill_stalled(self) -> None:
        """Kill workers whose cell has written nothing for too long; they are then found dead."""
        import ray

        for task, (cell, actor) in self._running.items():
            position, since = self._moved[task]
            now = self._display.position(cell)
            if now != position:
                self._moved[task] = (now, time.monotonic())
            elif time.monotonic() - since > self._pool.stall_seconds:
                print(f"{self._title}: {cell.name} showed no progress in {self._pool.stall_seconds:g} s", flush=True)
                ray.kill(actor)
                self._moved[task] = (now, time.monotonic())

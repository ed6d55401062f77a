"""Schedules cells on workers: finished ones are skipped, interrupted ones continue, dead workers are replaced."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import polars as pl

from ..errors import ExperimentError
from . import starts, work
from .cells import Cell
from .dispatch import Dispatch, Job
from .display import Progress, plan_summary
from .foreign import kept, written
from .pool import Pool
from .tracker import Tracker

PRUNE_SECONDS = 60.0
"""How often the disk limit is looked after: sizes of all that is kept are added up for it."""


class Run:
    """One pass over some cells, of which what is not finished is run.

    A cell's result depends only on its identity, not on the order or the worker. A cell that diverges counts as
    finished; one whose worker died is continued on another.

    Args:
        problems: Their ``problems`` tables, by their hashes (``problems_hash``).
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        problems: Mapping[str, pl.DataFrame],
        pool: Pool,
        tracker: Tracker,
        *,
        title: str,
    ) -> None:
        self._cells, self._problems, self._pool, self._tracker = cells, problems, pool, tracker
        self._title, self._display = title, Progress(title, cells)
        self._by_id = {cell.run_id: cell for cell in cells}
        self._left: set[str] = set()
        self._pruned = time.monotonic()

    def finish(self, *, supersede: bool = True) -> None:
        """Run everything that is left, and send what is finished, also where some failed.

        Args:
            supersede: Whether these are all cells of the tracker's experiment; else others may follow.

        Raises:
            ExperimentError: Cells failed, which are listed; all others are finished first.
            Stopped: A signal came; the cells that were running have saved their state.
        """
        finished = [bool(kept(cell, work.folder_of(cell))) for cell in self._cells]
        print(f"{self._title}: {plan_summary(self._cells, finished)}", flush=True)
        dispatch = Dispatch(self._pool, self._title)
        failed = self._starts(dispatch)
        left = [cell for cell in self._cells if cell.run_id not in failed and self._is_left(cell)]
        self._left = {cell.run_id for cell in left}
        order = reversed(left) if self._pool.resources.reverse else left
        failed |= dispatch.run([self._job(cell) for cell in order], poll=self._poll)
        ended = [cell for cell in self._cells if cell.run_id not in failed]
        for cell in ended:
            self._tracker.send(cell, finished=True)
        for cell in {cell.start_id: cell for cell in ended if cell.start_id}.values():
            self._tracker.send_start(cell)
        self._display.show(last=True)
        if supersede and not failed:
            self._tracker.mean(self._cells)
        self._prune()
        if failed:
            reasons = "".join(
                f"\n  {cell.name}: {failed[cell.run_id]}" for cell in self._cells if cell.run_id in failed
            )
            raise ExperimentError(
                f"{self._title}: {len(failed)} of {len(self._cells)} cells failed; the others are finished, and the "
                f"same command tries these again:{reasons}"
            )

    def _is_left(self, cell: Cell) -> bool:
        """Whether a cell is to be trained, or has only its policy to save, which its checkpoint holds."""
        folder = work.folder_of(cell)
        return not work.finished(cell, folder) or work.lacks_policy(cell, folder, self._pool.resources.keep_policies)

    def _starts(self, dispatch: Dispatch) -> dict[str, str]:
        """Make each first evaluation once, before cells that share it ask for it; returns the cells that lack one."""
        sharing = [cell for cell in self._cells if cell.start_id]
        missing = {cell.start_id: cell for cell in sharing if not starts.exists(work.start_of(cell))}
        jobs = [
            Job(
                key=key,
                name=f"the first evaluation of {cell.origin.base_model}, seed {cell.seed}",
                begin=partial(self._begin_start, cell),
            )
            for key, cell in missing.items()
        ]
        why = {key: f"the first evaluation of its seed failed: {reason}" for key, reason in dispatch.run(jobs).items()}
        return {cell.run_id: why[cell.start_id] for cell in self._cells if cell.start_id in why}

    def _begin_start(self, cell: Cell, actor: Any) -> Any:
        return actor.start.remote(cell, self._problems[cell.origin.problems], str(work.start_of(cell).resolve()))

    def _job(self, cell: Cell) -> Job:
        folder = work.folder_of(cell)
        return Job(
            key=cell.run_id,
            name=cell.name,
            begin=partial(self._begin, cell),
            end=partial(self._end, cell),
            position=partial(self._position, cell),
            kept=partial(kept, cell, folder),
            stop=partial(work.ask_to_stop, folder),
        )

    def _position(self, cell: Cell) -> object:
        """What moves while a cell does: its records, and the ledger and the output of a command."""
        return self._display.position(cell), written(work.folder_of(cell))

    def _begin(self, cell: Cell, actor: Any) -> Any:
        folder, start = work.folder_of(cell).resolve(), work.start_of(cell).resolve()
        work.forget_stop(folder)
        return actor.train.remote(cell, self._problems[cell.origin.problems], str(folder), str(start))

    def _end(self, cell: Cell, _: object) -> None:
        """Send a cell that has ended; one that was stopped is not finished."""
        if work.finished(cell, work.folder_of(cell)):
            self._left.discard(cell.run_id)
            self._display.read(cell)
            self._tracker.send(cell, finished=True)

    def _poll(self, running: Sequence[Job]) -> None:
        for job in running:
            cell = self._by_id[job.key]
            self._tracker.send(cell)
            self._display.read(cell)
        self._display.show()
        if time.monotonic() - self._pruned > PRUNE_SECONDS:
            self._prune()

    def _prune(self) -> None:
        """Bring what is kept of cells under the disk limit: other cells' checkpoints go before those of these."""
        for place in work.prune(self._pool.resources.checkpoint_gigabytes, last=set(self._by_id), keep=self._left):
            print(f"{self._title}: {work.WORK / 'cells' / place} was deleted to keep the disk limit", flush=True)
        self._pruned = time.monotonic()

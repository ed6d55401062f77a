"""Progress on one line: in place on a terminal, now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from .cells import Cell
from .spool import Position, Spool
from .work import done as read_done
from .work import finished, folder_of


class Line:
    """A progress line: units done, total, and estimated time left."""

    def __init__(self, title: str, *, total: int, unit: str, done: int = 0) -> None:
        self._title, self._total, self._unit, self._at_start = title, total, unit, done
        self._began, self._shown = time.monotonic(), 0.0

    def show(self, done: int, *, before: str = "", last: bool = False) -> None:
        """Print the line, with a text before the count, unless it was printed a moment ago."""
        terminal = sys.stdout.isatty()
        if not last and time.monotonic() - self._shown < (1 if terminal else 20):
            return
        self._shown = time.monotonic()
        rate = (done - self._at_start) / max(self._shown - self._began, 1e-9)
        left = f", about {(self._total - done) / rate / 60:.1f} min left" if rate > 0 and done < self._total else ""
        line = f"{self._title}: {before}{done:,} of {self._total:,} {self._unit}{left}"
        print(f"\r{line:<90}" if terminal else line, end="\n" if last or not terminal else "", flush=True)


class Progress:
    """Cells done, rollouts spent of the budget, and time left; reads of a cell only what is new."""

    def __init__(self, title: str, cells: Sequence[Cell]) -> None:
        self._cells = len(cells)
        self._at: dict[str, Position] = {}
        self._spent: dict[str, int] = {}
        self._complete: set[str] = set()
        for cell in cells:
            self.read(cell)
        done = sum(self._spent.values())
        self._line = Line(title, total=sum(cell.rollouts for cell in cells), unit="rollouts", done=done)

    def read(self, cell: Cell) -> None:
        """Read what is new of a cell."""
        folder = folder_of(cell)
        if finished(cell, folder):
            self._complete.add(cell.run_id)
            self._spent[cell.run_id] = cell.rollouts
            return
        records, self._at[cell.run_id] = Spool(folder / "metrics.jsonl").since(self.position(cell))
        if records:
            self._spent[cell.run_id] = min(records[-1].record.rollouts, cell.rollouts)

    def position(self, cell: Cell) -> Position:
        """How far the spool of a cell has been read: it moves while the cell does."""
        return self._at.get(cell.run_id, Position())

    def show(self, *, last: bool = False) -> None:
        """Print the line."""
        before = f"{len(self._complete)}/{self._cells} cells, "
        self._line.show(sum(self._spent.values()), before=before, last=last)


def plan_summary(cells: Sequence[Cell], has_checkpoint: Sequence[bool]) -> str:
    """What is done already, what is continued, as the cells that have a checkpoint can be, and what begins."""
    left = [(cell, has) for cell, has in zip(cells, has_checkpoint, strict=True) if not finished(cell, folder_of(cell))]
    complete, continued = len(cells) - len(left), sum(has for _, has in left)
    again = [cell.name for cell, has in left if not has and read_done(folder_of(cell)) is not None]
    begun = len(left) - continued
    line = f"{len(cells)} cells: {complete} finished, {continued} continued, {begun} from the base model"
    if again:
        line += f"; trained again, since their checkpoints were pruned: {', '.join(again)}"
    return line

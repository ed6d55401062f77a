"""The ledger of one run: an append-only file with one writer, safe against crashes."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from ..checks import finite, whole
from ..errors import BudgetError, LedgerError
from ..wording import reason
from . import frames, records
from .counts import Counts, charged_counts, split
from .fold import Fold, Totals
from .history import History
from .limits import Limits
from .opening import Opened, begin_attempt

if TYPE_CHECKING:
    import polars as pl

MOST_SHARES = 256
"""Most steps that share a charge, which is one record of at most 64 KiB."""


class Ledger:
    """A record of everything that one run generated, charge by charge.

    A charge is acknowledged (``charge`` returns) once the operating system holds it, so that it survives the death of
    the process. The first charge of each step in an attempt is synced to the disk, and with it everything before, also
    where steps are charged in turn; ``sync`` does so at any other moment, such as just before a checkpoint.

    Open one with ``Ledger.open``; it may be charged from several threads of the process that opened it. A charge that
    raised ``LedgerError`` was not made. One that was interrupted (by Ctrl-C, say) was made if it is in the file, and
    the sums are always those of the file.
    """

    def __init__(self, opened: Opened, run_id: str) -> None:
        self._writer = opened.writer
        self._run_id = run_id
        self._attempt = len(opened.fold.resumed_from)
        self._torn_bytes = opened.torn_bytes
        self._fold = opened.fold
        self._number = opened.number
        # False while a record is written and counted: a later call that finds it false follows an interruption.
        self._settled = True
        self._synced_steps: set[int] = set()
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: str | Path, *, run_id: str, resumed_from: int | Literal["last"] | None = None) -> Ledger:
        """Open a ledger for writing, and begin an attempt at its run.

        A torn end is cut off and logged as a warning: it was never synced. What earlier attempts charged to steps
        after ``resumed_from`` becomes lost work, which is logged too: as a warning where it holds rollouts generated
        for training. What they charged up to it stays, unless this attempt evaluates (or pilots) such a step again;
        then the repetition takes its place. ``Fold`` has the rules.

        Args:
            path: The file, created if it does not exist.
            resumed_from: Last update step that is not done again: that of the checkpoint, 0 when the run starts from
                its beginning, ``"last"`` for the last one in the ledger. May be left out while nothing was charged.

        Raises:
            LedgerError: The file is damaged, of another run, held by another writer or not writable, its file
                system has no locks, or the ledger never reached the step resumed from; or there are charges, and
                ``resumed_from`` was left out.
        """
        return cls(begin_attempt(Path(path), run_id, resumed_from), run_id)

    @property
    def path(self) -> Path:
        """The file."""
        return self._writer.path

    @property
    def run_id(self) -> str:
        """The run it belongs to."""
        return self._run_id

    @property
    def attempt(self) -> int:
        """Number of this attempt at the run, from 1."""
        return self._attempt

    @property
    def torn_bytes(self) -> int:
        """Length of the torn end that was cut off when it was opened; 0 as a rule."""
        return self._torn_bytes

    @property
    def used(self) -> Counts:
        """C_used: the training cohorts of the canonical ledger, cumulative."""
        return self._current_fold().used

    @property
    def lost(self) -> Counts:
        """Generated for training, paid for, and lost when earlier attempts ended."""
        return self._current_fold().lost_training

    @property
    def totals(self) -> Totals:
        """Sums by cohort so far, canonical and lost."""
        self._current_fold()
        with self._lock:
            return self._fold.totals()

    @property
    def device_seconds(self) -> float:
        """Device time charged so far, by all attempts: what was paid for, lost or not."""
        return self._current_fold().device_seconds

    def charge(
        self,
        step: int,
        charged: Mapping[str, Counts] | pl.DataFrame,
        *,
        shares: Sequence[int] = (1,),
        device_seconds: float = 0.0,
    ) -> None:
        """Record what was generated in a step; several charges to one step add up.

        A step in which nothing was generated is recorded too, so that the run can resume after it.

        What is used in several steps is charged to all of them, in one record::

            ledger.charge(5, {"trained": Counts(rollouts=64)}, shares=(1, 1, 1, 1))  # 16 to each of steps 5 to 8
            ledger.charge(9, {"trained": Counts(rollouts=64)}, shares=(3, 1))  # 48 to step 9 and 16 to step 10

        Args:
            step: Update step, from 1; an evaluation is charged to the step it follows (0 before the first).
            charged: Counts by cohort (``trained``, ``filtered``, ``stale``, ``failed``, ``eval``, ``pilot``), or a
                ``rollouts`` table whose column ``cohort`` says what became of each response. A table without rows
                charges nothing, as no counts do.
            shares: How much of it is used in ``step`` and each of the steps after it, all of which are reached with it.
            device_seconds: Seconds times devices held. Kept beside the counts, and never in the ``ledger`` table,
                which is the same on every machine.

        Raises:
            BudgetError: There is no such cohort, the table lacks a column, the step or the time is negative, or there
                is no share or one below 1. Nothing was charged.
            LedgerError: The ledger is closed or used by another process, its file is gone, or the disk is full or
                refuses to sync. Nothing was charged, unless the error says that it may be.
        """
        step = whole(step, "step", least=0)
        counts = {cohort: c for cohort, c in charged_counts(charged).items() if c}
        parts = _parts(step, counts, shares)
        if device_seconds:
            device_seconds = finite(device_seconds, "device_seconds", zero=True)
        # Before the lock, which a fork may have inherited locked.
        self._writer.check()
        with self._lock:
            self._settle()
            if not counts and not device_seconds and step <= self._fold.last_step:
                return
            payload = records.encode_charges(parts, device_seconds)
            self._append(payload, f"the charge for step {step}", sync=step not in self._synced_steps)
            if device_seconds:
                self._fold.take_time(step, device_seconds)
            for of_step, part in parts:
                self._fold.charge(of_step, part)
            self._synced_steps.add(step)
            self._settled = True

    def end(self, step: int) -> None:
        """Record that the attempt ended after a step: what it generated for later ones was not used, and is lost work.

        Raises:
            BudgetError: The step is negative.
            LedgerError: The ledger cannot be written.
        """
        step = whole(step, "step", least=0)
        self._writer.check()
        with self._lock:
            self._settle()
            if step < self._fold.last_step:
                self._append(records.encode_end(step), "the end of the attempt", sync=True)
                self._fold.end(step)
                self._settled = True

    def note_limits(self, limits: Limits) -> None:
        """Record the limits in force from here on, unless they are in force already; ``Meter`` does this."""
        self._writer.check()
        with self._lock:
            self._settle()
            if limits != self._fold.limits:
                self._append(records.encode_limits(limits), "the limits", sync=False)
                self._fold.limits = limits
                self._settled = True

    def sync(self) -> None:
        """Return once every charge is on the disk, safe from a power cut.

        Raises:
            LedgerError: The ledger is closed, or the disk refuses.
        """
        self._writer.check()
        with self._lock:
            self._settle()
            self._writer.sync()

    def history(self) -> History:
        """The whole ledger, read from its file."""
        return History.read(self.path)

    def table(self) -> pl.DataFrame:
        """The ``ledger`` table: the canonical attempt of each step."""
        return self.history().table()

    def lost_work(self) -> pl.DataFrame:
        """What was paid for and lost: the columns of the ``ledger`` table and ``attempt``."""
        return self.history().lost_work()

    def close(self) -> None:
        """Sync, and let another writer in. Closing twice does nothing; in a fork, it only closes the handle.

        Raises:
            LedgerError: The disk refuses to sync, or the file is gone. It is closed all the same.
        """
        if self._writer.forked:
            self._writer.close()
            return
        with self._lock:
            if self._writer.closed:
                return
            try:
                # A failed sync has raised already.
                if not self._writer.unusable:
                    self._settle()
                    self._writer.sync()
            finally:
                self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _append(self, payload: bytes, what: str, *, sync: bool) -> None:
        """Write a record, which the caller then counts."""
        self._settled = False
        try:
            self._writer.append(frames.frame(self._number, payload), what, sync=sync)
        except LedgerError:
            self._settled = True
            raise
        self._number += 1

    def _current_fold(self) -> Fold:
        """The sums of the file, unless a charge is being made just now: then those before it."""
        if not self._settled and self._lock.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self._lock.release()
        return self._fold

    def _settle(self) -> None:
        """After an interruption between writing and counting: count what the file holds."""
        if self._settled:
            return
        try:
            data = self._writer.read()
            found = History.decode(data, str(self.path))
            self._writer.resume(data, whole=found.whole_bytes, synced=found.synced)
        except OSError as error:
            raise LedgerError(f"{self.path}: cannot be read again after an interruption ({reason(error)})") from None
        self._fold = found.fold
        self._number = found.records
        self._synced_steps.clear()
        self._settled = True


def _parts(step: int, counts: Mapping[str, Counts], shares: Sequence[int]) -> list[tuple[int, dict[str, Counts]]]:
    """What a charge comes to in each of its steps.

    Raises:
        BudgetError: There is no share, one is below 1, or there are too many for one record.
    """
    if shares == (1,):
        return [(step, dict(counts))]
    shares = [whole(share, "a share", least=1) for share in shares]
    if not 1 <= len(shares) <= MOST_SHARES:
        raise BudgetError(f"a charge is shared by {len(shares):,} steps; it must be 1 to {MOST_SHARES}")
    of_cohorts = {cohort: split(c, shares) for cohort, c in counts.items()}
    parts = [
        {cohort: of_steps[k] for cohort, of_steps in of_cohorts.items() if of_steps[k]} for k in range(len(shares))
    ]
    # As the record has them: a step without a part is reached with those after it.
    return [(step + k, part) for k, part in enumerate(parts) if part or not k]

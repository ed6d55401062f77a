"""The ledger of one run: an append-only file with one writer, safe against crashes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from . import frames, records
from .counts import COHORTS, Counts, Limits, finite, whole
from .errors import BudgetError, LedgerError
from .fold import Fold, Totals
from .history import History
from .wording import reason
from .writer import Writer, sync_folder

if TYPE_CHECKING:
    import polars as pl

LONGEST_RUN_ID = 1_000


class Ledger:
    """Everything that one run generated, charge by charge.

    A charge is acknowledged (``charge`` returns) once the operating system holds it, so that it survives
    the death of the process. The first charge of each step is synced to the disk, and with it everything
    before; ``sync`` does so at any other moment, such as just before a checkpoint.

    Open one with ``Ledger.open``; it may be charged from several threads of the process that opened it. A charge that
    raised ``LedgerError`` was not made. One that was interrupted (by Ctrl-C, say) was made if it is in the file, and
    the sums here always are those of the file.
    """

    def __init__(self, writer: Writer, run_id: str, fold: Fold, *, number: int, torn_bytes: int) -> None:
        self._writer = writer
        self._run_id = run_id
        self._attempt = len(fold.resumed_from)
        self._torn_bytes = torn_bytes
        self._fold = fold
        self._number = number
        # False while a record is written and counted: whoever finds it so was preceded by an interruption.
        self._settled = True
        self._synced_step: int | None = None
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: str | Path, *, run_id: str, resumed_from: int = 0) -> Ledger:
        """Open a ledger for writing, and begin an attempt at its run.

        A torn end is cut off and logged as a warning: it was never synced. What earlier attempts charged to steps
        after ``resumed_from`` becomes lost work. What they charged up to it stays, unless this attempt evaluates (or
        pilots) such a step again; then the repetition takes its place. ``Fold`` has the rules.

        Args:
            path: The file, made when it is not there. One of an earlier version becomes one of this version.
            run_id: The run; a file holds one.
            resumed_from: Last update step that is not done again; 0 when the run starts from its beginning.

        Raises:
            LedgerError: The file is damaged, of another run, held by another writer or not writable, its file
                system has no locks, or the ledger never reached the step resumed from.
        """
        path = Path(path)
        try:
            length = len(run_id.encode())
        except UnicodeEncodeError:
            raise LedgerError(f"{path}: the run_id {run_id!r} is not text that UTF-8 can hold") from None
        if not 0 < length <= LONGEST_RUN_ID:
            raise LedgerError(f"{path}: a run_id has 1 to {LONGEST_RUN_ID} bytes, not {length}")
        resumed_from = whole(resumed_from, "resumed_from", least=0)
        try:
            writer = Writer.open(path)
            try:
                return cls._begin(writer, run_id, resumed_from)
            except BaseException:
                writer.abandon()
                raise
        except OSError as error:
            raise LedgerError(f"{path}: cannot be written ({reason(error)})") from None

    @classmethod
    def _begin(cls, writer: Writer, run_id: str, resumed_from: int) -> Ledger:
        path = writer.path
        data = writer.read()
        before = History.decode(data, str(path))
        if before.run_id not in ("", run_id):
            raise LedgerError(f"{path}: is the ledger of run {before.run_id}, not of {run_id}")
        if resumed_from > (last := before.last_step):
            raise LedgerError(
                f"{path}: cannot resume from step {resumed_from}, because the ledger ends at step {last}; "
                "the checkpoint and the ledger must be of one run, and a step that generates nothing must be charged "
                "as well"
            )
        if before.torn_bytes:
            import logging

            logging.getLogger(__name__).warning(
                "%s: %d bytes at its end were torn and are dropped", path, before.torn_bytes
            )
        opening = records.attempt(run_id, resumed_from)
        if before.head.version == frames.VERSION:
            writer.resume(data, whole=before.whole_bytes, synced=before.head.synced or 0)
            writer.append(frames.framed(before.records, opening), "the attempt", sync=True)
        else:
            writer.renew(data[before.head.size : before.whole_bytes] + frames.framed(before.records, opening))
        sync_folder(path.parent)
        before.fold.begin(resumed_from)
        return cls(writer, run_id, before.fold, number=before.records + 1, torn_bytes=before.torn_bytes)

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
        return self._current().used

    @property
    def totals(self) -> Totals:
        """Sums by cohort so far, canonical and lost."""
        self._current()
        with self._lock:
            return self._fold.totals()

    @property
    def device_seconds(self) -> float:
        """Device time charged so far, by all attempts: what was paid for, lost or not."""
        return self._current().device_seconds

    def charge(self, step: int, counts: Mapping[str, Counts], *, device_seconds: float = 0.0) -> None:
        """Record what was generated in a step; several charges to one step add up.

        A step in which nothing was generated is recorded too, so that the run can resume after it.

        Args:
            step: Update step, from 1; an evaluation is charged to the step it follows (0 before the first).
            counts: Counts by cohort: ``trained``, ``filtered``, ``stale``, ``failed``, ``eval``, ``pilot``.
            device_seconds: Seconds times devices held. Kept beside the counts, and never in the ``ledger`` table,
                which is the same on every machine.

        Raises:
            BudgetError: There is no such cohort, or the step or the time is negative. Nothing was charged.
            LedgerError: The ledger is closed or used by another process, its file is gone, or the disk is full or
                refuses to sync. Nothing was charged, unless the error says that it may be.
        """
        step = whole(step, "step", least=0)
        unknown = [cohort for cohort in counts if cohort not in COHORTS]
        if unknown:
            raise BudgetError(f"{unknown[0]!r} is not a cohort; the cohorts are {', '.join(COHORTS)}")
        counts = {cohort: c for cohort, c in counts.items() if c}
        if device_seconds:
            device_seconds = finite(device_seconds, "device_seconds", zero=True)
        # Before the lock, which a fork may have inherited locked.
        self._writer.check()
        with self._lock:
            self._settle()
            if not counts and not device_seconds and step <= self._fold.last_step:
                return
            payload = records.charge(step, counts, device_seconds)
            self._append(payload, f"the charge for step {step}", sync=step != self._synced_step)
            if device_seconds:
                self._fold.take_time(step, device_seconds)
            self._fold.charge(step, counts)
            self._synced_step = step
            self._settled = True

    def note_limits(self, limits: Limits) -> None:
        """Record the limits in force from here on, unless they are already; ``Meter`` does this."""
        self._writer.check()
        with self._lock:
            self._settle()
            if limits != self._fold.limits:
                self._append(records.limit(limits), "the limits", sync=False)
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
        """Sync, and let another writer in. Closing twice does nothing; in a fork, it only lets go of the file.

        Raises:
            LedgerError: The disk refuses to sync, or the file is gone. It is closed all the same.
        """
        if self._writer.foreign:
            self._writer.close()
            return
        with self._lock:
            if self._writer.closed:
                return
            try:
                # A failed sync was told when it failed.
                if not self._writer.failed:
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
        """Write a record; whoever calls counts it next, and is settled then."""
        self._settled = False
        try:
            self._writer.append(frames.framed(self._number, payload), what, sync=sync)
        except LedgerError:
            self._settled = True
            raise
        self._number += 1

    def _current(self) -> Fold:
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
            self._writer.resume(data, whole=found.whole_bytes, synced=found.head.synced or 0)
        except OSError as error:
            raise LedgerError(f"{self.path}: cannot be read again after an interruption ({reason(error)})") from None
        self._fold = found.fold
        self._number = found.records
        self._synced_step = None
        self._settled = True

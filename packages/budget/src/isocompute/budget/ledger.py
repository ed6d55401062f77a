"""The ledger of one run: an append-only file with one writer, safe against crashes."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from . import records
from .counts import COHORTS, TRAINING_COHORTS, Counts, Limits, finite, whole
from .errors import BudgetError, LedgerError
from .history import History, Totals

if TYPE_CHECKING:
    import polars as pl

LONGEST_RUN_ID = 1_000


class Ledger:
    """Everything that one run generated, charge by charge.

    A charge is acknowledged (``charge`` returns) once the operating system holds it, so that it survives
    the death of the process. The first charge of each step is synced to the disk, and with it everything
    before; ``sync`` does so at any other moment, such as just before a checkpoint.

    Open one with ``Ledger.open``; it may be charged from several threads.
    """

    def __init__(self, path: Path, handle: int, history: History) -> None:
        self._path = path
        self._handle: int | None = handle
        self._size = history.whole_bytes
        self._number = history.records
        self._run_id = history.run_id
        self._attempt = len(history.resumed_from)
        self._resumed_from = history.resumed_from[-1]
        self._limits = history.limits
        self._totals = history.totals()
        self._used = self._totals.used
        self._device_seconds = history.device_seconds
        self._synced_step: int | None = None
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: str | Path, *, run_id: str, resumed_from: int = 0) -> Ledger:
        """Open a ledger for writing, and begin an attempt at its run.

        A torn last record is cut off: it was never acknowledged. Charges that earlier attempts made to
        steps after ``resumed_from`` become lost work. Charges up to it stay, unless this attempt repeats
        that phase of the step (training, evaluation or pilot); then the repetition takes their place.

        Args:
            path: The file, made when it is not there.
            run_id: The run; a file holds one.
            resumed_from: Last update step that is not done again; 0 when the run starts from its beginning.

        Raises:
            LedgerError: The file is damaged, of another run, held by another writer or not writable, or it
                holds no charge for the step resumed from.
        """
        path = Path(path)
        if not 0 < len(run_id.encode()) <= LONGEST_RUN_ID:
            raise LedgerError(f"{path}: a run_id has 1 to {LONGEST_RUN_ID} bytes, not {len(run_id.encode())}")
        resumed_from = whole(resumed_from, "resumed_from", least=0)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise LedgerError(f"{path}: cannot be opened for writing ({error.strerror})") from None
        try:
            return cls._begin(path, handle, run_id, resumed_from)
        except OSError as error:
            os.close(handle)
            raise LedgerError(f"{path}: cannot be written ({error.strerror})") from None
        except BaseException:
            os.close(handle)
            raise

    @classmethod
    def _begin(cls, path: Path, handle: int, run_id: str, resumed_from: int) -> Ledger:
        try:
            # flock, not lockf: a POSIX lock is gone as soon as the process closes the file after reading it.
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LedgerError(
                f"{path}: another writer has this ledger open; a run has one writer, so end the other first"
            ) from None
        data = path.read_bytes()
        before = History.decode(data, str(path))
        if before.run_id not in ("", run_id):
            raise LedgerError(f"{path}: is the ledger of run {before.run_id}, not of {run_id}")
        if resumed_from > (last := before.last_step):
            raise LedgerError(
                f"{path}: cannot resume from step {resumed_from}, because the ledger ends at step {last}; "
                "the checkpoint and the ledger have to be of one run"
            )
        opening = records.framed(before.records, records.attempt(run_id, resumed_from))
        if not before.records:
            opening = records.MAGIC + opening
        os.ftruncate(handle, before.whole_bytes)
        try:
            _write(handle, opening)
            os.fsync(handle)
        except OSError:
            os.ftruncate(handle, before.whole_bytes)
            raise
        _sync_folder(path.parent)
        history = replace(
            before,
            run_id=run_id,
            resumed_from=(*before.resumed_from, resumed_from),
            whole_bytes=before.whole_bytes + len(opening),
            torn_bytes=0,
            records=before.records + 1,
        )
        return cls(path, handle, history)

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def run_id(self) -> str:
        """The run it belongs to."""
        return self._run_id

    @property
    def attempt(self) -> int:
        """Number of this attempt at the run, from 1."""
        return self._attempt

    @property
    def used(self) -> Counts:
        """C_used: the training cohorts of the canonical ledger, cumulative."""
        return self._used

    @property
    def totals(self) -> Totals:
        """Sums by cohort so far, canonical and lost."""
        with self._lock:
            return Totals(canonical=dict(self._totals.canonical), lost=dict(self._totals.lost))

    @property
    def device_seconds(self) -> float:
        """Device time charged so far, by all attempts: what was paid for, lost or not."""
        return self._device_seconds

    def charge(self, step: int, counts: Mapping[str, Counts], *, device_seconds: float = 0.0) -> None:
        """Record what was generated in a step; several charges to one step add up.

        Args:
            step: Update step, from 1; an evaluation is charged to the step it follows (0 before the first).
            counts: Counts by cohort: ``trained``, ``filtered``, ``stale``, ``failed``, ``eval``, ``pilot``.
            device_seconds: Seconds times devices held. Kept beside the counts, and never in the ``ledger`` table,
                which is the same on every machine.

        Raises:
            BudgetError: There is no such cohort, or the step or the time is negative. Nothing was charged.
            LedgerError: The ledger is closed or the disk full, and nothing was charged; or the disk refused
                to sync what was.
        """
        step = whole(step, "step", least=0)
        unknown = [cohort for cohort in counts if cohort not in COHORTS]
        if unknown:
            raise BudgetError(f"{unknown[0]!r} is not a cohort; the cohorts are {', '.join(COHORTS)}")
        counts = {cohort: c for cohort, c in counts.items() if c}
        if device_seconds:
            device_seconds = finite(device_seconds, "device_seconds", zero=True)
        elif not counts:
            return
        with self._lock:
            self._append(records.charge(step, counts, device_seconds), f"the charge for step {step}")
            self._device_seconds += device_seconds
            if self._attempt > 1 and step <= self._resumed_from:
                self._totals = History.read(self._path).totals()
                self._used = self._totals.used
            else:
                canonical = self._totals.canonical
                for cohort, c in counts.items():
                    canonical[cohort] += c
                    if cohort in TRAINING_COHORTS:
                        self._used += c
            if step != self._synced_step:
                self._sync()
                self._synced_step = step

    def note_limits(self, limits: Limits) -> None:
        """Record the limits in force from here on, unless they are already; ``Meter`` does this."""
        with self._lock:
            if limits != self._limits:
                self._append(records.limit(limits), "the limits")
                self._limits = limits

    def sync(self) -> None:
        """Return once every charge is on the disk, safe from a power cut.

        Raises:
            LedgerError: The ledger is closed, or the disk refuses.
        """
        with self._lock:
            self._sync()

    def history(self) -> History:
        """The whole ledger, read from its file."""
        return History.read(self._path)

    def table(self) -> pl.DataFrame:
        """The ``ledger`` table: the canonical attempt of each step."""
        return self.history().table()

    def lost_work(self) -> pl.DataFrame:
        """What was paid for and lost: the columns of the ``ledger`` table and ``attempt``."""
        return self.history().lost_work()

    def close(self) -> None:
        """Sync, and let another writer in. Closing twice does nothing."""
        with self._lock:
            if self._handle is None:
                return
            try:
                self._sync()
            finally:
                os.close(self._handle)
                self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _append(self, payload: bytes, what: str) -> None:
        handle = self._open_handle()
        record = records.framed(self._number, payload)
        try:
            _write(handle, record)
        except OSError as error:
            reason = error.strerror or str(error)
            try:
                os.ftruncate(handle, self._size)
            except OSError:
                # What is left of the record is a torn tail, which the next attempt cuts off.
                os.close(handle)
                self._handle = None
            raise LedgerError(f"{self._path}: {what} could not be written ({reason}) and is not counted") from None
        self._size += len(record)
        self._number += 1

    def _sync(self) -> None:
        try:
            os.fsync(self._open_handle())
        except OSError as error:
            raise LedgerError(f"{self._path}: cannot be synced to the disk ({error.strerror})") from None

    def _open_handle(self) -> int:
        if self._handle is None:
            raise LedgerError(f"{self._path}: the ledger is closed")
        return self._handle


def _write(handle: int, record: bytes) -> None:
    """Write a record, in one call unless the disk is full; the next call then says so."""
    written = 0
    while written < len(record):
        written += os.write(handle, record[written:])


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""The ledger of a command, charged with what its log says that it generated."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ..checks import whole
from ..errors import BudgetError
from ..ledger import handles
from ..ledger.counts import Counts
from ..ledger.fold import Fold
from ..ledger.history import History
from ..ledger.ledger import MOST_SHARES, Ledger
from ..ledger.limits import Limits, admission
from ..trainers.counting import Progressed
from ..trainers.evals import joined, progress_of, reader_of, settings_of
from ..trainers.logs.log import Log
from ..trainers.trainer import LogReader
from .live import LiveLog

LONGEST = 60.0
"""Seconds for which device time is not charged."""


class Charging:
    """What a command generated, from its log to its ledger.

    A log says only with its first entry after which step a command went on. The attempt begins in the ledger then.

    Attributes:
        path: The ledger's file.
        limits: The limits.
        last: Last step charged, or None before the log shows after which step the command went on.
        interval: Steps from one entry of the log to the next, by the trainer's own count; 1 before two are charged.
    """

    def __init__(
        self,
        live: LiveLog,
        path: Path,
        *,
        run_id: str,
        limits: Limits,
        shared: Mapping[str, Any] | None = None,
        given: Mapping[str, str] | None = None,
        devices: int = 1,
        say: Callable[[str], None] = print,
    ) -> None:
        self.path, self.limits = path, limits
        self.last: int | None = None
        self.interval = 1
        self._live, self._run_id, self._say = live, run_id, say
        self._shared, self._given = dict(shared or {}), dict(given or {})
        self._devices = whole(devices, "devices", least=1)
        self._ledger: Ledger | None = None
        self._lock: int | None = None
        self._fold = History.read(path).fold if path.exists() else Fold()
        self._new = not (self._fold.last_step or self._fold.device_seconds or self._fold.totals().paid)
        self._before: dict[str, Log] = {}
        self._following = 1
        self._clock: float | None = None
        self._done = False
        self._starts: object = None

    def begin(self) -> None:
        """Before the command starts: make sure that it can be counted, and that its next step may fit.

        Raises:
            BudgetError: There is no limit, no step fits, or the log is not understood. The ledger is as it was.
            LedgerError: The ledger is damaged, of another run or held by another writer.
        """
        limits = self.limits
        if all(x is None for x in (limits.rollouts, limits.response_tokens, limits.device_seconds, limits.money)):
            raise BudgetError(
                "there is no limit to hold the command to: give --rollouts, --response-tokens, --device-hours or "
                "--money"
            )
        seen = self._live.look()
        # What lies in the folder of a run that has not begun need not be a log.
        if seen.problem and not seen.logs and (not self._new or Path(self._live.source).is_file()):
            raise BudgetError(seen.problem)
        self._before = {log.name: log for log in seen.logs}
        self._following = self._batch()
        progressed = None
        if not self._new and len(seen.logs) == 1:
            progressed = self._progress(seen.logs[0])
            self._following = progressed.following or self._following
        # Where it will go on is not known yet, and with it what of the work up to here is used.
        refused = self.refusal() if limits.counted == "paid" or self._new else ""
        if refused:
            raise BudgetError(f"{self.path}: not even the next step fits, so nothing is started: {refused}")
        if self._new:
            self._open(0)
            return
        if progressed is not None and progressed.points and progressed.points[-1].step > self._fold.last_step:
            self._catch_up(progressed)
        self._lock = handles.open_locked(self.path)

    def start_clock(self) -> None:
        """The command starts."""
        self._clock = time.monotonic()

    def look(self, *, ended: bool = False) -> bool:
        """Charge what the log shows by now.

        Args:
            ended: Whether the command has ended, so that its last entry is whole.

        Returns:
            Whether something was charged.

        Raises:
            BudgetError: The log cannot be counted, or two runs write to it.
            LedgerError: The ledger cannot be written.
        """
        if self._ledger is not None and self._seconds() > LONGEST * self._devices:
            self._charge_time(self._ledger)
        seen = self._live.look()
        settled = seen.settled or ended
        if seen.settled and self._done:
            return False
        self._done = settled
        ours = [log for log in seen.logs if _mark(log) != _mark(self._before.get(log.name))]
        if len(ours) > 1 and settled:
            raise BudgetError(
                f"{self._live.source}: two runs were logged since the command began, {ours[0].name} and "
                f"{ours[1].name}: give each a folder of its own"
            )
        if len(ours) != 1:
            return False
        log = self._with_beginning(ours[0])
        first = self._first_new(log)
        if self.last is not None and log.restarts and self._starts != (log.restarts, log.notes):
            # The command started its trainer again.
            first = log.restarts[-1]
        starts = (log.restarts, log.notes)
        if not seen.settled and ended:
            try:
                return self._charge_new(log, first, starts)
            except BudgetError:
                # It may have been killed while it logged.
                pass
        return self._charge_new(log if seen.settled else self._without_last(log), first, starts)

    def refusal(self) -> str:
        """Why the next step may not be taken; empty if it may."""
        sums: Ledger | Fold = self._ledger or self._fold
        lost = sums.lost if isinstance(sums, Ledger) else sums.lost_training
        after = self.last if self.last is not None else self._fold.last_step
        return admission(
            self.limits, after + 1, self._following, used=sums.used, lost=lost, reserved=0,
            device_seconds=sums.device_seconds + self._seconds(),
        ).reason  # fmt: skip

    def close(self) -> None:
        """Charge the rest of the time, and close the ledger."""
        if self._lock is not None and self._clock is not None:
            self._open("last")
        self._unlock()
        ledger, self._ledger = self._ledger, None
        if ledger is None:
            return
        try:
            self._charge_time(ledger)
        finally:
            ledger.close()

    def standstill(self) -> str:
        """Why nothing is charged, in words."""
        if self.last is not None:
            return f"the last entry is of step {self.last:,}"
        return self._live.problem or f"{self._live.source} holds no entry of a trainer that is known"

    def _charge_new(self, log: Log, first: int, starts: object) -> bool:
        """Charge what was logged from a step on.

        Args:
            starts: What changes when the trainer is started again.
        """
        if not log.rows:
            return False
        progressed = self._progress(log)
        if not any(point.logged >= first for point in progressed.points):
            return False
        resumed = max((point.step for point in progressed.points if point.logged < first), default=0)
        if self.last is None:
            if self._new and resumed and log.name in self._before:
                raise BudgetError(
                    f"{self.path}: {log.name} goes on after step {resumed}, of which this ledger knows nothing: "
                    "give the ledger of that run"
                )
            self.last = resumed
            if self._ledger is None:
                self._open(self.last)
        elif starts != self._starts and resumed < self.last:
            self.close()
            self.last = resumed
            self._open(resumed)
        self._starts = starts
        self._following = progressed.following or 0
        return self._charge(progressed)

    def _charge(self, progressed: Progressed) -> bool:
        """Charge the steps after those that were charged; whether there was one."""
        ledger, before = self._ledger, self.last
        if ledger is None or before is None:
            return False
        logged = 0
        for point in progressed.points:
            if point.step <= before:
                logged = point.logged
                continue
            used = ledger.used
            # A log may make more certain, later on, how little was generated before.
            new = Counts(
                rollouts=max(point.rollouts - used.rollouts, 0),
                response_tokens=max(point.tokens - used.response_tokens, 0),
            )
            steps = point.step - before
            shares = (1,) * steps if steps <= MOST_SHARES else (1,)
            first = before + 1 if steps <= MOST_SHARES else point.step
            ledger.charge(first, {"trained": new}, shares=shares, device_seconds=self._take_seconds())
            self.interval, logged, before = point.logged - logged, point.logged, point.step
        charged, self.last = before != self.last, before
        return charged

    def _catch_up(self, progressed: Progressed) -> None:
        """Charge what is in the log and in no charge."""
        self.last = self._fold.last_step
        self._open("last")
        self._charge(progressed)
        self._say(
            f"{self.path}: steps {self._fold.last_step + 1} to {self.last} are in the log and in no charge, as when "
            "the command went on after the one that followed it was killed; they are charged now"
        )
        self.close()
        self.last, self._fold = None, History.read(self.path).fold

    def _open(self, resumed_from: int | Literal["last"]) -> None:
        self._unlock()
        self._ledger = Ledger.open(self.path, run_id=self._run_id, resumed_from=resumed_from)
        self._ledger.note_limits(self.limits)

    def _unlock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            handles.close(lock)

    def _with_beginning(self, log: Log) -> Log:
        """A log with the beginning of its run, where an earlier attempt logged that to another or an older file."""
        old = self._before.get(log.name) or (next(iter(self._before.values())) if len(self._before) == 1 else None)
        if self._new or old is None or not old.rows or not log.rows or log.rows[0][0] <= old.rows[0][0]:
            return log
        return joined(old, log, self._reader())

    def _without_last(self, log: Log) -> Log:
        """A log without its last entry, which may not be whole yet."""
        needed = self._reader().layout.needed
        last = max((step for step, metrics in log.rows if any(map(needed.match, metrics))), default=0)
        rows = [(step, metrics) for step, metrics in log.rows if step < last]
        return replace(log, rows=rows, restarts=tuple(step for step in log.restarts if step < last))

    def _first_new(self, log: Log) -> int:
        """First step that the command logged."""
        old = self._before.get(log.name)
        if old is None:
            return 0
        if log.restarts and (log.restarts, log.notes) != (old.restarts, old.notes):
            return log.restarts[-1]
        return max((step for step, _ in old.rows), default=-1) + 1

    def _reader(self) -> LogReader:
        if self._live.trainer is None:
            raise BudgetError(f"{self._live.source}: no trainer is known that wrote it; say which with --trainer")
        return reader_of(self._live.trainer)

    def _progress(self, log: Log) -> Progressed:
        self._reader()
        return progress_of(self._live.trainer, log, self._shared, self._given)[0]  # type: ignore[arg-type]

    def _batch(self) -> int:
        """Rollouts of a batch, as far as they are known before anything is logged."""
        if self._live.trainer is None:
            return 1
        settings = settings_of(Log(name="the settings", rows=[]), self._shared, self._given)
        return self._live.trainer.parse(settings).batch_rollouts or 1

    def _seconds(self) -> float:
        """Device time that is not charged yet."""
        return 0.0 if self._clock is None else (time.monotonic() - self._clock) * self._devices

    def _charge_time(self, ledger: Ledger) -> None:
        ledger.charge(self.last or ledger.history().last_step, {}, device_seconds=self._take_seconds())

    def _take_seconds(self) -> float:
        seconds, now = self._seconds(), time.monotonic()
        self._clock = None if self._clock is None else now
        return seconds


def _mark(log: Log | None) -> tuple[object, ...]:
    """What changes when a run is logged on."""
    return () if log is None else (len(log.rows), log.rows[-1:] and log.rows[-1][0], log.restarts, log.notes)

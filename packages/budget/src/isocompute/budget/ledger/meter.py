"""Enforcement of limits: a step is admitted before it generates, and charged after."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..errors import BudgetError, whole
from .counts import Counts
from .ledger import History, Ledger, run_id_of, under_way
from .limits import Admission, Limits, Standing

if TYPE_CHECKING:
    import polars as pl


class Meter:
    """The limits on a run, held against its ledger.

    Only the training cohorts are held against the limits on rollouts and tokens, not evaluations and not pilots:
    unless the limits say otherwise (``Limits.counted``), all that was paid for, also what was lost when an earlier
    attempt ended. Device time and money are held against all that was paid. One driver calls ``admit`` and then
    ``charge``.
    """

    def __init__(self, ledger: Ledger, limits: Limits) -> None:
        self.limits, self._ledger = limits, ledger
        ledger.note_limits(limits)

    def admit(self, step: int, rollouts: int) -> Admission:
        """Admit or refuse a step that would generate so many rollouts for training, B_p · n; this changes nothing.

        A step that would exceed the limit on rollouts is refused. So is any step once the limit on response
        tokens, device time or money is reached: the step that crosses it is the last, and what it went over is
        the overshoot.
        """
        step, rollouts = whole(step, "step", least=0), whole(rollouts, "rollouts", least=1)
        return self.standing.admission(step, rollouts)

    def charge(
        self,
        step: int,
        charged: Mapping[str, Counts] | pl.DataFrame,
        *,
        shares: Sequence[int] = (1,),
        device_seconds: float = 0.0,
    ) -> None:
        """Record what a step generated, by cohort, admitted or not; see ``Ledger.charge``."""
        self._ledger.charge(step, charged, shares=shares, device_seconds=device_seconds)

    def reserve(self, rollouts: int) -> None:
        """Note how many rollouts for training are under way; see ``Ledger.reserve``."""
        self._ledger.reserve(rollouts)

    @property
    def used(self) -> Counts:
        """C_used: generated for training (trained, filtered, stale, unused and failed), in the canonical ledger."""
        return self._ledger.used

    @property
    def standing(self) -> Standing:
        """Spending so far, of all attempts: what is used, lost, and paid for."""
        return Standing.of(self.limits, self._ledger.totals, self._ledger.device_seconds)


class Hook:
    """The budget of one run in or beside its trainer, in the one process that writes its ledger.

    It reserves what is to be generated, charges what was, and stops the run.

    Attributes:
        reason: Why the run was ended; empty before, and where it ended for another reason.
    """

    closed = "the ledger is not open"
    """What the error says when the ledger is not open."""

    def __init__(self, path: Path, limits: Limits, *, run_id: str | None = None, devices: int = 1) -> None:
        limits.require_one()
        self.path, self.limits, self.run_id = path, limits, run_id or run_id_of(path)
        self.devices, self.reason = whole(devices, "devices", least=1), ""
        self._ledger: Ledger | None = None
        self._clock: float | None = None

    @property
    def ledger(self) -> Ledger:
        """The ledger, which must be open."""
        if self._ledger is None:
            raise BudgetError(f"{self.path}: {self.closed}")
        return self._ledger

    @property
    def standing(self) -> Standing:
        """Spending so far: as the open ledger has it, or its file."""
        if self._ledger is None:
            return self.standing_after(None)
        return Standing.of(self.limits, self._ledger.totals, self._ledger.device_seconds + self._seconds())

    def standing_after(self, step: int | None) -> Standing:
        """Read what was spent, or will have been when an attempt has begun after a step; nothing is written."""
        if not self.path.exists():
            return Standing(limits=self.limits)
        history = History.read(self.path)
        seconds = history.device_seconds + self._seconds()
        standing = Standing.of(self.limits, history.totals(resumed_from=step), seconds)
        return replace(standing, lost=standing.lost + under_way(self.path, standing.paid))

    def open(self, resumed_from: int | Literal["last"]) -> Ledger:
        """Begin an attempt after a step, as ``Ledger.open`` does; device time counts from now on at the latest."""
        self._clock = time.monotonic() if self._clock is None else self._clock
        self._ledger = Ledger.open(self.path, run_id=self.run_id, resumed_from=resumed_from)
        self._ledger.note_limits(self.limits)
        return self._ledger

    def close(self) -> None:
        """Let another writer in."""
        ledger, self._ledger, self._clock = self._ledger, None, None
        if ledger is not None:
            ledger.close()

    def charge(self, step: int, charged: Mapping[str, Counts], *, shares: Sequence[int] = (1,)) -> None:
        """Charge what was generated, as ``Ledger.charge`` does, and the device time since the last charge."""
        seconds, now = self._seconds(), time.monotonic()
        self.ledger.charge(step, charged, shares=shares, device_seconds=seconds)
        self._clock = now

    def start_clock(self) -> None:
        """Device time counts from now on."""
        self._clock = time.monotonic()

    def _seconds(self) -> float:
        """Device time that is not charged yet."""
        return 0.0 if self._clock is None else (time.monotonic() - self._clock) * self.devices

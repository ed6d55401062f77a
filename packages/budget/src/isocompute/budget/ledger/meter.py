"""Enforcement of limits: a step is admitted before it generates, and charged afterwards."""

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
    """The limits on a run, checked against its ledger.

    Limits on rollouts and tokens apply only to the training cohorts, not to evaluations and pilots. They count
    everything paid for, including work lost when earlier attempts ended, unless ``Limits.counted`` says otherwise.
    Limits on device time and money count everything paid for. One driver calls ``admit`` and then ``charge``.
    """

    def __init__(self, ledger: Ledger, limits: Limits) -> None:
        self.limits, self._ledger = limits, ledger
        ledger.note_limits(limits)

    def admit(self, step: int, rollouts: int) -> Admission:
        """Admit or refuse a step that would generate this many rollouts for training, B_p · n; this changes nothing.

        A step that would exceed the limit on rollouts is refused. Once the limit on response tokens, device time or
        money is reached, every further step is refused: the step that crosses the limit is the last, and its excess is
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
        """Record what a step generated, by cohort, whether admitted or not; see ``Ledger.charge``."""
        self._ledger.charge(step, charged, shares=shares, device_seconds=device_seconds)

    def reserve(self, rollouts: int) -> None:
        """Note how many training rollouts are in flight; see ``Ledger.reserve``."""
        self._ledger.reserve(rollouts)

    @property
    def used(self) -> Counts:
        """C_used: rollouts for training (trained, filtered, stale, unused and failed) in the canonical ledger."""
        return self._ledger.used

    @property
    def standing(self) -> Standing:
        """Spending so far, by all attempts: used, lost and paid."""
        return Standing.of(self.limits, self._ledger.totals, self._ledger.device_seconds)


class Hook:
    """The budget of one run, inside or beside its trainer, in the one process that writes its ledger.

    It reserves what is to be generated, charges what was generated, and stops the run.

    Attributes:
        reason: Why the budget ended the run; empty before that, or if the run ended for another reason.
    """

    closed = "the ledger is not open"
    """The error's message when the ledger is not open."""

    def __init__(self, path: Path, limits: Limits, *, run_id: str | None = None, devices: int = 1) -> None:
        limits.require_one()
        self.path, self.limits, self.run_id = path, limits, run_id or run_id_of(path)
        self.devices, self.reason = whole(devices, "devices", least=1), ""
        self._ledger: Ledger | None = None
        self._clock: float | None = None

    @property
    def ledger(self) -> Ledger:
        """The ledger; it must be open."""
        if self._ledger is None:
            raise BudgetError(f"{self.path}: {self.closed}")
        return self._ledger

    @property
    def standing(self) -> Standing:
        """Spending so far, from the open ledger or from its file."""
        if self._ledger is None:
            return self.standing_after(None)
        return Standing.of(self.limits, self._ledger.totals, self._ledger.device_seconds + self._seconds())

    def standing_after(self, step: int | None) -> Standing:
        """Read the spending now or, given a step, as it would be if an attempt began after it; write nothing."""
        if not self.path.exists():
            return Standing(limits=self.limits)
        history = History.read(self.path)
        seconds = history.device_seconds + self._seconds()
        standing = Standing.of(self.limits, history.totals(resumed_from=step), seconds)
        return replace(standing, lost=standing.lost + under_way(self.path, standing.paid))

    def open(self, resumed_from: int | Literal["last"]) -> Ledger:
        """Begin an attempt after a step, like ``Ledger.open``; the device clock starts now unless it already runs."""
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
        """Charge what was generated, like ``Ledger.charge``, and the device time since the last charge."""
        seconds, now = self._seconds(), time.monotonic()
        self.ledger.charge(step, charged, shares=shares, device_seconds=seconds)
        self._clock = now

    def start_clock(self) -> None:
        """Start counting device time now."""
        self._clock = time.monotonic()

    def _seconds(self) -> float:
        """Device time not yet charged."""
        return 0.0 if self._clock is None else (time.monotonic() - self._clock) * self.devices

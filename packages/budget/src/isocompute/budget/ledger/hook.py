"""What hooks in and beside trainers do: reserve what is to be generated, charge what was, and stop the run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from ..checks import whole
from ..errors import BudgetError
from .counts import Counts
from .ledger import History, Ledger, run_id_of, under_way
from .limits import Limits, Standing


class Hook:
    """The budget of one run, in the one process that writes its ledger.

    Attributes:
        path: The ledger's file.
        devices: Devices held, for which device time is charged.
        reason: Why the run was ended; empty before, and where it ended for another reason.

    Raises:
        BudgetError: There is no limit, or the devices are not at least 1.
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
        """The ledger.

        Raises:
            BudgetError: It is not open.
        """
        if self._ledger is None:
            raise BudgetError(f"{self.path}: {self.closed}")
        return self._ledger

    @property
    def standing(self) -> Standing:
        """Spending so far: as the open ledger has it, or its file.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        if self._ledger is None:
            return self.standing_after(None)
        return Standing.of(self.limits, self._ledger.totals, self._ledger.device_seconds + self._seconds())

    def standing_after(self, step: int | None) -> Standing:
        """Read what was spent, or will have been when an attempt has begun after a step; nothing is written."""
        if not self.path.exists():
            return Standing(limits=self.limits)
        history = History.read(self.path)
        standing = Standing.of(self.limits, history.totals(resumed_from=step), history.device_seconds)
        return replace(standing, lost=standing.lost + under_way(self.path, standing.paid))

    def open(self, resumed_from: int | Literal["last"]) -> Ledger:
        """Begin an attempt after a step.

        Raises:
            LedgerError: The ledger never reached that step, or cannot be written.
        """
        self._ledger = Ledger.open(self.path, run_id=self.run_id, resumed_from=resumed_from)
        self._ledger.note_limits(self.limits)
        return self._ledger

    def close(self) -> None:
        """Let another writer in."""
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            ledger.close()

    def reserve(self, rollouts: int) -> None:
        """Note how many rollouts for training are under way; see ``Ledger.reserve``."""
        self.ledger.reserve(rollouts)

    def charge(self, step: int, charged: Mapping[str, Counts], *, shares: Sequence[int] = (1,)) -> None:
        """Charge what was generated, as ``Ledger.charge`` does, and the device time since the last charge."""
        seconds, now = self._seconds(), time.monotonic()
        self.ledger.charge(step, charged, shares=shares, device_seconds=seconds)
        self._clock = None if self._clock is None else now

    def charge_lost(self, step: int, *, restored: int = 0) -> None:
        """Charge rollouts under way when a process died; see ``Ledger.charge_lost``."""
        self.ledger.charge_lost(step, restored=restored)

    def start_clock(self) -> None:
        """Device time counts from now on."""
        self._clock = time.monotonic()

    def _seconds(self) -> float:
        """Device time that is not charged yet."""
        return 0.0 if self._clock is None else (time.monotonic() - self._clock) * self.devices

"""Enforcement of limits: a step is admitted before it generates, and charged after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..checks import whole
from .counts import Counts
from .ledger import Ledger
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
        self._ledger = ledger
        self._limits = limits
        ledger.note_limits(limits)

    @property
    def limits(self) -> Limits:
        """The limits that are enforced."""
        return self._limits

    def admit(self, step: int, rollouts: int) -> Admission:
        """Admit or refuse a step; this changes nothing.

        A step that would exceed the limit on rollouts is refused. So is any step once the limit on response
        tokens, device time or money is reached: the step that crosses it is the last, and what it went over is
        the overshoot.

        Args:
            rollouts: Rollouts that it would generate for training, B_p · n.

        Raises:
            BudgetError: The step is negative, or the rollouts are fewer than one.
        """
        step = whole(step, "step", least=0)
        rollouts = whole(rollouts, "rollouts", least=1)
        return self._standing.admission(step, rollouts)

    def charge(
        self,
        step: int,
        charged: Mapping[str, Counts] | pl.DataFrame,
        *,
        shares: Sequence[int] = (1,),
        device_seconds: float = 0.0,
    ) -> None:
        """Record what a step generated, by cohort: everything that was paid for, admitted or not.

        Args:
            charged: Counts by cohort, or a ``rollouts`` table whose column ``cohort`` says what became of each response
                (``counts_by_cohort`` counts it).
            shares: As in ``Ledger.charge``, where several steps use what was generated once.
            device_seconds: Seconds times devices held.

        Raises:
            BudgetError: There is no such cohort, the table lacks a column, or the step or the time is negative.
                Nothing was charged.
            LedgerError: The ledger cannot be written.
        """
        self._ledger.charge(step, charged, shares=shares, device_seconds=device_seconds)

    def reserve(self, rollouts: int) -> None:
        """Note how many rollouts for training are under way; see ``Ledger.reserve``."""
        self._ledger.reserve(rollouts)

    @property
    def used(self) -> Counts:
        """C_used: generated for training (trained, filtered, stale, unused and failed), in the canonical ledger."""
        return self._ledger.used

    @property
    def device_seconds(self) -> float:
        """Device time that was paid for, by all attempts."""
        return self._ledger.device_seconds

    @property
    def lost(self) -> Counts:
        """Generated for training, paid for, and lost when earlier attempts ended early."""
        return self._ledger.lost

    @property
    def paid(self) -> Counts:
        """Generated for training by all attempts: used + lost."""
        return self.used + self.lost

    @property
    def overshoot(self) -> Counts:
        """Counts beyond the limits: tokens of the last step, rollouts that failed, or work of earlier attempts."""
        counted, limits = self._standing.counted, self._limits
        return Counts(
            rollouts=max(0, counted.rollouts - (limits.rollouts or counted.rollouts)),
            response_tokens=max(0, counted.response_tokens - (limits.response_tokens or counted.response_tokens)),
        )

    @property
    def _standing(self) -> Standing:
        return Standing.of(self._limits, self._ledger.totals, self._ledger.device_seconds)

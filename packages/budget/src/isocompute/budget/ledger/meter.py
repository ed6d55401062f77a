"""Enforcement of limits: a step is admitted before it generates, and charged after."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..checks import whole
from .counts import TRAINING_COHORTS, Counts, charged_counts
from .ledger import Ledger
from .limits import Admission, Limits, Standing

if TYPE_CHECKING:
    import polars as pl

# Cohorts that make up the B_p · n rollouts of a step. Failed rollouts are generated again, in addition.
RESERVED_COHORTS = tuple(cohort for cohort in TRAINING_COHORTS if cohort != "failed")


class Meter:
    """The limits on a run, held against its ledger.

    Only the training cohorts are held against the limits on rollouts and tokens, not evaluations and not pilots:
    unless the limits say otherwise (``Limits.counted``), all that was paid for, also what was lost when an earlier
    attempt ended. Device time and money are held against all that was paid.

    One driver calls ``admit`` and then ``charge``. Where several ranks generate at the same time, each calls
    ``reserve`` for its own part: what is reserved counts as used until it is charged or released, so that what all
    of them were admitted never exceeds a limit on rollouts. A rank may charge its part in pieces; what it will not
    generate after all it must release. A meter may be used from several threads, and shared with other processes
    through a manager or an actor; the ledger still has one writer.
    """

    def __init__(self, ledger: Ledger, limits: Limits) -> None:
        self._ledger = ledger
        self._limits = limits
        self._reserved: dict[tuple[int, int], int] = {}
        self._lock = threading.Lock()
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
        with self._lock:
            return self._admission(step, rollouts)

    def reserve(self, step: int, rollouts: int, *, rank: int) -> Admission:
        """As ``admit``, and reserve what was admitted until this rank has charged all of it or releases the rest.

        Args:
            rollouts: Rollouts that this rank would generate.
            rank: Number of the rank; a second reservation of a rank for a step adds to its first.

        Raises:
            BudgetError: The step or the rank is negative, or the rollouts are fewer than one.
        """
        step = whole(step, "step", least=0)
        rank = whole(rank, "rank", least=0)
        rollouts = whole(rollouts, "rollouts", least=1)
        with self._lock:
            admission = self._admission(step, rollouts)
            if admission:
                self._reserved[step, rank] = self._reserved.get((step, rank), 0) + rollouts
            return admission

    def release(self, step: int, *, rank: int) -> None:
        """Release what a rank has reserved for a step and will not generate.

        Args:
            rank: Number of the rank; nothing happens when it has no reservation.
        """
        with self._lock:
            self._reserved.pop((step, rank), None)

    def charge(
        self,
        step: int,
        charged: Mapping[str, Counts] | pl.DataFrame,
        *,
        shares: Sequence[int] = (1,),
        device_seconds: float = 0.0,
        rank: int | None = None,
    ) -> None:
        """Record what a step generated, by cohort: everything that was paid for, admitted or not.

        Args:
            charged: Counts by cohort, or a ``rollouts`` table whose column ``cohort`` says what became of each response
                (``counts_by_cohort`` counts it).
            shares: As in ``Ledger.charge``, where several steps use what was generated once.
            device_seconds: Seconds times devices held.
            rank: The rank that reserved it, if it was reserved. The reservation shrinks by the rollouts charged,
                except those that failed, which are generated again. The rest stays reserved.

        Raises:
            BudgetError: There is no such cohort, the table lacks a column, or the step or the time is negative.
                Nothing was charged.
            LedgerError: The ledger cannot be written.
        """
        if rank is None:
            self._ledger.charge(step, charged, shares=shares, device_seconds=device_seconds)
            return
        counts = charged_counts(charged)
        with self._lock:
            self._ledger.charge(step, counts, shares=shares, device_seconds=device_seconds)
            left = self._reserved.pop((step, rank), 0)
            left -= sum(counts[cohort].rollouts for cohort in RESERVED_COHORTS if cohort in counts)
            if left > 0:
                self._reserved[step, rank] = left

    @property
    def used(self) -> Counts:
        """C_used: generated for training (trained, filtered, stale and failed), in the canonical ledger."""
        return self._ledger.used

    @property
    def device_seconds(self) -> float:
        """Device time that was paid for, by all attempts."""
        return self._ledger.device_seconds

    @property
    def reserved(self) -> int:
        """Rollouts that ranks have reserved, and neither charged nor released yet."""
        with self._lock:
            return sum(self._reserved.values())

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
        counted, limits = self._standing(0).counted, self._limits
        return Counts(
            rollouts=max(0, counted.rollouts - (limits.rollouts or counted.rollouts)),
            response_tokens=max(0, counted.response_tokens - (limits.response_tokens or counted.response_tokens)),
        )

    def _standing(self, reserved: int) -> Standing:
        return Standing.of(self._limits, self._ledger.totals, self._ledger.device_seconds, ahead=reserved)

    def _admission(self, step: int, rollouts: int) -> Admission:
        """Hold the limits against the ledger; with the lock held."""
        return self._standing(sum(self._reserved.values())).admission(step, rollouts)

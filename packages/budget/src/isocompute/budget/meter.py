"""Enforcement: what may still be generated, asked before a step and charged after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .counts import Counts, Limits, whole
from .ledger import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Whether a step may be taken; true when it may.

    Attributes:
        admitted: Whether it may.
        reason: Why it may not; empty when it may.
    """

    admitted: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.admitted


class Meter:
    """The limits on a run, held against its ledger.

    Only the training cohorts of the canonical ledger are held against the limits: not evaluations, not
    pilots, and not work that was lost in a crash (which every total still shows as paid).
    """

    def __init__(self, ledger: Ledger, limits: Limits) -> None:
        self._ledger = ledger
        self._limits = limits
        ledger.note_limits(limits)

    @property
    def limits(self) -> Limits:
        """The limits."""
        return self._limits

    def admit(self, step: int, rollouts: int) -> Admission:
        """Say whether a step may be taken; asking changes nothing.

        A step that would exceed the limit on rollouts is refused. So is any step once the limit on response
        tokens is reached: the step that crosses it is the last, and what it went over is the overshoot.

        Args:
            step: The update step.
            rollouts: How many rollouts it would generate for training, B_p · n.

        Raises:
            BudgetError: The step is negative, or the rollouts are fewer than one.
        """
        step = whole(step, "step", least=0)
        rollouts = whole(rollouts, "rollouts", least=1)
        used = self._ledger.used
        limit = self._limits.rollouts
        if limit is not None and used.rollouts + rollouts > limit:
            return Admission(
                admitted=False,
                reason=f"step {step} would take the run from {used.rollouts:,} to "
                f"{used.rollouts + rollouts:,} rollouts, and the budget is {limit:,}",
            )
        limit = self._limits.response_tokens
        if limit is not None and used.response_tokens >= limit:
            return Admission(
                admitted=False,
                reason=f"the run has generated {used.response_tokens:,} response tokens before step {step}, "
                f"and the budget is {limit:,}",
            )
        return Admission(admitted=True)

    def charge(self, step: int, counts: Mapping[str, Counts]) -> None:
        """Record what a step generated, by cohort: everything that was paid for, admitted or not.

        Raises:
            BudgetError: There is no such cohort, or the step is negative. Nothing was charged.
            LedgerError: The ledger cannot be written.
        """
        self._ledger.charge(step, counts)

    @property
    def used(self) -> Counts:
        """C_used: generated for training (trained, filtered, stale and failed), in the canonical ledger."""
        return self._ledger.used

    @property
    def lost(self) -> Counts:
        """Generated for training, paid for, and lost when earlier attempts ended early."""
        return self._ledger.totals.lost_training

    @property
    def overshoot(self) -> Counts:
        """How far the run went over its limits: the last step's tokens, or rollouts that failed."""
        return overshoot(self.used, self._limits)


def overshoot(used: Counts, limits: Limits) -> Counts:
    """What was used beyond the limits; zero where there is none."""
    return Counts(
        rollouts=max(0, used.rollouts - (limits.rollouts or used.rollouts)),
        response_tokens=max(0, used.response_tokens - (limits.response_tokens or used.response_tokens)),
    )

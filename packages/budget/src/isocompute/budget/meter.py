"""Enforcement: what may still be generated, asked before a step and charged after it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from .counts import TRAINING_COHORTS, Counts, Limits, whole
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


ADMITTED = Admission(admitted=True)

# Cohorts that make up the B_p · n rollouts of a step. Failed rollouts are generated again, so they come on top.
RESERVED_COHORTS = tuple(cohort for cohort in TRAINING_COHORTS if cohort != "failed")


class Meter:
    """The limits on a run, held against its ledger.

    Only the training cohorts of the canonical ledger are held against the limits on rollouts and tokens: not
    evaluations, not pilots, and not work that was lost in a crash (which every total still shows as paid). Device
    time and money are held against all that was paid.

    One driver asks ``admit`` and then charges. Where several ranks generate at the same time, each asks
    ``reserve`` for its own part: what is reserved counts as used until it is charged or released, so that what all
    of them were admitted never exceeds a limit on rollouts. A rank may charge its part in pieces; what it will not
    generate after all it must release. A meter may be used from several threads, and shared
    with other processes by whatever they share objects with; the ledger has one writer all the same.
    """

    def __init__(self, ledger: Ledger, limits: Limits) -> None:
        self._ledger = ledger
        self._limits = limits
        self._reserved: dict[tuple[int, int], int] = {}
        self._lock = threading.Lock()
        ledger.note_limits(limits)

    @property
    def limits(self) -> Limits:
        """The limits."""
        return self._limits

    def admit(self, step: int, rollouts: int) -> Admission:
        """Say whether a step may be taken; asking changes nothing.

        A step that would exceed the limit on rollouts is refused. So is any step once the limit on response
        tokens, device time or money is reached: the step that crosses it is the last, and what it went over is
        the overshoot.

        Args:
            step: The update step.
            rollouts: How many rollouts it would generate for training, B_p · n.

        Raises:
            BudgetError: The step is negative, or the rollouts are fewer than one.
        """
        step = whole(step, "step", least=0)
        rollouts = whole(rollouts, "rollouts", least=1)
        with self._lock:
            return self._judge(step, rollouts)

    def reserve(self, step: int, rollouts: int, *, rank: int) -> Admission:
        """Ask as ``admit`` does, and hold what was admitted until this rank has charged all of it or releases the rest.

        Args:
            step: The update step.
            rollouts: How many rollouts this rank would generate.
            rank: Who asks; one reservation of each rank and step is held, and a second one adds to it.

        Raises:
            BudgetError: The step or the rank is negative, or the rollouts are fewer than one.
        """
        step = whole(step, "step", least=0)
        rank = whole(rank, "rank", least=0)
        rollouts = whole(rollouts, "rollouts", least=1)
        with self._lock:
            admission = self._judge(step, rollouts)
            if admission:
                self._reserved[step, rank] = self._reserved.get((step, rank), 0) + rollouts
            return admission

    def release(self, step: int, *, rank: int) -> None:
        """Let go of what a rank has reserved for a step and has not charged: it will not generate it."""
        with self._lock:
            self._reserved.pop((step, rank), None)

    def charge(
        self, step: int, counts: Mapping[str, Counts], *, device_seconds: float = 0.0, rank: int | None = None
    ) -> None:
        """Record what a step generated, by cohort: everything that was paid for, admitted or not.

        Args:
            step: The update step.
            counts: Counts by cohort.
            device_seconds: Seconds times devices held.
            rank: Whose part it is, when it was reserved. The reservation becomes smaller by the rollouts charged,
                without those that failed: they are generated again. The rest stays reserved.

        Raises:
            BudgetError: There is no such cohort, or the step or the time is negative. Nothing was charged.
            LedgerError: The ledger cannot be written.
        """
        if rank is None:
            self._ledger.charge(step, counts, device_seconds=device_seconds)
            return
        with self._lock:
            self._ledger.charge(step, counts, device_seconds=device_seconds)
            held = self._reserved.pop((step, rank), 0)
            held -= sum(counts[cohort].rollouts for cohort in RESERVED_COHORTS if cohort in counts)
            if held > 0:
                self._reserved[step, rank] = held

    def sync(self) -> None:
        """Put every charge on the disk, safe from a power cut: before a checkpoint that follows from them is saved.

        Raises:
            LedgerError: The ledger is closed, or the disk refuses.
        """
        self._ledger.sync()

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
        """Rollouts that ranks were admitted and have neither charged nor released yet."""
        with self._lock:
            return sum(self._reserved.values())

    @property
    def lost(self) -> Counts:
        """Generated for training, paid for, and lost when earlier attempts ended early."""
        return self._ledger.totals.lost_training

    @property
    def overshoot(self) -> Counts:
        """How far the run went over its limits: the last step's tokens, or rollouts that failed."""
        return overshoot(self.used, self._limits)

    @property
    def time_overshoot(self) -> float:
        """Device-seconds by which the run went over the tighter of its limits on device time and money."""
        return time_overshoot(self.device_seconds, self._limits)

    def _judge(self, step: int, rollouts: int) -> Admission:
        limits = self._limits
        used = self._ledger.used
        if limits.rollouts is not None:
            taken = used.rollouts + (sum(self._reserved.values()) if self._reserved else 0)
            if taken + rollouts > limits.rollouts:
                return Admission(
                    admitted=False,
                    reason=f"step {step} would take the run from {taken:,} to "
                    f"{taken + rollouts:,} rollouts, and the budget is {limits.rollouts:,}",
                )
        if limits.response_tokens is not None and used.response_tokens >= limits.response_tokens:
            return Admission(
                admitted=False,
                reason=f"the run has generated {used.response_tokens:,} response tokens before step {step}, "
                f"and the budget is {limits.response_tokens:,}",
            )
        if limits.device_seconds is None and limits.money is None:
            return ADMITTED
        spent = self._ledger.device_seconds
        if limits.device_seconds is not None and spent >= limits.device_seconds:
            return Admission(
                admitted=False,
                reason=f"the run has taken {spent:,.0f} device-seconds before step {step}, and the budget is "
                f"{limits.device_seconds:,.0f}",
            )
        if limits.money is not None and limits.cost(spent) >= limits.money:
            return Admission(
                admitted=False,
                reason=f"the run has cost {limits.cost(spent):,.2f} before step {step}, and the budget is "
                f"{limits.money:,.2f}",
            )
        return ADMITTED


def overshoot(used: Counts, limits: Limits) -> Counts:
    """What was used beyond the limits; zero where there is none."""
    return Counts(
        rollouts=max(0, used.rollouts - (limits.rollouts or used.rollouts)),
        response_tokens=max(0, used.response_tokens - (limits.response_tokens or used.response_tokens)),
    )


def time_overshoot(device_seconds: float, limits: Limits) -> float:
    """Device-seconds beyond the tighter of the limits on device time and money; zero where there is none."""
    most = limits.device_seconds
    if limits.money is not None and limits.price_per_device_hour is not None:
        bought = limits.money / limits.price_per_device_hour * 3600
        most = bought if most is None else min(most, bought)
    return 0.0 if most is None else max(0.0, device_seconds - most)

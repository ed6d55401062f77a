"""What stops a run at its budget: the limits, and the rule that admits or refuses a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from ..checks import finite, whole
from ..errors import BudgetError
from .counts import Counts

Counted = Literal["paid", "used"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The amounts that a run may use; None is no limit, and several limits may hold at once.

    Rollouts and tokens are held against what was generated for training, never against evaluations and pilots. Device
    time and money are held against everything that was paid, lost work and evaluations included: a bill has no cohorts.

    Attributes:
        counted: What the limits on rollouts and response tokens count. ``"paid"``: what all attempts generated, so that
            no number of restarts spends more. ``"used"``: what survives (C_used, the canonical ledger), for a run that
            must end with the same steps however often it was killed; what it pays for is then not limited.
        rollouts: A run stops before the step that would exceed it.
        response_tokens: A run stops after the step that reaches it, since a step's tokens are not known
            before they are generated.
        device_seconds: A run stops after the step that reaches it: seconds times devices held.
        money: A run stops after the step that reaches it; needs the price.
        price_per_device_hour: What an hour of a device costs, in the same currency.

    Raises:
        BudgetError: A limit is not above 0 or not whole where it must be, or money has no price.
    """

    rollouts: int | None = None
    response_tokens: int | None = None
    device_seconds: float | None = None
    money: float | None = None
    price_per_device_hour: float | None = None
    counted: Counted = "paid"

    def __post_init__(self) -> None:
        if self.counted not in get_args(Counted):
            raise BudgetError(f"the limits count {self.counted!r}; they count 'paid' or 'used'")
        for name in ("rollouts", "response_tokens"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, whole(value, f"the limit on {name}", least=1))
        for name in ("device_seconds", "money", "price_per_device_hour"):
            value = getattr(self, name)
            if value is not None:
                said = name if name == "price_per_device_hour" else f"the limit on {name}"
                object.__setattr__(self, name, finite(value, said))
        if self.money is not None and self.price_per_device_hour is None:
            raise BudgetError("a limit on money needs price_per_device_hour, the price of an hour of a device")

    @classmethod
    def given(
        cls,
        *,
        rollouts: float | None = None,
        response_tokens: float | None = None,
        device_hours: float | None = None,
        money: float | None = None,
        price_per_device_hour: float | None = None,
        counted: Counted = "paid",
    ) -> Limits:
        """Limits as they are given to a trainer: hours of devices, whole numbers also as 1e6, and at least one limit.

        Raises:
            BudgetError: There is no limit, or one that makes no sense.
        """
        if all(limit is None for limit in (rollouts, response_tokens, device_hours, money)):
            raise BudgetError(
                "there is no limit to hold the run to; give rollouts, response_tokens, device_hours or money"
            )
        return cls(
            rollouts=_as_count(rollouts),
            response_tokens=_as_count(response_tokens),
            device_seconds=None if device_hours is None else finite(device_hours, "the limit on device_hours") * 3600,
            money=money,
            price_per_device_hour=price_per_device_hour,
            counted=counted,
        )

    def held_against(self, used: Counts, lost: Counts) -> Counts:
        """Return what the limits on rollouts and response tokens count.

        Args:
            used: The training cohorts of what survives.
            lost: The training cohorts of lost work.
        """
        return used + lost if self.counted == "paid" else used

    def cost(self, device_seconds: float) -> float:
        """Money for device time at the price; 0 without one."""
        return device_seconds / 3600 * (self.price_per_device_hour or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Permission to take a step, true when it may be taken; otherwise ``reason`` says why not."""

    admitted: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.admitted


ADMITTED = Admission(admitted=True)


def admission(
    limits: Limits, step: int, rollouts: int, *, used: Counts, lost: Counts, reserved: int, device_seconds: float
) -> Admission:
    """Admit or refuse a step.

    Args:
        rollouts: Rollouts that the step would generate for training; 0 in a step that goes on with what it has, which
            only device time and money can refuse.
        used: C_used before the step.
        lost: Generated for training and lost before the step.
        reserved: Rollouts that ranks have reserved and not charged yet.
        device_seconds: Device time paid for so far (GPU-seconds on GPUs).
    """
    reason = ""
    counted = limits.held_against(used, lost)
    taken = counted.rollouts + reserved
    # Where nothing was lost, what was used and what was paid for are one.
    with_lost = limits.counted == "paid" and bool(lost)
    if limits.rollouts is not None and rollouts and taken + rollouts > limits.rollouts:
        reason = (
            f"step {step} would take the run from {taken:,}{f' ({lost.rollouts:,} of them lost)' if with_lost else ''} "
            f"to {taken + rollouts:,} rollouts{' paid for' if with_lost else ''}, and the budget is {limits.rollouts:,}"
        )
    elif limits.response_tokens is not None and rollouts and counted.response_tokens >= limits.response_tokens:
        reason = (
            f"the run has generated {counted.response_tokens:,} response tokens"
            f"{f' ({lost.response_tokens:,} of them lost)' if with_lost else ''} before step {step}, and the budget is "
            f"{limits.response_tokens:,}"
        )
    elif limits.device_seconds is not None and device_seconds >= limits.device_seconds:
        reason = (
            f"the run has taken {device_seconds:,.0f} device-seconds before step {step}, and the budget is "
            f"{limits.device_seconds:,.0f}"
        )
    elif limits.money is not None and limits.cost(device_seconds) >= limits.money:
        reason = (
            f"the run has cost {limits.cost(device_seconds):,.2f} before step {step}, and the budget is "
            f"{limits.money:,.2f}"
        )
    return Admission(admitted=False, reason=reason) if reason else ADMITTED


def _as_count(limit: Any) -> Any:
    """Turn a whole number written as a float, such as 1e6, into an int; what is neither is refused later."""
    return int(limit) if isinstance(limit, float) and limit.is_integer() else limit


def overshoot(counted: Counts, limits: Limits) -> Counts:
    """Return what exceeds the limits on rollouts and response tokens; zero where there is no limit.

    Args:
        counted: What they count, see ``Limits.held_against``.
    """
    return Counts(
        rollouts=max(0, counted.rollouts - (limits.rollouts or counted.rollouts)),
        response_tokens=max(0, counted.response_tokens - (limits.response_tokens or counted.response_tokens)),
    )


def time_overshoot(device_seconds: float, limits: Limits) -> float:
    """Device-seconds beyond the tighter of the limits on device time and money; zero where there is none."""
    most = limits.device_seconds
    if limits.money is not None and limits.price_per_device_hour is not None:
        bought = limits.money / limits.price_per_device_hour * 3600
        most = bought if most is None else min(most, bought)
    return 0.0 if most is None else max(0.0, device_seconds - most)

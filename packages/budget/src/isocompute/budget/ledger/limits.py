"""The limits of a run, and its spending against them, which decides whether a step is admitted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from ..errors import BudgetError, finite, whole
from .counts import Counts
from .fold import Totals

Counted = Literal["paid", "used"]
LIMITS = ("rollouts", "response_tokens", "device_hours", "money", "price_per_device_hour", "counted")
"""Names that ``Limits.given`` accepts."""
LIMITED = ("rollouts", "response_tokens", "device_seconds", "money")
"""Quantities that ``Limits`` may limit, whole numbers first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The amounts that a run may use. None means no limit, and several limits may hold at once.

    Limits on rollouts and tokens apply to what was generated for training, never to evaluations and pilots. Limits on
    device time and money apply to everything that was paid, including lost work and evaluations: a bill has no cohorts.

    Attributes:
        counted: What the limits on rollouts and response tokens count. ``"paid"``: what all attempts generated, so that
            restarts cannot spend more. ``"used"``: what survives (C_used, the canonical ledger), for a run that must
            end with the same steps however often it was killed; what it pays for is then not limited.
        rollouts: A run stops before the step that would exceed it.
        response_tokens: A run stops after the step that reaches it, since a step's tokens are not known before they are
            generated.
        device_seconds: A run stops after the step that reaches it. Seconds times devices held.
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
        for name in (*LIMITED, "price_per_device_hour"):
            value, said = getattr(self, name), f"the limit on {name}" if name in LIMITED else name
            if value is not None:
                checked = whole(value, said, least=1) if name in LIMITED[:2] else finite(value, said)
                object.__setattr__(self, name, checked)
        if self.money is not None and self.price_per_device_hour is None:
            raise BudgetError("a limit on money needs price_per_device_hour, the price of an hour of a device")

    @classmethod
    def given(cls, *, device_hours: float | None = None, **limits: Any) -> Limits:
        """Limits as given to a trainer, at least one: device time in hours, whole numbers also written as 1e6."""
        for name in LIMITED[:2]:
            value = limits.get(name)
            limits[name] = int(value) if isinstance(value, float) and value.is_integer() else value
        seconds = None if device_hours is None else finite(device_hours, "the limit on device_hours") * 3600
        given = cls(device_seconds=seconds, **limits)
        given.require_one()
        return given

    def require_one(self) -> None:
        """Refuse limits that limit nothing."""
        if all(getattr(self, name) is None for name in LIMITED):
            raise BudgetError("there is no limit to hold the run to: no rollouts, response_tokens, time or money")


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Permission to take a step; true if granted, otherwise ``reason`` says why not."""

    admitted: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.admitted


NOTHING = Counts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A run's spending so far, by all its attempts, against its limits.

    Attributes:
        used: C_used up to the last step taken.
        ahead: Rollouts in flight or generated for later steps: used when these steps are taken, lost otherwise.
        device_seconds: Device time of everything, including evaluations.
    """

    limits: Limits
    used: Counts = NOTHING
    ahead: Counts = NOTHING
    lost: Counts = NOTHING
    device_seconds: float = 0.0

    @classmethod
    def of(cls, limits: Limits, totals: Totals, device_seconds: float) -> Standing:
        """The standing according to a ledger's sums."""
        return cls(limits=limits, used=totals.used, lost=totals.lost_training, device_seconds=device_seconds)

    @property
    def paid(self) -> Counts:
        """Everything generated for training."""
        return self.used + self.ahead + self.lost

    @property
    def counted(self) -> Counts:
        """What the limits on rollouts and response tokens count."""
        return self.paid if self.limits.counted == "paid" else self.used

    @property
    def held(self) -> Counts:
        """What counts against these limits once the rollouts ahead are used."""
        return self.paid if self.limits.counted == "paid" else self.used + self.ahead

    @property
    def money(self) -> float:
        """The price of the device time; 0 if no price is set."""
        return self.device_seconds * (self.limits.price_per_device_hour or 0.0) / 3600

    def metrics(self) -> dict[str, float]:
        """Metrics for a trainer's log: rollouts used and paid for, and what is spent and left of the nearest limit."""
        limits, counted = self.limits, self.counted
        against = [
            (counted.rollouts, limits.rollouts),
            (counted.response_tokens, limits.response_tokens),
            (self.device_seconds / 3600, None if limits.device_seconds is None else limits.device_seconds / 3600),
            (self.money, limits.money),
        ]
        set_ = [(spent, most) for spent, most in against if most is not None]
        spent, most = max(set_, key=lambda pair: pair[0] / pair[1])
        return {
            "budget/used": self.used.rollouts,
            "budget/paid": self.paid.rollouts,
            "budget/fraction": spent / most,
            "budget/remaining": max(0, most - spent),
        }

    def admission(self, step: int, rollouts: int) -> Admission:
        """Admit or refuse a step.

        Args:
            rollouts: Rollouts that the step would generate for training. 0 for a step that reuses earlier rollouts,
                which only device time and money can refuse.
        """
        limits, taken, tokens = self.limits, self.held.rollouts, self.held.response_tokens
        # If nothing was lost, used and paid are the same.
        with_lost = limits.counted == "paid" and bool(self.lost)
        lost, lost_tokens = (f" ({n:,} of them lost)" if with_lost else "" for n in self.lost.each[::2])
        if limits.rollouts is not None and rollouts and taken + rollouts > limits.rollouts:
            then = f"{taken + rollouts:,} rollouts{' paid for' if with_lost else ''}"
            reason, most = f"step {step} would take the run from {taken:,}{lost} to {then}", f"{limits.rollouts:,}"
        elif limits.response_tokens is not None and rollouts and tokens >= limits.response_tokens:
            reason = f"the run has generated {tokens:,} response tokens{lost_tokens} before step {step}"
            most = f"{limits.response_tokens:,}"
        elif limits.device_seconds is not None and self.device_seconds >= limits.device_seconds:
            reason = f"the run has taken {self.device_seconds:,.0f} device-seconds before step {step}"
            most = f"{limits.device_seconds:,.0f}"
        elif limits.money is not None and self.money >= limits.money:
            reason, most = f"the run has cost {self.money:,.2f} before step {step}", f"{limits.money:,.2f}"
        else:
            return Admission(admitted=True)
        return Admission(admitted=False, reason=f"{reason}, and the budget is {most}")

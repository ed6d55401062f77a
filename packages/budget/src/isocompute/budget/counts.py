"""Counts of what was generated, the cohorts they fall into, and the limits set on them."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite, nan
from operator import index
from typing import Any

from .errors import BudgetError
from .wording import short

TRAINING_COHORTS = ("trained", "filtered", "stale", "failed")
"""What became of rollouts generated for training: a partition, whose sum the budget is charged with."""

COHORTS = (*TRAINING_COHORTS, "eval", "pilot")
"""All cohorts; evaluations and pilots are counted apart and never charged to the training budget."""

LARGEST = 2**63 - 1


def whole(value: Any, name: str, *, least: int) -> int:
    """Return ``value`` as an int, or say what is wrong with it.

    Raises:
        BudgetError: It is not a whole number, or lies outside ``least`` to 2**63 - 1.
    """
    try:
        number = index(value)
    except TypeError:
        number = least - 1
    if not least <= number <= LARGEST:
        most = f" and at most {LARGEST}" if number > LARGEST else ""
        raise BudgetError(f"{name} is {short(value)}; it must be a whole number of at least {least}{most}")
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What was generated. Counts add up with each other and with nothing else.

    A step of 8 problems with 4 rollouts each, prompts of 10 tokens and answers of 15::

        Counts(rollouts=32, prompt_tokens=320, response_tokens=480)

    Attributes:
        rollouts: Responses generated.
        prompt_tokens: Prompt tokens, counted once per response.
        response_tokens: Response tokens generated.

    Raises:
        BudgetError: A count is negative or not a whole number.
    """

    rollouts: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0

    def __post_init__(self) -> None:
        for name in ("rollouts", "prompt_tokens", "response_tokens"):
            object.__setattr__(self, name, whole(getattr(self, name), name, least=0))

    def __add__(self, other: object) -> Counts:
        if not isinstance(other, Counts):
            return NotImplemented
        return summed(
            self.rollouts + other.rollouts,
            self.prompt_tokens + other.prompt_tokens,
            self.response_tokens + other.response_tokens,
        )

    def __bool__(self) -> bool:
        return bool(self.rollouts or self.prompt_tokens or self.response_tokens)


def summed(rollouts: int, prompt_tokens: int, response_tokens: int) -> Counts:
    """Counts that are sums of counts: validated when those were made, and without an upper limit."""
    total = object.__new__(Counts)
    put = object.__setattr__
    put(total, "rollouts", rollouts)
    put(total, "prompt_tokens", prompt_tokens)
    put(total, "response_tokens", response_tokens)
    return total


def finite(value: Any, name: str, *, zero: bool = False) -> float:
    """Return ``value`` as a finite float above 0 (or at least 0), or say what is wrong with it.

    Raises:
        BudgetError: It is not such a number.
    """
    try:
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else nan
    except OverflowError:
        number = inf
    if not isfinite(number) or number < 0 or (number == 0 and not zero):
        least = "of at least" if zero else "above"
        raise BudgetError(f"{name} is {short(value)}; it must be a finite number {least} 0")
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a run may use; None is no limit, and several hold at once.

    Rollouts and tokens are held against what was generated for training in the canonical ledger. Device time and
    money are held against everything that was paid, lost work and evaluations included: a bill has no cohorts.

    Attributes:
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

    def __post_init__(self) -> None:
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

    def cost(self, device_seconds: float) -> float:
        """What device time costs at the price; 0 without one."""
        return device_seconds / 3600 * (self.price_per_device_hour or 0.0)

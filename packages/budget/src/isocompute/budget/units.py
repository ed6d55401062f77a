"""Amounts with a unit: rollouts, tokens, steps, device time, FLOPs, money. Only like adds to like.

What turns one unit into another (``compute``, ``devices``) returns an ``Interval``, which lists its assumptions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import ClassVar, Generic, Self, TypeVar

from .errors import BudgetError


class UnitError(BudgetError, TypeError):
    """Amounts of different units were added or compared."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """An amount of something; use one of the units below.

    Raises:
        BudgetError: It is negative, not finite, or not whole where only whole ones exist.
        UnitError: Another unit, or a plain number, was added, subtracted or compared.
    """

    amount: float
    unit: ClassVar[str] = "things"
    countable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        value = self.amount
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
            raise BudgetError(f"an amount of {self.unit} is {value!r}; it must be a number of at least 0")
        if self.countable:
            if value != int(value):
                raise BudgetError(f"an amount of {self.unit} is {value!r}; it must be whole")
            object.__setattr__(self, "amount", int(value))

    def __add__(self, other: Self) -> Self:
        return self._of_amount(self.amount + self._amount_of_same_unit(other, "add", "to"))

    def __sub__(self, other: Self) -> Self:
        return self._of_amount(self.amount - self._amount_of_same_unit(other, "subtract", "from"))

    def __mul__(self, factor: float) -> Self:
        if isinstance(factor, Quantity):
            raise UnitError(f"{unit_of(factor)} times {self.unit} has no unit here; multiply by a plain number")
        return self._of_amount(round(self.amount * factor) if self.countable else self.amount * factor)

    __rmul__ = __mul__

    def __truediv__(self, other: Self) -> float:
        """The ratio of two amounts of one unit."""
        return self.amount / self._amount_of_same_unit(other, "divide", "into")

    def __lt__(self, other: Self) -> bool:
        return self.amount < self._amount_of_same_unit(other, "compare", "with")

    def __le__(self, other: Self) -> bool:
        return self.amount <= self._amount_of_same_unit(other, "compare", "with")

    def __gt__(self, other: Self) -> bool:
        return self.amount > self._amount_of_same_unit(other, "compare", "with")

    def __ge__(self, other: Self) -> bool:
        return self.amount >= self._amount_of_same_unit(other, "compare", "with")

    def __bool__(self) -> bool:
        return bool(self.amount)

    def __str__(self) -> str:
        return f"{self.amount:,} {self.unit}" if self.countable else f"{self.amount:,.4g} {self.unit}"

    def _of_amount(self, amount: float) -> Self:
        return type(self)(amount)

    def _amount_of_same_unit(self, other: object, verb: str, preposition: str) -> float:
        if type(other) is not type(self):
            raise UnitError(
                f"cannot {verb} {unit_of(other)} {preposition} {self.unit}; convert one of them first, "
                "which takes an assumption"
            )
        return other.amount


def unit_of(value: object) -> str:
    """The unit of a value, for error messages."""
    return value.unit if isinstance(value, Quantity) else f"the plain value {value!r}"


class Rollouts(Quantity):
    """Responses generated."""

    __slots__ = ()
    unit = "rollouts"


class PromptTokens(Quantity):
    """Prompt tokens, counted once per response."""

    __slots__ = ()
    unit = "prompt tokens"


class ResponseTokens(Quantity):
    """Response tokens generated."""

    __slots__ = ()
    unit = "response tokens"


class UpdateSteps(Quantity):
    """Optimizer steps."""

    __slots__ = ()
    unit = "update steps"


class DeviceSeconds(Quantity):
    """Seconds times devices held."""

    __slots__ = ()
    unit = "device-seconds"
    countable = False

    @classmethod
    def of_hours(cls, hours: float) -> Self:
        """From device-hours (GPU-hours)."""
        return cls(hours * 3600)

    @property
    def hours(self) -> float:
        """Device-hours (GPU-hours)."""
        return self.amount / 3600


class Flops(Quantity):
    """Floating-point operations."""

    __slots__ = ()
    unit = "FLOPs"
    countable = False


@dataclass(frozen=True, slots=True)
class Money(Quantity):
    """An amount of money, in one currency.

    Args:
        currency: Its currency, such as USD.

    Raises:
        UnitError: Another currency was added or compared.
    """

    currency: str = "USD"
    unit: ClassVar[str] = "money"
    countable: ClassVar[bool] = False

    def __str__(self) -> str:
        return f"{self.amount:,.2f} {self.currency}"

    def _of_amount(self, amount: float) -> Self:
        return type(self)(amount, self.currency)

    def _amount_of_same_unit(self, other: object, verb: str, preposition: str) -> float:
        if isinstance(other, Money) and other.currency != self.currency:
            raise UnitError(f"cannot {verb} {other.currency} {preposition} {self.currency}; there is no exchange rate")
        # Not super(): a dataclass with slots is another class than the one that super() closed over.
        return Quantity._amount_of_same_unit(self, other, verb, preposition)


Q = TypeVar("Q", bound=Quantity)
R = TypeVar("R", bound=Quantity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval(Generic[Q]):
    """An amount that is not known exactly.

    Attributes:
        low: Lower end.
        likely: Best estimate.
        high: Upper end.
        assumptions: What the three rest on, one sentence each.

    Raises:
        BudgetError: The three are not in order.
        UnitError: They are of different units.
    """

    low: Q
    likely: Q
    high: Q
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.low <= self.likely <= self.high:
            raise BudgetError(f"an interval must be in order, not {self.low}, {self.likely}, {self.high}")

    def __add__(self, other: Interval[Q]) -> Interval[Q]:
        """The sum, as wide as if both were off in the same direction."""
        return Interval(
            low=self.low + other.low,
            likely=self.likely + other.likely,
            high=self.high + other.high,
            assumptions=merged(self.assumptions, other.assumptions),
        )

    def convert(self, rule: Callable[[Q], R], *assumptions: str) -> Interval[R]:
        """The interval in another unit, by a rule that grows with the amount, and what the rule assumes."""
        return Interval(
            low=rule(self.low),
            likely=rule(self.likely),
            high=rule(self.high),
            assumptions=merged(self.assumptions, assumptions),
        )


def merged(*groups: tuple[str, ...]) -> tuple[str, ...]:
    """Assumptions of several groups, each once, in order."""
    return tuple(dict.fromkeys(sentence for group in groups for sentence in group))

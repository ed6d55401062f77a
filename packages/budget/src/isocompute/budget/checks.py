"""Numbers that a caller gave, checked: whole ones and finite ones."""

from __future__ import annotations

from math import inf, isfinite, nan
from operator import index
from typing import Any

from .errors import BudgetError
from .wording import shorten

LARGEST = 2**63 - 1
"""The largest count that a ledger can hold."""


def whole(value: Any, name: str, *, least: int) -> int:
    """Return ``value`` as an int, or refuse it.

    Raises:
        BudgetError: It is not a whole number, or lies outside ``least`` to 2**63 - 1.
    """
    try:
        number = index(value)
    except TypeError:
        number = least - 1
    if not least <= number <= LARGEST:
        most = f" and at most {LARGEST}" if number > LARGEST else ""
        raise BudgetError(f"{name} is {shorten(value)}; it must be a whole number of at least {least}{most}")
    return number


def finite(value: Any, name: str, *, zero: bool = False) -> float:
    """Return ``value`` as a finite float above 0 (or at least 0), or refuse it.

    Raises:
        BudgetError: It is not such a number.
    """
    try:
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else nan
    except OverflowError:
        number = inf
    if not isfinite(number) or number < 0 or (number == 0 and not zero):
        least = "of at least" if zero else "above"
        raise BudgetError(f"{name} is {shorten(value)}; it must be a finite number {least} 0")
    return number

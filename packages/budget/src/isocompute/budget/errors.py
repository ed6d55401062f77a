"""This package's errors, each one sentence, and checks of numbers that callers pass.

Anything refused raises ``BudgetError``; docstrings mention it only if they say more than that.
"""

from __future__ import annotations

import reprlib
from math import inf, isfinite, nan
from operator import index
from typing import Any

from .contract.errors import IsoComputeError, printable
from .contract.files import reason_of


class BudgetError(IsoComputeError):
    """A count, a limit, an allocation or a ledger is not what it must be."""


class LedgerError(BudgetError):
    """A ledger is damaged, held by another writer, of another run, or cannot be written."""


class DamagedLogError(BudgetError):
    """A log is damaged, or not in the format that its name implies."""


LONGEST = 120
LARGEST = 2**63 - 1
"""The largest count that a ledger can hold."""


def shorten(value: object) -> str:
    """The repr of a value, shortened if it is long, nested or recursive."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a whole number of {value.bit_length():,} bits"
    limits = reprlib.Repr()
    limits.maxlevel, limits.maxstring, limits.maxother, limits.maxlong = 3, LONGEST, LONGEST, LONGEST
    return limits.repr(value)


def reason(error: BaseException) -> str:
    """Return why something failed, in one non-empty line."""
    return printable(reason_of(error))


def plural(number: int, noun: str) -> str:
    """A number with its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def whole(value: Any, name: str, *, least: int) -> int:
    """Return ``value`` as an int, or refuse it."""
    try:
        number = least - 1 if isinstance(value, bool) else index(value)
    except TypeError:
        number = least - 1
    if not least <= number <= LARGEST:
        most = f" and at most {LARGEST}" if number > LARGEST else ""
        raise BudgetError(f"{name} is {shorten(value)}; it must be a whole number of at least {least}{most}")
    return number


def finite(value: Any, name: str, *, zero: bool = False) -> float:
    """Return ``value`` as a finite float above 0 (or at least 0), or refuse it."""
    try:
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else nan
    except OverflowError:
        number = inf
    if not isfinite(number) or number < 0 or (number == 0 and not zero):
        least = "of at least" if zero else "above"
        raise BudgetError(f"{name} is {shorten(value)}; it must be a finite number {least} 0")
    return number


def check_whole_fields(of: object, *names: str, least: int) -> None:
    """Store fields of a frozen dataclass as ints, or refuse one that is not a whole number."""
    for name in names:
        object.__setattr__(of, name, whole(getattr(of, name), name, least=least))

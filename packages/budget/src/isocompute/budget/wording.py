"""Values from files and users as part of a message: on one line, printable and short."""

from __future__ import annotations

import reprlib
from collections.abc import Collection

from .contract.errors import printable
from .contract.files import reason_of

LONGEST = 120


def shorten(value: object) -> str:
    """The repr of a value, cut where it is long, nested or recursive."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a whole number of {value.bit_length():,} bits"
    limits = reprlib.Repr()
    limits.maxlevel, limits.maxstring, limits.maxother, limits.maxlong = 3, LONGEST, LONGEST, LONGEST
    return limits.repr(value)


def list_names(names: Collection[str], most: int = 3) -> str:
    """The first few names in order, and how many more there are.

    Args:
        most: How many of them are listed.
    """
    first = ", ".join(sorted(names)[:most])
    return first + (f" and {len(names) - most} more" if len(names) > most else "")


def reason(error: BaseException) -> str:
    """Why something failed, in one line that is never empty."""
    return printable(reason_of(error))

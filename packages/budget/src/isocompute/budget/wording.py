"""Values from files and users as part of a message: on one line, printable and short."""

from __future__ import annotations

import reprlib

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


def reason(error: BaseException) -> str:
    """Why something failed, in one line that is never empty."""
    return printable(reason_of(error))

"""How values that a file or a person gave are put into a sentence: on one line, visibly, and not at length."""

from __future__ import annotations

import reprlib
from collections.abc import Collection

LONGEST = 120


def printable(text: str) -> str:
    r"""Text with everything that a terminal would act upon shown as an escape.

    Control characters, escape sequences, line breaks, characters that turn the direction of writing and bytes that
    were no text (lone surrogates) appear as ``\x1b``, ``\n`` and the like; what can be printed stays as it is.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def short(value: object) -> str:
    """A value as it would be written, cut where it is long, nested or repeats itself."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a whole number of {value.bit_length():,} bits"
    limits = reprlib.Repr()
    limits.maxlevel, limits.maxstring, limits.maxother, limits.maxlong = 3, LONGEST, LONGEST, LONGEST
    return limits.repr(value)


def listed(names: Collection[str], most: int = 3) -> str:
    """Names in their order, a few of them and how many more there are."""
    told = ", ".join(sorted(names)[:most])
    return told + (f" and {len(names) - most} more" if len(names) > most else "")


def reason(error: BaseException) -> str:
    """Why something failed, in one line that is never empty."""
    told = getattr(error, "strerror", None) or str(error).strip()
    return printable(told.splitlines()[0]) if told else type(error).__name__

"""The errors that a user can act on, and text that may be shown."""

import re
from typing import TypeVar

import isocompute

T = TypeVar("T")

# With one slash where the address was taken for a path.
_PASSWORD = re.compile(r"""(?<=://)[^\s'"]*@|(?<=:/)[^\s'":/]+:[^\s'"]*@|(?<=password=)[^&\s'"]+""")


def redacted(text: str) -> str:
    """The text without the names and passwords that addresses in it carry.

    ``http://alice:secret@host`` becomes ``http://***@host``. A password may contain an unquoted ``@`` or ``/``: all up
    to the last ``@`` of the word goes.
    """
    return _PASSWORD.sub(lambda found: "***@" if found[0].endswith("@") else "***", text)


def printable(text: str) -> str:
    r"""Text in which everything that a terminal would act upon is escaped.

    Control characters, escape sequences, line breaks, characters that turn the direction of writing and bytes that
    were no text (lone surrogates) appear as ``\x1b``, ``\n`` and the like; what can be printed stays as it is.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _shared(kind: T) -> T:
    """One class for all packages, that of the package imported first, though each has its own copy of this file."""
    # The namespace of the packages is the one module that they have in common.
    found: T = vars(isocompute).setdefault(f"_{kind.__name__}", kind)  # type: ignore[attr-defined]
    return found


@_shared
class IsoComputeError(ValueError):
    """Something asked for cannot be done; the message says what was wrong, where, and what would be right.

    The base of every package's errors. The message carries no password of an address.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(redacted(str(message)))


@_shared
class TableError(IsoComputeError):
    """A table is not what its schema says; the message names the file, the column and the row."""


@_shared
class TrackingError(IsoComputeError):
    """MLflow is not installed, cannot be reached, or does not hold what was asked for."""


@_shared
class FileError(IsoComputeError):
    """A file cannot be written; what was there before is still there."""


@_shared
class InfrastructureError(IsoComputeError):
    """A process or a node that a call needed died or timed out; the same call may succeed with a new one."""

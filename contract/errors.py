"""Errors that a user can act on, and text that is safe to show."""

import re
from typing import TypeVar

import isocompute

T = TypeVar("T")

# With a single slash if the address was treated as a path.
_PASSWORD = re.compile(r"""(?<=://)[^\s'"]*@|(?<=:/)[^\s'":/]+:[^\s'"]*@|(?<=password=)[^&\s'"]+""")


def redacted(text: str) -> str:
    """The text without the names and passwords in its addresses.

    ``http://alice:secret@host`` becomes ``http://***@host``. A password may contain an unquoted ``@`` or ``/``, so
    everything up to the last ``@`` of the word is removed.
    """
    return _PASSWORD.sub(lambda found: "***@" if found[0].endswith("@") else "***", text)


def printable(text: str) -> str:
    r"""Text in which everything that a terminal would act on is escaped.

    Control characters, escape sequences, line breaks, characters that change the writing direction and bytes that were
    not text (lone surrogates) appear as ``\x1b``, ``\n`` and the like; printable text stays as it is.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _shared(kind: T) -> T:
    """Share one class, that of the first package imported, among all packages, though each has a copy of this file."""
    # The packages' namespace is the only module that they have in common.
    found: T = vars(isocompute).setdefault(f"_{kind.__name__}", kind)  # type: ignore[attr-defined]
    return found


@_shared
class IsoComputeError(ValueError):
    """A request cannot be fulfilled; the message says what was wrong, where, and what would be right.

    The base of every package's errors. The message contains no passwords from addresses.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(redacted(str(message)))


@_shared
class TableError(IsoComputeError):
    """A table does not match its schema; the message names the file, the column and the row."""


@_shared
class TrackingError(IsoComputeError):
    """MLflow is not installed, cannot be reached, or does not hold what was requested."""


@_shared
class FileError(IsoComputeError):
    """A file cannot be written; the previous file is unchanged."""


@_shared
class InfrastructureError(IsoComputeError):
    """A process or a node that a call needed died or timed out; the same call may succeed with a new one."""

"""The console script ``isocompute-frontier``."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from .commands import advise, fit, interference, predict, prescribe
from .contract import command_line
from .errors import InputWarning

COMMANDS = (advise, fit, prescribe, predict, interference)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``isocompute-frontier``; arguments and exit code as in ``command_line.run``."""
    description = "What does a budget buy, and how should it be split?"
    return command_line.run(
        argv, package="isocompute-frontier", description=description, commands=COMMANDS, around=_notes_shown()
    )


@contextmanager
def _notes_shown() -> Iterator[None]:
    """Show warnings about the input on stderr, whatever PYTHONWARNINGS says."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", InputWarning)
        warnings.showwarning = lambda message, *_, **__: print(f"note: {message}", file=sys.stderr)
        yield


if __name__ == "__main__":
    sys.exit(main())

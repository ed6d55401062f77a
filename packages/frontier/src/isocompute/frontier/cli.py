"""Console script ``isocompute-frontier``."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from .commands import convert, fit, interference, n_star, next, predict, prescribe
from .contract.errors import IsoComputeError
from .errors import InputWarning

PACKAGE = "isocompute-frontier"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the console script.

    Args:
        argv: The arguments, by default those of the process.

    Returns:
        0, or 2 after an error that a user can act on, which is one sentence on stderr.
    """
    arguments = _parser().parse_args(argv)
    with warnings.catch_warnings():
        # What the reader of a file warns of is shown, whatever PYTHONWARNINGS is.
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", InputWarning)
        warnings.showwarning = lambda message, *_, **__: print(f"note: {message}", file=sys.stderr)
        try:
            for line in arguments.run(arguments):
                print(line, flush=True)
        except BrokenPipeError:
            # Whoever read the output has seen enough; nothing is to be flushed on the way out.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except (IsoComputeError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PACKAGE, description="What does a budget buy, and how should it be split?")
    parser.add_argument("--version", action="version", version=f"{PACKAGE} {_version()}")
    commands = parser.add_subparsers(dest="command", required=True)
    for command in (fit, prescribe, next, predict, n_star, interference, convert):
        command.add(commands)
    return parser


def _version() -> str:
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return "of a source tree that is not installed"


if __name__ == "__main__":
    sys.exit(main())

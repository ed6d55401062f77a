"""The console script ``isocompute-learner``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from .commands import check
from .contract.errors import IsoComputeError

PACKAGE = "isocompute-learner"


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``isocompute-learner``.

    Args:
        argv: The arguments, by default those of the process.

    Returns:
        0, or 2 after an error that a user can act on, which is one line on stderr.
    """
    arguments = _parser().parse_args(argv)
    try:
        for line in arguments.run(arguments):
            print(line)
    except (IsoComputeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PACKAGE, description="What does the policy learn from its rollouts?")
    parser.add_argument("--version", action="version", version=f"{PACKAGE} {_version()}")
    commands = parser.add_subparsers(dest="command", required=True)
    for command in (check,):
        command.add(commands)
    return parser


def _version() -> str:
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return "of a source tree that is not installed"


if __name__ == "__main__":
    sys.exit(main())

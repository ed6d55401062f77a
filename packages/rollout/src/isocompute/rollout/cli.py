"""Console script ``isocompute-rollout``."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

from .commands import (
    audit_verifier,
    difficulty,
    evaluate,
    generate,
    mix,
    problems,
    resampling,
    score,
    serve_check,
    split,
)
from .contract.errors import IsoComputeError

PACKAGE = "isocompute-rollout"
COMMANDS = (problems, generate, evaluate, difficulty, split, mix, score, audit_verifier, resampling, serve_check)
INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 and the number of the signal, as shells have it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``isocompute-rollout``; an error that a user can act on is one line on stderr.

    Args:
        argv: The arguments, by default those of the process.

    Returns:
        The exit code: 0, 2 after such an error, or 130 after Ctrl-C.
    """
    parser = argparse.ArgumentParser(prog=PACKAGE, description="What does the policy answer, and is it right?")
    parser.add_argument("--version", action="version", version=f"{PACKAGE} {_version()}")
    commands = parser.add_subparsers(dest="command", required=True)
    for command in COMMANDS:
        command.add(commands)
    arguments = parser.parse_args(argv)
    try:
        with _log_shown():
            for line in arguments.run(arguments):
                print(line)
    except (IsoComputeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        print(str(interrupt) or "interrupted", file=sys.stderr)
        return INTERRUPTED
    return 0


@contextmanager
def _log_shown() -> Iterator[None]:
    """Show what the package logs, such as an engine's memory or a server that is left out, on stderr."""
    logger, handler = logging.getLogger(__name__.rpartition(".")[0]), logging.StreamHandler()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def _version() -> str:
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return "of a source tree that is not installed"


if __name__ == "__main__":
    sys.exit(main())

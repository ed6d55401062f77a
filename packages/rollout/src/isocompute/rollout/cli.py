"""The console script ``isocompute-rollout``."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from .commands import evaluate, problems, rollouts
from .contract import command_line

COMMANDS = (problems, rollouts, evaluate)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``isocompute-rollout``."""
    description = "What does the policy answer, and is it right?"
    return command_line.run(
        argv, package="isocompute-rollout", description=description, commands=COMMANDS, around=_log_shown()
    )


@contextmanager
def _log_shown() -> Iterator[None]:
    """Show the package's log on stderr, such as an engine's memory or a server that is left out."""
    logger, handler = logging.getLogger(__name__.rpartition(".")[0]), logging.StreamHandler()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


if __name__ == "__main__":
    sys.exit(main())

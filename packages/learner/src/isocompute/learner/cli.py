"""The console script ``isocompute-learner``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .commands import check
from .contract import command_line

COMMANDS = (check,)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``isocompute-learner``; see ``command_line.run``."""
    description = "What does the policy learn from its rollouts?"
    return command_line.run(argv, package="isocompute-learner", description=description, commands=COMMANDS)


if __name__ == "__main__":
    sys.exit(main())

"""The console script ``isocompute-budget``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .commands import audit, convert, diff, doctor, plan, run, show, signal
from .contract import command_line

COMMANDS = (plan, convert, diff, signal, run, doctor, audit, show)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``isocompute-budget``.

    Returns:
        The exit status, as in ``command_line.run``. Also 1 if a command that judges did not approve (``convert
        --strict``). ``run`` returns the status of its command, or 3 if it ended the command at its budget.
    """
    description = (
        "Plan a rollout budget for RL training, write it as the settings of common trainers, and account for what was "
        "generated."
    )
    return command_line.run(argv, package="isocompute-budget", description=description, commands=COMMANDS, at_once=True)


if __name__ == "__main__":
    sys.exit(main())

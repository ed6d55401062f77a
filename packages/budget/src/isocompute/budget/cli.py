"""The console script ``isocompute-budget``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from .commands import allocate, cost, plan, show, translate, waste
from .errors import BudgetError
from .tables import TableError
from .tracking import TrackingError


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``isocompute-budget``.

    Args:
        argv: The arguments, by default those of the process.

    Returns:
        0, or 2 after an error that was told on stderr.
    """
    arguments = _parser().parse_args(argv)
    try:
        lines = list(arguments.run(arguments))
    except (BudgetError, TableError, TrackingError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        print("\n".join(lines), flush=True)
    except BrokenPipeError:
        # The reader (head, less) has seen enough; keep the interpreter from complaining on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="isocompute-budget",
        description="Plan what reinforcement learning on samples may generate, count what it did, and say it in the "
        "flags of the trainers that people run.",
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in (plan, allocate, cost, translate, show, waste):
        command.add(commands)
    return parser

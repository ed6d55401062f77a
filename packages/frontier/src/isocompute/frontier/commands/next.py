"""``next``: what to run before deciding."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from ..answers.fitted import load_fitted
from ..answers.next import plan, plan_lines
from .arguments import positive


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("next", help="what to run next, by the expected fall of regret")
    parser.add_argument("folder", type=Path, help="what `fit --out` wrote")
    parser.add_argument("--budget", type=positive, help="of the decision; by default the largest that was measured")
    parser.add_argument("--most", type=int, default=5, help="actions printed (default: %(default)s)")
    parser.add_argument(
        "--tell", type=int, nargs=2, metavar="N", help="how many seeds tell these two n apart (default: the first two)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Print the actions, the most useful per unit of compute first."""
    fitted = load_fitted(arguments.folder)
    tell = (arguments.tell[0], arguments.tell[1]) if arguments.tell else None
    found = plan(fitted, arguments.budget or fitted.largest, tell=tell)
    yield from plan_lines(found, fitted.unit, most=arguments.most)

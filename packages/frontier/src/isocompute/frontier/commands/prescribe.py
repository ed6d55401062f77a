"""``prescribe``: split a budget."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from ..answers.prescription import prescribe
from ..errors import FrontierError
from .arguments import positive, write_json


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("prescribe", help="split a budget")
    parser.add_argument("folder", type=Path, help="what `fit --out` wrote")
    parser.add_argument("--budget", type=positive, required=True, help="how much may be spent, in --unit")
    parser.add_argument("--unit", choices=["rollouts", "tokens"], default="rollouts")
    parser.add_argument("--tokens-per-rollout", type=positive, help="mean response tokens, for --unit tokens")
    parser.add_argument("--json", type=Path, help="also write the allocation here")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Print the allocation and every candidate for it.

    Raises:
        FrontierError: The budget is in tokens without a mean length, or nothing can be prescribed for it.
    """
    budget = arguments.budget
    if arguments.unit == "tokens":
        if arguments.tokens_per_rollout is None:
            raise FrontierError("a budget in tokens needs --tokens-per-rollout, the mean response length")
        budget /= arguments.tokens_per_rollout
    allocation = prescribe(arguments.folder, budget=int(budget))
    yield allocation.summary()
    yield allocation.table()
    write_json(allocation.as_dict(), arguments.json)

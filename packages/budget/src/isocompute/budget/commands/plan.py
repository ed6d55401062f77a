"""``plan``: the feasible splits of a budget."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from ..errors import BudgetError
from ..planning.splits import Constraints, grid
from . import models
from .plan_lines import document, plan_lines, plan_row
from .text import number, plural, whole, whole_numbers, write_json


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    plan = commands.add_parser(
        "plan",
        help="the feasible splits of a budget, and what they cost",
        description="Check every split C = B_p · n · M of a budget, and print which can be run and why the "
        "others cannot; with a learning rate or a model, the rate, time, memory and money of each.",
    )
    plan.add_argument("--rollouts", type=whole, required=True, metavar="C", help="the budget")
    plan.add_argument(
        "--max-batch", type=whole, metavar="B_max", help="most rollouts in a batch (default: the largest of the values)"
    )
    plan.add_argument(
        "--rollouts-per-problem", type=whole_numbers, default=(), metavar="n,…", help="default: powers of two from 2"
    )
    plan.add_argument(
        "--problems-per-batch", type=whole_numbers, default=(), metavar="B_p,…", help="default: powers of two from 8"
    )
    plan.add_argument(
        "--min-steps", type=whole, default=100, metavar="M", help="fewest update steps (default: %(default)s)"
    )
    plan.add_argument("--problems", type=whole, metavar="D", help="training problems")
    plan.add_argument("--max-epochs", type=number, metavar="E", help="maximum epochs over the problems")
    plan.add_argument("--world-size", type=whole, default=1, metavar="W", help="devices that share a batch")
    plan.add_argument("--cells", action="store_true", help="print every feasible split on a line of its own")
    rate = plan.add_argument_group("the learning rate, from one measured at another batch")
    rate.add_argument("--anchor", type=number, metavar="RATE", help="learning rate measured")
    rate.add_argument("--anchor-batch", type=whole, metavar="B", help="the batch it was measured at, in rollouts")
    rate.add_argument("--scaling", choices=("sqrt", "linear", "constant"), default="sqrt")
    models.add(plan)
    plan.add_argument("--micro-batch", type=whole, default=1, metavar="m", help="rollouts in one pass of a device")
    plan.add_argument("--json", type=Path, metavar="FILE", help="also write all of it")
    plan.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Print the splits.

    Raises:
        BudgetError: A number is not possible, options that go together are given in part, no split is feasible, or
            the file cannot be written.
    """
    if (arguments.anchor is None) != (arguments.anchor_batch is None):
        raise BudgetError("a learning rate needs both --anchor and --anchor-batch")
    most = _max_batch(arguments)
    problems = arguments.problems_per_batch or tuple(_powers(8, most))
    found = grid(
        Constraints(
            rollouts=arguments.rollouts,
            max_batch=most,
            rollouts_per_problem=arguments.rollouts_per_problem,
            problems_per_batch=problems,
            min_steps=arguments.min_steps,
            problems=arguments.problems,
            max_epochs=arguments.max_epochs,
            world_size=arguments.world_size,
        )
    )
    if not found.cells:
        left_out = "; ".join(f"{plural(count, 'split')} with {limit}" for limit, count in found.limits)
        none = f"no power of two from 2 is a group for batches of at most {most:,}"
        raise BudgetError(f"no split of {arguments.rollouts:,} rollouts can be run: {left_out or none}")
    rows = [plan_row(cell, arguments) for cell in found.cells]
    yield from plan_lines(found, rows, arguments)
    if arguments.json is not None:
        write_json(document(found, rows), arguments.json)


def _max_batch(arguments: argparse.Namespace) -> int:
    """The limit on a batch, or the largest batch of the values that are given."""
    if arguments.max_batch is not None:
        return int(arguments.max_batch)
    if not arguments.rollouts_per_problem or not arguments.problems_per_batch:
        raise BudgetError("give --max-batch, or values of --rollouts-per-problem and of --problems-per-batch")
    most: int = max(arguments.rollouts_per_problem) * max(arguments.problems_per_batch)
    return max(1, most)


def _powers(first: int, most: int) -> Iterable[int]:
    while first <= most:
        yield first
        first *= 2

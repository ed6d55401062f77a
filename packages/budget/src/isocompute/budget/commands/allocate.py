"""``allocate``: split a budget into batches and steps."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from ..errors import BudgetError
from ..planning.allocation import Allocation
from .text import number, whole


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    allocate = commands.add_parser(
        "allocate",
        help="split a budget into batches and steps",
        description="How many update steps a budget pays for, C = B_p · n · M, and what follows from it.",
    )
    need = allocate.add_argument_group("the budget and the batch")
    need.add_argument("--budget", type=whole, required=True, metavar="C", help="rollouts for training")
    need.add_argument("--problems-per-batch", type=whole, required=True, metavar="B_p", help="problems")
    need.add_argument("--rollouts-per-problem", type=whole, required=True, metavar="n", help="responses")
    allocate.add_argument("--problems", type=whole, metavar="D", help="training problems, to count epochs")
    rate = allocate.add_argument_group("the learning rate, from one measured at another batch")
    rate.add_argument("--anchor", type=number, metavar="RATE", help="learning rate measured")
    rate.add_argument("--anchor-batch", type=whole, metavar="B", help="the batch it was measured at, in rollouts")
    rate.add_argument(
        "--scaling",
        choices=("sqrt", "linear", "constant"),
        default="sqrt",
        help="growth with the batch (default: %(default)s)",
    )
    allocate.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Print the split.

    Raises:
        BudgetError: The budget does not pay for one step, a number is not possible, or only one of ``--anchor`` and
            ``--anchor-batch`` is given.
    """
    allocation = Allocation.within(
        arguments.budget,
        problems_per_batch=arguments.problems_per_batch,
        rollouts_per_problem=arguments.rollouts_per_problem,
    )
    yield f"budget                {arguments.budget:,} rollouts"
    yield f"problems per batch    {allocation.problems_per_batch:,}"
    yield f"rollouts per problem  {allocation.rollouts_per_problem:,}"
    yield f"batch                 {allocation.batch_rollouts:,} rollouts"
    yield f"update steps          {allocation.update_steps:,}"
    unused = arguments.budget - allocation.rollouts
    yield f"generates             {allocation.rollouts:,} rollouts ({unused:,} unused)"
    if arguments.problems is not None:
        epochs = allocation.epochs(arguments.problems)
        yield f"epochs                {epochs:,.2f} over {arguments.problems:,} problems"
    if (arguments.anchor is None) != (arguments.anchor_batch is None):
        raise BudgetError("a learning rate needs both --anchor and --anchor-batch")
    if arguments.anchor is not None:
        rate = allocation.learning_rate(
            anchor=arguments.anchor, anchor_batch=arguments.anchor_batch, scaling=arguments.scaling
        )
        yield (
            f"learning rate         {rate:.4g} "
            f"({arguments.scaling} scaling from {arguments.anchor:g} at {arguments.anchor_batch:,} rollouts)"
        )

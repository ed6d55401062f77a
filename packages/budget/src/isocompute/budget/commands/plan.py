"""``plan``: the feasible splits of a budget, and a sweep that fits a share of it."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import BudgetError
from ..planning.splits import Constraints, Grid, grid
from ..planning.sweep import Sweep, design
from . import models
from .plan_lines import document, plan_lines, plan_row, sweep_lines
from .text import number, plural, whole, whole_numbers, write_json

SWEEP_PROBLEMS = 32


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    plan = commands.add_parser(
        "plan",
        help="the feasible splits of a budget, and a sweep that fits a share of it",
        description="Check every split C = B_p · n · M of a budget, print which can be run and why others cannot, "
        "and design a sweep that measures them at small scale.",
    )
    plan.add_argument("--rollouts", type=whole, required=True, metavar="C", help="the budget")
    plan.add_argument("--max-batch", type=whole, required=True, metavar="B_max", help="most rollouts in a batch")
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
    _add_sweep(plan)
    models.add(plan, required=False)
    plan.add_argument("--micro-batch", type=whole, default=1, metavar="m", help="rollouts in one pass of a device")
    plan.add_argument("--json", type=Path, metavar="FILE", help="also write all of it")
    plan.set_defaults(run=run)


def _add_sweep(plan: argparse.ArgumentParser) -> None:
    """Add the options of the sweep."""
    sweep = plan.add_argument_group("a sweep before the run")
    sweep.add_argument("--sweep-share", type=number, metavar="S", help="share of the budget for the sweep")
    sweep.add_argument("--sweep-rollouts", type=whole, metavar="C", help="or rollouts for the sweep")
    sweep.add_argument(
        "--sweep-problems-per-batch",
        type=whole_numbers,
        metavar="B_p,…",
        help=f"default: {SWEEP_PROBLEMS}, or the largest",
    )
    sweep.add_argument(
        "--sweep-min-steps",
        type=whole,
        default=50,
        metavar="M",
        help="update steps before a cell's first evaluation (default: %(default)s)",
    )
    sweep.add_argument("--seeds", type=whole, default=1, metavar="K", help="runs of each cell (default: %(default)s)")
    sweep.add_argument(
        "--evaluation-rollouts", type=whole, default=0, metavar="E", help="rollouts of one evaluation (default: 0)"
    )
    sweep.add_argument(
        "--points-per-octave",
        type=whole,
        default=1,
        metavar="K",
        help="evaluations per doubling (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Print the splits and the sweep.

    Raises:
        BudgetError: A number is not possible, options that go together are given in part, no split is feasible, the
            budget does not pay for the sweep, or the file cannot be written.
    """
    for_sweep = _sweep_rollouts(arguments)
    if (arguments.anchor is None) != (arguments.anchor_batch is None):
        raise BudgetError("a learning rate needs both --anchor and --anchor-batch")
    if for_sweep is not None and for_sweep >= arguments.rollouts:
        raise BudgetError(f"a sweep of {for_sweep:,} rollouts leaves nothing of {arguments.rollouts:,} for the run")
    # The sweep is paid for from the budget of the run.
    budget = arguments.rollouts - (for_sweep or 0)
    shared = {
        "rollouts": budget,
        "max_batch": arguments.max_batch,
        "rollouts_per_problem": arguments.rollouts_per_problem,
        "problems": arguments.problems,
        "max_epochs": arguments.max_epochs,
        "world_size": arguments.world_size,
    }
    problems = arguments.problems_per_batch or tuple(_powers(8, arguments.max_batch))
    found = grid(Constraints(problems_per_batch=problems, min_steps=arguments.min_steps, **shared))
    if not found.cells:
        left_out = "; ".join(f"{plural(count, 'split')} with {limit}" for limit, count in found.limits)
        none = f"no power of two from 2 is a group for batches of at most {arguments.max_batch:,}"
        raise BudgetError(f"no split of {budget:,} rollouts can be run: {left_out or none}")
    sweep = None if for_sweep is None else _sweep(found, shared, for_sweep, arguments)
    rows = [plan_row(cell, arguments) for cell in found.cells]
    kept = "" if for_sweep is None else f" ({for_sweep:,} of the {arguments.rollouts:,} are kept for a sweep)"
    yield from plan_lines(found, rows, arguments, kept)
    if sweep is not None:
        yield ""
        yield from sweep_lines(sweep)
    if arguments.json is not None:
        write_json(document(found, rows, sweep), arguments.json)


def _sweep_rollouts(arguments: argparse.Namespace) -> int | None:
    """What the sweep may spend, or None without one.

    Raises:
        BudgetError: It is given twice, or as an impossible share.
    """
    share = arguments.sweep_share
    if share is None:
        rollouts: int | None = arguments.sweep_rollouts
        return rollouts
    if not 0 < share < 1:
        raise BudgetError(f"the sweep's share is {share}; it must lie between 0 and 1")
    if arguments.sweep_rollouts is not None:
        raise BudgetError("--sweep-share and --sweep-rollouts both say what the sweep may spend; give one")
    return int(arguments.rollouts * share)


def _sweep(found: Grid, shared: dict[str, Any], total: int, arguments: argparse.Namespace) -> Sweep:
    """Design the sweep."""
    return design(
        Constraints(
            problems_per_batch=arguments.sweep_problems_per_batch or (_compared(found),),
            min_steps=arguments.sweep_min_steps,
            **shared,
        ),
        total=total,
        seeds=arguments.seeds,
        evaluation_rollouts=arguments.evaluation_rollouts,
        points_per_octave=arguments.points_per_octave,
    )


def _compared(found: Grid) -> int:
    """The problems per batch that a sweep holds fixed: 32, or the most below it that leave values of n to compare."""
    splits = Counter(cell.allocation.problems_per_batch for cell in found.cells)
    comparable = [problems for problems, count in splits.items() if count > 1 and problems <= SWEEP_PROBLEMS]
    return max(comparable, default=min(splits))


def _powers(first: int, most: int) -> Iterable[int]:
    while first <= most:
        yield first
        first *= 2

"""``difficulty``: add pass rates to problems."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from ..contract import tables
from ..errors import RolloutError
from ..scoring.difficulty import with_pass_rates
from .output import SOURCE, Output, add_flags, deliver


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    difficulty = commands.add_parser("difficulty", help="add pass rates to problems")
    difficulty.add_argument("rollouts", help=SOURCE)
    difficulty.add_argument("--problems", required=True, help=SOURCE)
    difficulty.add_argument(
        "--fresh", action="store_true", help="the responses selected nothing: add fresh pass rates"
    )  # fmt: skip
    add_flags(difficulty)
    difficulty.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Measure the problems and say their mean pass rate."""
    return deliver(arguments, _difficulty)


def _difficulty(arguments: argparse.Namespace) -> Output:
    problems = tables.read(arguments.problems, "problems")
    measured = with_pass_rates(problems, tables.read(arguments.rollouts, "rollouts"), fresh=arguments.fresh)
    if measured.is_empty():
        raise RolloutError(f"{arguments.rollouts}: answers none of the problems of {arguments.problems}")
    name = "fresh_pass_rate" if arguments.fresh else "pass_rate"
    mean = float(measured[name].to_numpy().mean())
    return Output(
        name="problems",
        table=measured,
        summary=f"{len(measured):,} problems, mean {name.replace('_', ' ')} {mean:.3f}",
        metrics={f"mean_{name}": mean},
        sources={"rollouts": arguments.rollouts, "problems": arguments.problems},
    )

"""``split``: choose the problems of an interval of pass rates."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from ..contract import tables
from ..errors import RolloutError
from ..scoring.difficulty import DifficultySplit, split
from .output import SOURCE, Output, add_flags, deliver


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser("split", help="choose the problems of an interval of pass rates")
    command.add_argument("problems", help=SOURCE)
    command.add_argument("--interval", type=float, nargs=2, required=True, metavar=("LOWEST", "HIGHEST"))
    command.add_argument("--train", type=int, required=True, help="training problems")
    command.add_argument("--validation", type=int, default=300, help="validation problems (default 300)")
    add_flags(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Choose the problems and say how many there are."""
    return deliver(arguments, _split)


def _split(arguments: argparse.Namespace) -> Output:
    problems = tables.read(arguments.problems, "problems")
    if "pass_rate" not in problems.columns:
        raise RolloutError(f"{arguments.problems}: has no pass rates; add them with `difficulty` first")
    lowest, highest = arguments.interval
    wanted = DifficultySplit(
        name=arguments.out.stem, lowest=lowest, highest=highest,
        train=arguments.train, validation=arguments.validation,
    )  # fmt: skip
    chosen = split(problems, wanted)
    return Output(
        name="problems",
        table=chosen,
        summary=f"{len(chosen):,} problems",
        sources={"problems": arguments.problems},
        params={"lowest": lowest, "highest": highest, "train": arguments.train, "validation": arguments.validation},
    )

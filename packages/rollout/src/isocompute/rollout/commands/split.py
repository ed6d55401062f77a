"""``split``: choose the problems of an interval of pass rates."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from ..errors import RolloutError
from ..scoring.evaluation import DifficultySplit, inside, split
from .output import SOURCE, Output, add_flags, deliver, read


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "split",
        help="choose the problems of an interval of pass rates",
        description="Choose the problems of an interval of pass rates: --interval 0 0 --min-samples 128 are extremely "
        "hard ones (pass@128 = 0), --interval 0.9 1 very easy ones.",
    )
    command.add_argument("problems", help=SOURCE)
    command.add_argument(
        "--interval",
        type=float,
        nargs=2,
        required=True,
        metavar=("LOWEST", "HIGHEST"),
        help="pass rates of the problems taken, both ends included",
    )
    command.add_argument(
        "--min-samples", type=int, default=1, metavar="M", help="only problems measured with at least M responses"
    )
    command.add_argument("--train", type=int, metavar="N", help="training problems (without it all of the interval)")
    command.add_argument("--validation", type=int, default=300, metavar="N", help="validation problems (default 300)")
    add_flags(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Choose the problems and say how many there are."""
    return deliver(arguments, _split)


def _split(arguments: argparse.Namespace) -> Output:
    source = read(arguments.problems, "problems")
    if "pass_rate" not in source.table.columns:
        raise RolloutError(f"{arguments.problems}: has no pass rates; add them with `difficulty` first")
    lowest, highest = arguments.interval
    params = {"lowest": lowest, "highest": highest, "min_samples": arguments.min_samples}
    if arguments.train is None:
        chosen = inside(source.table, lowest=lowest, highest=highest, min_samples=arguments.min_samples)
        if chosen.is_empty():
            raise RolloutError(
                f"{arguments.problems}: none of its {len(source.table)} problems has a pass rate from {lowest:g} to "
                f"{highest:g}"
            )
    else:
        wanted = DifficultySplit(
            name=arguments.out.stem,
            lowest=lowest,
            highest=highest,
            train=arguments.train,
            validation=arguments.validation,
        )
        chosen = split(source.table, wanted, min_samples=arguments.min_samples)
        params |= {"train": arguments.train, "validation": arguments.validation}
    return Output(
        name="problems", table=chosen, summary=f"{len(chosen):,} problems", sources={"problems": source}, params=params
    )

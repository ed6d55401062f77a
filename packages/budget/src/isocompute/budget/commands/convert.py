"""``convert``: an allocation in a trainer's settings."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from ..errors import BudgetError
from ..planning.allocation import Allocation
from ..trainers import TRAINERS, Parallelism, Run, convert, nested, render, trainer
from .text import number, whole, write_json


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    to = commands.add_parser(
        "convert",
        help="an allocation as a trainer's settings",
        description="The batch, micro-batch and step settings with which a trainer generates exactly B_p · n · M "
        "rollouts and takes M optimizer steps on a number of devices.",
    )
    to.add_argument("--to", choices=TRAINERS, required=True, help="the trainer")
    to.add_argument("--rollouts-per-problem", type=whole, required=True, metavar="n", help="responses per problem")
    to.add_argument("--problems-per-batch", type=whole, required=True, metavar="B_p", help="problems per step")
    to.add_argument("--update-steps", type=whole, required=True, metavar="M", help="optimizer steps")
    to.add_argument("--problems", type=whole, metavar="D", help="training problems, where steps follow from epochs")
    devices = to.add_argument_group("the devices, and how one copy of the model is spread over them")
    devices.add_argument(
        "--world-size", type=whole, default=1, metavar="W", help="devices that train (default: %(default)s)"
    )
    devices.add_argument("--gpus-per-node", type=whole, default=8, metavar="G", help="at most (default: %(default)s)")
    devices.add_argument(
        "--micro-batch", type=whole, metavar="m", help="rollouts a data-parallel rank holds in one pass"
    )
    for kind, shares in (("tensor", "each layer"), ("pipeline", "the layers"), ("context", "each sequence")):
        devices.add_argument(
            f"--{kind}-parallel", type=whole, default=1, metavar="K", help=f"devices that share {shares} (default: 1)"
        )
    rate = to.add_argument_group("the learning rate, by default the trainer's own")
    rate.add_argument("--learning-rate", type=number, metavar="RATE", help="as it was tuned")
    rate.add_argument(
        "--learning-rate-anchor", type=whole, metavar="B", help="the batch it was tuned at, in rollouts, to scale it"
    )
    rate.add_argument("--scaling", choices=("sqrt", "linear", "constant"), default="sqrt", help="default: %(default)s")
    to.add_argument("--json", type=Path, metavar="FILE", help="also write the settings as a nested document")
    to.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Print the settings."""
    allocation = Allocation(
        problems_per_batch=arguments.problems_per_batch,
        rollouts_per_problem=arguments.rollouts_per_problem,
        update_steps=arguments.update_steps,
    )
    wanted = Run(
        allocation=allocation,
        world_size=arguments.world_size,
        parallelism=Parallelism(
            tensor=arguments.tensor_parallel, pipeline=arguments.pipeline_parallel, context=arguments.context_parallel
        ),
        micro_batch=arguments.micro_batch,
        gpus_per_node=arguments.gpus_per_node,
        problems=arguments.problems,
        learning_rate=_learning_rate(allocation, arguments),
    )
    known = trainer(arguments.to)
    configuration = convert(known.name, wanted)
    a = allocation
    yield (
        f"# {known.title}: {a.problems_per_batch:,} problems × {a.rollouts_per_problem:,} rollouts × "
        f"{a.update_steps:,} steps = {a.rollouts:,} rollouts"
    )
    yield from render(configuration, known.style)
    parallelism = wanted.parallelism
    if parallelism.devices > 1:
        yield f"# {wanted.data_parallel:,} data-parallel ranks of {parallelism.devices:,} devices ({parallelism})"
    for note in configuration.notes:
        yield f"# {note}"
    if arguments.learning_rate_anchor is not None:
        yield (
            f"# the learning rate is {arguments.learning_rate:g} at {arguments.learning_rate_anchor:,} rollouts, with "
            f"{arguments.scaling} scaling to {a.batch_rollouts:,}"
        )
    if arguments.json is not None:
        write_json(nested(configuration.settings), arguments.json)


def _learning_rate(allocation: Allocation, arguments: argparse.Namespace) -> float | None:
    """The learning rate as it is given, or carried over from the batch that it was tuned at."""
    rate: float | None = arguments.learning_rate
    if arguments.learning_rate_anchor is None:
        return rate
    if rate is None:
        raise BudgetError("--learning-rate-anchor says at which batch a rate was tuned; give --learning-rate as well")
    return allocation.learning_rate(anchor=rate, anchor_batch=arguments.learning_rate_anchor, scaling=arguments.scaling)

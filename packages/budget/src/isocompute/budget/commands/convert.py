"""``convert``: write an allocation as a trainer's settings, or read settings as an allocation."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from ..errors import BudgetError, plural
from ..planning.compute import Allocation
from ..trainers.registry import TRAINERS, convert, read, trainer
from ..trainers.settings import Parallelism, RunPlan, flags, load, render
from .text import number, whole

ALLOCATION = ("--rollouts-per-problem", "--problems-per-batch", "--update-steps")
"""Options that give an allocation."""
MOST_NAMED = 8
"""Most ignored settings to name."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    to = commands.add_parser(
        "convert",
        help="an allocation as a trainer's settings, or what settings generate",
        description="With --to: the batch, micro-batch and step settings with which a trainer generates exactly "
        "B_p · n · M rollouts and takes M optimizer steps on a number of devices. With --from: what settings generate, "
        "what they leave open, and where they contradict themselves; flags go after --, and override the file.",
        epilog="example: isocompute-budget convert --to trl --rollouts-per-problem 8 --problems-per-batch 32 "
        "--update-steps 200\nexample: isocompute-budget convert --from verl run.sh --world-size 8",
    )
    which = to.add_mutually_exclusive_group(required=True)
    which.add_argument("--to", choices=TRAINERS, help="write an allocation for this trainer")
    which.add_argument("--from", dest="source", choices=TRAINERS, help="read settings of this trainer")
    to.add_argument("settings", nargs="*", metavar="FILE|FLAG", help="YAML, JSON, TOML, a launch script, or flags")
    to.add_argument("--strict", action="store_true", help="with --from: exit with status 1 on any remark, for CI")
    to.add_argument("--rollouts-per-problem", type=whole, metavar="n", help="responses per problem")
    to.add_argument("--problems-per-batch", type=whole, metavar="B_p", help="problems per step")
    to.add_argument("--update-steps", type=whole, metavar="M", help="optimizer steps")
    to.add_argument("--problems", type=whole, metavar="D", help="training problems, where steps follow from epochs")
    devices = to.add_argument_group("the devices, and how one copy of the model is spread over them")
    devices.add_argument(
        "--world-size", type=whole, metavar="W", help="devices that train (default: 1, or as settings say)"
    )
    devices.add_argument(
        "--gpus-per-node", type=whole, default=8, metavar="G", help="devices of a node (default: %(default)s)"
    )
    devices.add_argument("--micro-batch", type=whole, metavar="m", help="rollouts a rank holds in one pass")
    for kind, shares in (("tensor", "each layer"), ("pipeline", "the layers"), ("context", "each sequence")):
        said = f"devices that share {shares} (default: 1)"
        devices.add_argument(f"--{kind}-parallel", type=whole, default=1, metavar="K", help=said)
    rate = to.add_argument_group("the learning rate, by default the trainer's own")
    rate.add_argument("--learning-rate", type=number, metavar="RATE", help="that was tuned")
    rate.add_argument("--learning-rate-anchor", type=whole, metavar="B", help="the batch it was tuned at, in rollouts")
    said = "how it grows with the batch (default: %(default)s)"
    rate.add_argument("--scaling", choices=("sqrt", "linear", "constant"), default="sqrt", help=said)
    to.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Print the settings, or the allocation and remarks on the settings."""
    given = [name for name in ALLOCATION if getattr(arguments, name[2:].replace("-", "_")) is not None]
    if arguments.source is not None:
        if given:
            raise BudgetError(f"{given[0]} goes with --to; with --from, the settings say it")
        return _read(arguments)
    if len(given) < len(ALLOCATION) or arguments.settings:
        raise BudgetError(f"--to needs {', '.join(ALLOCATION)}, and no settings")
    return _write(arguments)


def _write(arguments: argparse.Namespace) -> Iterable[str]:
    """The settings of a trainer."""
    a = allocation = Allocation(
        problems_per_batch=arguments.problems_per_batch,
        rollouts_per_problem=arguments.rollouts_per_problem,
        update_steps=arguments.update_steps,
    )
    rate, anchor, scaling = arguments.learning_rate, arguments.learning_rate_anchor, arguments.scaling
    if anchor is not None:
        if rate is None:
            raise BudgetError(
                "--learning-rate-anchor says at which batch a rate was tuned; give --learning-rate as well"
            )
        rate = allocation.learning_rate(anchor=rate, anchor_batch=anchor, scaling=scaling)
    wanted = RunPlan(
        allocation=allocation,
        world_size=1 if arguments.world_size is None else arguments.world_size,
        parallelism=Parallelism(
            tensor=arguments.tensor_parallel, pipeline=arguments.pipeline_parallel, context=arguments.context_parallel
        ),
        micro_batch=arguments.micro_batch,
        gpus_per_node=arguments.gpus_per_node,
        problems=arguments.problems,
        learning_rate=rate,
    )
    known = trainer(arguments.to)
    configuration = convert(known.name, wanted)
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
    if anchor is not None:
        tuned = f"{arguments.learning_rate:g} at {anchor:,} rollouts"
        yield f"# the learning rate is {tuned}, with {scaling} scaling to {a.batch_rollouts:,}"


def _read(arguments: argparse.Namespace) -> Iterable[str]:
    """The allocation, and remarks on the settings."""
    if not arguments.settings:
        raise BudgetError("--from reads settings: give a file, or flags after --")
    first, *rest = arguments.settings
    if "=" not in first and not first.startswith("-"):
        # Flags override the file that they follow.
        settings, where = {**load(Path(first)), **flags(rest)}, first
    else:
        settings, where = flags(arguments.settings), "the flags"
    if not settings:
        raise BudgetError(f"{where}: no settings were given; give a file, or flags after --")
    known = trainer(arguments.source)
    batching = read(known.name, settings, world_size=arguments.world_size, problems=arguments.problems, where=where)
    split = batching.problems_generated != batching.problems_per_batch
    spread = batching.data_parallel != batching.world_size
    rows = [
        ("problems per batch", batching.problems_per_batch),
        ("rollouts per problem", batching.rollouts_per_problem),
        ("update steps", batching.update_steps),
        ("rollouts", batching.generated),
        *((("problems generated at once", batching.problems_generated),) if split else ()),
        ("devices", batching.world_size),
        *((("data-parallel ranks", batching.data_parallel),) if spread else ()),
    ]
    width = max(len(label) for label, _ in rows)
    yield from (f"{label:{width}}  {'unknown' if value is None else f'{value:,}'}" for label, value in rows)
    for kind in ("unknown", "inconsistent", "notes"):
        for remark in getattr(batching, kind):
            yield f"{kind.removesuffix('s')}: {remark}"
    if batching.ignored:
        count, more = len(batching.ignored), ", …" if len(batching.ignored) > MOST_NAMED else ""
        named = ", ".join(batching.ignored[:MOST_NAMED]) + more
        yield f"ignored: {plural(count, 'setting')} that neither batches nor steps follow from ({named})"
    if arguments.strict and (batching.unknown or batching.inconsistent or batching.notes):
        arguments.exit_status = 1

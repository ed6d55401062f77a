"""``convert`` and ``read``: an allocation in a trainer's settings, and back."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..allocation import Allocation
from ..errors import BudgetError
from ..translation import FRAMEWORKS, Parallelism, Reading, Run, convert, framework, nested, read, render
from ..translation.forms import flags, load
from ..translation.run import Value
from .text import labelled, number, whole, write_json


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the two commands."""
    to = commands.add_parser(
        "convert",
        help="an allocation as a trainer's settings",
        description="The batch, micro-batch and step settings with which a trainer generates exactly B_p · n · M "
        "rollouts and takes M optimizer steps on a number of devices.",
    )
    to.add_argument("--to", choices=FRAMEWORKS, required=True, help="the trainer")
    to.add_argument("--rollouts-per-problem", type=whole, required=True, metavar="n", help="responses a problem")
    to.add_argument("--problems-per-batch", type=whole, required=True, metavar="B_p", help="problems a step")
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
    to.set_defaults(run=_convert)

    back = commands.add_parser(
        "read",
        help="a trainer's settings as an allocation",
        description="What a trainer's settings generate, what they leave open, and where they contradict "
        "themselves. Flags go after --, and override the file.",
    )
    back.add_argument("--from", dest="source", choices=FRAMEWORKS, required=True, help="the trainer")
    back.add_argument("settings", nargs="+", metavar="FILE|FLAG", help="YAML, JSON, TOML, a launch script, or flags")
    back.add_argument("--world-size", type=whole, metavar="W", help="devices that train, if the settings do not say")
    back.add_argument("--problems", type=whole, metavar="D", help="training problems, where steps follow from epochs")
    back.add_argument("--strict", action="store_true", help="exit with status 1 on any remark, for CI")
    back.add_argument("--json", type=Path, metavar="FILE", help="also write the allocation")
    back.set_defaults(run=_read)


def _convert(arguments: argparse.Namespace) -> Iterable[str]:
    allocation = Allocation(
        problems_per_batch=arguments.problems_per_batch,
        rollouts_per_problem=arguments.rollouts_per_problem,
        update_steps=arguments.update_steps,
    )
    run = Run(
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
    known = framework(arguments.to)
    configuration = convert(known.name, run)
    a = allocation
    yield (
        f"# {known.title}: {a.problems_per_batch:,} problems × {a.rollouts_per_problem:,} rollouts × "
        f"{a.update_steps:,} steps = {a.rollouts:,} rollouts"
    )
    yield from render(configuration, known.style)
    if run.parallelism.devices > 1:
        yield f"# {run.data_parallel:,} data-parallel ranks of {run.parallelism.devices:,} devices ({run.parallelism})"
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


def _read(arguments: argparse.Namespace) -> Iterable[str]:
    settings, where = _settings(arguments.settings)
    known = framework(arguments.source)
    found = read(known.name, settings, world_size=arguments.world_size, problems=arguments.problems, where=where)
    spread = found.data_parallel != found.world_size
    yield from labelled(
        (label, "unknown" if value is None else f"{value:,}")
        for label, value in (
            ("problems per batch", found.problems_per_batch),
            ("rollouts per problem", found.rollouts_per_problem),
            ("update steps", found.update_steps),
            ("rollouts", found.generated),
            ("optimizer steps", found.optimizer_steps),
            ("devices", found.world_size),
            *((("data-parallel ranks", found.data_parallel),) if spread else ()),
        )
    )
    for kind in ("unknown", "inconsistent", "notes"):
        for remark in getattr(found, kind):
            yield f"{kind.removesuffix('s')}: {remark}"
    if arguments.strict and (found.unknown or found.inconsistent or found.notes):
        arguments.exit_status = 1
    if arguments.json is not None:
        if found.allocation is None:
            raise BudgetError(f"{where}: no allocation to write: {'; '.join(found.unknown or found.inconsistent)}")
        write_json(_document(found), arguments.json)


def _settings(given: Sequence[str]) -> tuple[dict[str, Value], str]:
    """Settings of a file, which flags after it override, or of flags alone, and where they are from."""
    first, *rest = given
    if "=" not in first and not first.startswith("-"):
        settings, where = {**load(Path(first)), **flags(rest)}, first
    else:
        settings, where = flags(given), "the flags"
    if not settings:
        raise BudgetError(f"{where}: no settings are there; give a file, or flags after --")
    return settings, where


def _document(found: Reading) -> dict[str, Any]:
    """A reading with an allocation."""
    assert found.allocation is not None
    return {
        **asdict(found.allocation),
        "rollouts": found.generated,
        "baseline_rollouts_per_problem": found.baseline_rollouts,
        "optimizer_steps": found.optimizer_steps,
        "devices": found.world_size,
        "data_parallel_ranks": found.data_parallel,
        "inconsistent": found.inconsistent,
        "notes": found.notes,
    }

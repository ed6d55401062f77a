"""``convert`` and ``read``: an allocation in a trainer's settings, and back."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from ..allocation import Allocation
from ..errors import BudgetError
from ..translation import FRAMEWORKS, Run, convert, framework, nested, read, render
from ..translation.forms import flags, load
from .text import labelled, whole, write_json


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
    to.add_argument(
        "--world-size", type=whole, default=1, metavar="W", help="devices that train (default: %(default)s)"
    )
    to.add_argument("--gpus-per-node", type=whole, default=8, metavar="G", help="at most (default: %(default)s)")
    to.add_argument("--micro-batch", type=whole, metavar="m", help="rollouts a device holds in one pass")
    to.add_argument("--problems", type=whole, metavar="D", help="training problems, where steps follow from epochs")
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
    back.add_argument("--json", type=Path, metavar="FILE", help="also write the allocation")
    back.set_defaults(run=_read)


def _convert(arguments: argparse.Namespace) -> Iterable[str]:
    run = Run(
        allocation=Allocation(
            problems_per_batch=arguments.problems_per_batch,
            rollouts_per_problem=arguments.rollouts_per_problem,
            update_steps=arguments.update_steps,
        ),
        world_size=arguments.world_size,
        micro_batch=arguments.micro_batch,
        gpus_per_node=arguments.gpus_per_node,
        problems=arguments.problems,
    )
    known = framework(arguments.to)
    configuration = convert(known.name, run)
    a = run.allocation
    yield (
        f"# {known.title}: {a.problems_per_batch:,} problems × {a.rollouts_per_problem:,} rollouts × "
        f"{a.update_steps:,} steps = {a.rollouts:,} rollouts"
    )
    yield from render(configuration, known.style)
    for note in configuration.notes:
        yield f"# {note}"
    if arguments.json is not None:
        write_json(nested(configuration.settings), arguments.json)


def _read(arguments: argparse.Namespace) -> Iterable[str]:
    first, *rest = arguments.settings
    path = Path(first)
    if "=" not in first and not first.startswith("-"):
        settings = {**load(path), **flags(rest)}
        where = first
    else:
        settings, where = flags(arguments.settings), "the flags"
    if not settings:
        raise BudgetError(f"{where}: no settings are there; give a file, or flags after --")
    known = framework(arguments.source)
    found = read(known.name, settings, world_size=arguments.world_size, problems=arguments.problems, where=where)
    yield from labelled(
        (label, "unknown" if value is None else f"{value:,}")
        for label, value in (
            ("problems per batch", found.problems_per_batch),
            ("rollouts per problem", found.rollouts_per_problem),
            ("update steps", found.update_steps),
            ("rollouts", found.allocation.rollouts if found.allocation else None),
            ("optimizer steps", found.optimizer_steps),
            ("devices", found.world_size),
        )
    )
    for kind in ("unknown", "inconsistent", "notes"):
        for remark in getattr(found, kind):
            yield f"{kind.removesuffix('s')}: {remark}"
    if arguments.json is not None:
        if found.allocation is None:
            raise BudgetError(f"{where}: no allocation to write: {'; '.join(found.unknown or found.inconsistent)}")
        a = found.allocation
        write_json(
            {
                "problems_per_batch": a.problems_per_batch,
                "rollouts_per_problem": a.rollouts_per_problem,
                "update_steps": a.update_steps,
                "rollouts": a.rollouts,
            },
            arguments.json,
        )

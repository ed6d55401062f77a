"""``read``: a trainer's settings as an allocation."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import BudgetError
from ..trainers import TRAINERS, Batching, read, trainer
from ..trainers.forms import flags, load
from ..trainers.target import Value
from .text import labelled_lines, whole, write_json


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    back = commands.add_parser(
        "read",
        help="a trainer's settings as an allocation",
        description="What a trainer's settings generate, what they leave open, and where they contradict "
        "themselves. Flags go after --, and override the file.",
    )
    back.add_argument("--from", dest="source", choices=TRAINERS, required=True, help="the trainer")
    back.add_argument("settings", nargs="+", metavar="FILE|FLAG", help="YAML, JSON, TOML, a launch script, or flags")
    back.add_argument("--world-size", type=whole, metavar="W", help="devices that train, if the settings do not say")
    back.add_argument("--problems", type=whole, metavar="D", help="training problems, where steps follow from epochs")
    back.add_argument("--strict", action="store_true", help="exit with status 1 on any remark, for CI")
    back.add_argument("--json", type=Path, metavar="FILE", help="also write the allocation")
    back.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Print the allocation, and remarks on the settings.

    Raises:
        BudgetError: The settings cannot be read or hold a value that is not possible, or a file is asked for and they
            do not determine an allocation.
    """
    settings, where = _settings(arguments.settings)
    known = trainer(arguments.source)
    found = read(known.name, settings, world_size=arguments.world_size, problems=arguments.problems, where=where)
    split = found.problems_generated != found.problems_per_batch
    spread = found.data_parallel != found.world_size
    yield from labelled_lines(
        (label, "unknown" if value is None else f"{value:,}")
        for label, value in (
            ("problems per batch", found.problems_per_batch),
            ("rollouts per problem", found.rollouts_per_problem),
            ("update steps", found.update_steps),
            ("rollouts", found.generated),
            *((("problems generated at once", found.problems_generated),) if split else ()),
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
    """Settings of a file, which flags after it override, or of flags alone, and where they come from."""
    first, *rest = given
    if "=" not in first and not first.startswith("-"):
        settings, where = {**load(Path(first)), **flags(rest)}, first
    else:
        settings, where = flags(given), "the flags"
    if not settings:
        raise BudgetError(f"{where}: no settings were given; give a file, or flags after --")
    return settings, where


def _document(found: Batching) -> dict[str, Any]:
    """A batching with an allocation."""
    assert found.allocation is not None
    return {
        **asdict(found.allocation),
        "rollouts": found.generated,
        "baseline_rollouts_per_problem": found.baseline_rollouts,
        "problems_generated_at_once": found.problems_generated,
        "devices": found.world_size,
        "data_parallel_ranks": found.data_parallel,
        "inconsistent": found.inconsistent,
        "notes": found.notes,
    }

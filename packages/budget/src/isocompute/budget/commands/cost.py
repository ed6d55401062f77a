"""``cost``: what rollouts cost in tokens, FLOPs, device-hours and money."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..checks import whole as checked
from ..errors import BudgetError
from ..planning.compute import prompt_tokens
from ..planning.costs import Estimate, Setting, estimate
from ..planning.devices import price
from ..units import Interval, Quantity, Rollouts, merged
from . import models
from .models import format_figure, memory_line
from .text import aligned_table, whole, write_json

Row = tuple[float, float, float]
"""Low, likely and high."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    cost = commands.add_parser(
        "cost",
        help="what rollouts cost in tokens, FLOPs, device-hours and money",
        description="Estimate what generating rollouts and training on them costs, with an interval and everything "
        "that it rests on.",
    )
    cost.add_argument("--rollouts", type=whole, required=True, metavar="C", help="rollouts")
    cost.add_argument("--rollouts-per-problem", type=whole, default=1, metavar="n", help="responses sharing a prompt")
    cost.add_argument("--world-size", type=whole, default=1, metavar="W", help="devices, for hours and memory")
    cost.add_argument("--micro-batch", type=whole, default=1, metavar="m", help="rollouts in one pass of a device")
    models.add(cost, required=True)
    cost.add_argument("--json", type=Path, metavar="FILE", help="also write the figures")
    cost.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Print the estimate.

    Raises:
        BudgetError: The model, the response tokens or the device is missing, a number is not possible, or the file
            cannot be written.
    """
    setting = models.setting(arguments)
    if setting is None:
        raise BudgetError("the model, the response tokens and the device must be given")
    world = checked(arguments.world_size, "world_size", least=1)
    rollouts = Rollouts(arguments.rollouts)
    found = estimate(rollouts, setting, rollouts_per_problem=arguments.rollouts_per_problem)
    money = None if setting.price is None else price(found.time, setting.price)
    rows = _rows(rollouts, setting, found, world)
    if money is not None:
        rows[f"cost ({money.likely.currency})"] = _amounts(money)
    assumptions = merged(found.time.assumptions, () if money is None else money.assumptions)
    micro_batch = checked(arguments.micro_batch, "micro_batch", least=1)
    held = setting.memory(world_size=world, micro_batch=micro_batch)
    yield from aligned_table(
        [f"{arguments.rollouts:,} rollouts", "low", "likely", "high"],
        [[name, *map(format_figure, row)] for name, row in rows.items()],
    )
    yield ""
    if setting.model.layers is not None:
        yield f"attention is {found.flops.attention_share:.1%} of the FLOPs"
    if found.flops.sharing_saved:
        yield f"sharing prompts saves {format_figure(found.flops.sharing_saved.amount)} FLOPs of prefill"
    yield memory_line(held, setting.device)
    for sentence in assumptions:
        yield f"assumed: {sentence}"
    if arguments.json is not None:
        figures = {name: dict(zip(("low", "likely", "high"), row, strict=True)) for name, row in rows.items()}
        document = {"rollouts": arguments.rollouts, "figures": figures, "memory_bytes": held.total}
        write_json({**document, "assumptions": list(assumptions)}, arguments.json)


def _rows(rollouts: Rollouts, setting: Setting, found: Estimate, world: int) -> dict[str, Row]:
    """The figures by their names."""
    prompts = prompt_tokens(rollouts, setting.lengths).amount
    return {
        "prompt tokens": (prompts, prompts, prompts),
        "response tokens": _amounts(found.tokens),
        "FLOPs of sampling": _amounts(found.flops.generation),
        "FLOPs of training": _amounts(found.flops.training),
        "device-hours of sampling": _amounts(found.sampling, 3600),
        "device-hours of training": _amounts(found.training, 3600),
        "device-hours": _amounts(found.time, 3600),
        **({f"hours on {world} devices": _amounts(found.time, 3600 * world)} if world > 1 else {}),
    }


def _amounts(interval: Interval[Any], unit: float = 1) -> Row:
    """An interval's numbers, in a multiple of its unit."""
    parts: tuple[Quantity, ...] = (interval.low, interval.likely, interval.high)
    low, likely, high = (part.amount / unit for part in parts)
    return low, likely, high

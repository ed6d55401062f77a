"""``cost``: what rollouts cost in tokens, FLOPs, device-hours and money."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..compute import prompt_tokens, response_tokens, work
from ..counts import whole as checked
from ..devices import GIBIBYTE, device_time, memory, price
from ..errors import BudgetError
from ..units import Interval, Quantity, Rollouts, merged
from . import models
from .text import aligned, whole, write_json


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
    cost.add_argument("--micro-batch", type=whole, default=1, metavar="m", help="rollouts of one pass of a device")
    models.add(cost, required=True)
    cost.add_argument("--json", type=Path, metavar="FILE", help="also write the figures")
    cost.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> Iterable[str]:
    setting = models.setting(arguments)
    if setting is None:
        raise BudgetError("the model, the response tokens and the device must be said")
    world = checked(arguments.world_size, "world_size", least=1)
    rollouts = Rollouts(arguments.rollouts)
    tokens = response_tokens(rollouts, setting.lengths)
    flops = work(
        rollouts,
        model=setting.model,
        lengths=setting.lengths,
        rollouts_per_problem=arguments.rollouts_per_problem,
        shared_prompt=setting.shared_prompt,
        extra_forwards=setting.extra_forwards,
    )
    sampling, training = device_time(
        flops,
        setting.device,
        utilisation=setting.utilisation,
        tokens=tokens,
        tokens_per_second=setting.tokens_per_second,
    )
    time = sampling + training
    money = price(time, setting.price) if setting.price is not None else None
    rows: dict[str, tuple[float, float, float]] = {
        "prompt tokens": (prompt_tokens(rollouts, setting.lengths).amount,) * 3,
        "response tokens": _of(tokens),
        "FLOPs of sampling": _of(flops.generation),
        "FLOPs of training": _of(flops.training),
        "device-hours of sampling": _of(sampling, 3600),
        "device-hours of training": _of(training, 3600),
        "device-hours": _of(time, 3600),
        **({f"hours on {world} devices": _of(time, 3600 * world)} if world > 1 else {}),
        **({f"cost ({money.likely.currency})": _of(money)} if money is not None else {}),
    }
    assumptions = merged(time.assumptions, money.assumptions if money is not None else ())
    held = memory(
        setting.model,
        setting.lengths,
        world_size=world,
        micro_batch=checked(arguments.micro_batch, "micro_batch", least=1),
    )
    yield from aligned(
        [f"{arguments.rollouts:,} rollouts", "low", "likely", "high"],
        [[name, *map(figure, row)] for name, row in rows.items()],
    )
    yield ""
    if setting.model.layers is not None:
        yield f"attention is {flops.attention_share:.1%} of the FLOPs"
    if flops.sharing_saved:
        yield f"sharing prompts saves {figure(flops.sharing_saved.amount)} FLOPs of prefill"
    yield memory_line(held.total, held.activations, setting.device.memory, setting.device.name)
    for sentence in assumptions:
        yield f"assumed: {sentence}"
    if arguments.json is not None:
        figures = {name: dict(zip(("low", "likely", "high"), row, strict=True)) for name, row in rows.items()}
        document = {"rollouts": arguments.rollouts, "figures": figures, "memory_bytes": held.total}
        write_json({**document, "assumptions": list(assumptions)}, arguments.json)


def memory_line(total: int, activations: int, there: int, name: str) -> str:
    """What a device holds, and whether it does."""
    left_out = "" if activations else ", without activations (say the layers and the width)"
    verdict = "" if total <= there else ", which does not fit"
    return (
        f"memory: {total / GIBIBYTE:,.1f} of {there / GIBIBYTE:,.1f} GiB of {name}, for 16 bytes a parameter shared by "
        f"the devices and an engine's weights{left_out}{verdict}"
    )


def figure(value: float) -> str:
    """A number as it is read best: whole, with two decimals, or as a power of ten."""
    if value >= 1e12:
        return f"{value:.3g}"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.2f}"


def _of(interval: Interval[Any], unit: float = 1) -> tuple[float, float, float]:
    parts: tuple[Quantity, ...] = (interval.low, interval.likely, interval.high)
    low, likely, high = (part.amount / unit for part in parts)
    return low, likely, high

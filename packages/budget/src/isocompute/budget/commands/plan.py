"""``plan``: the feasible splits of a budget and, given a model and a device, their cost."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import Any

from ..contract.command_line import new_file
from ..errors import BudgetError, plural
from ..planning.compute import (
    DEVICES,
    GIBIBYTE,
    SPREAD,
    Allocation,
    Constraints,
    Lengths,
    Model,
    Setting,
    Utilisation,
    device,
    grid,
    price,
)
from .text import aligned_table, number, whole, whole_numbers, write_json


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    plan = commands.add_parser(
        "plan",
        help="the feasible splits of a budget, and what they cost",
        description="Check every split of a budget of C rollouts (sampled responses) into B_p problems per batch, "
        "n rollouts per problem and M update steps, C = B_p · n · M, and print which can be run and why the others "
        "cannot; with a learning rate or a model, the rate, time, memory and money of each.",
        epilog="example: isocompute-budget plan --rollouts 1M --problems 8000 --anchor 1e-6 --anchor-batch 1024",
    )
    plan.add_argument("--rollouts", type=whole, required=True, metavar="C", help="the budget, in rollouts")
    plan.add_argument(
        "--max-batch", type=whole, metavar="B_max", help="most rollouts of a batch (default: of all values)"
    )
    for name, symbol, first in (("rollouts-per-problem", "n", 2), ("problems-per-batch", "B_p", 8)):
        said = f"{name.replace('-', ' ')} that are tried (default: powers of two from {first})"
        plan.add_argument(f"--{name}", type=whole_numbers, default=(), metavar=f"{symbol},…", help=said)
    plan.add_argument(
        "--min-steps", type=whole, default=100, metavar="M", help="fewest update steps (default: %(default)s)"
    )
    plan.add_argument("--problems", type=whole, metavar="D", help="training problems")
    plan.add_argument("--max-epochs", type=number, metavar="E", help="maximum epochs over the problems")
    plan.add_argument("--world-size", type=whole, default=1, metavar="W", help="devices that share a batch")
    plan.add_argument("--cells", action="store_true", help="print every feasible split on a line of its own")
    rate = plan.add_argument_group("the learning rate, from one measured at another batch")
    rate.add_argument("--anchor", type=number, metavar="RATE", help="learning rate measured")
    rate.add_argument("--anchor-batch", type=whole, metavar="B", help="the batch it was measured at, in rollouts")
    said = "how it grows with the batch (default: %(default)s)"
    rate.add_argument("--scaling", choices=("sqrt", "linear", "constant"), default="sqrt", help=said)
    _add_model_arguments(plan)
    plan.add_argument("--micro-batch", type=whole, default=1, metavar="m", help="rollouts in one pass of a device")
    plan.add_argument("--json", type=new_file, metavar="FILE", help="also write all of it")
    plan.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Print the splits."""
    if (arguments.anchor is None) != (arguments.anchor_batch is None):
        raise BudgetError("a learning rate needs both --anchor and --anchor-batch")
    per_problem, per_batch = arguments.rollouts_per_problem, arguments.problems_per_batch
    if arguments.max_batch is None and not (per_problem and per_batch):
        raise BudgetError("give --max-batch, or values of --rollouts-per-problem and of --problems-per-batch")
    most = max(1, max(per_problem) * max(per_batch)) if arguments.max_batch is None else arguments.max_batch
    splits, left_out = grid(Constraints(**{**_given(Constraints, arguments), "max_batch": most}))
    counted = Counter(out.limit for out in left_out).most_common()
    reasons = [f"{plural(count, 'split')} with {limit}" for limit, count in counted]
    if not splits:
        none = f"no power of two from 2 is a group for batches of at most {most:,}"
        raise BudgetError(f"no split of {arguments.rollouts:,} rollouts can be run: {'; '.join(reasons) or none}")
    setting = _setting(arguments)
    rows = [_row(split, setting, arguments) for split in splits]
    yield (
        f"{arguments.rollouts:,} rollouts, batches up to {most:,}: {plural(len(splits), 'split')} of "
        f"{len(splits) + len(left_out):,} can be run"
    )
    yield ""
    yield from _lines(rows, reasons, setting, arguments)
    if arguments.json is not None:
        document = {
            "rollouts": arguments.rollouts,
            "max_batch": most,
            "cells": [{name: value for name, value in row.items() if name != "assumptions"} for row in rows],
            "assumptions": list(rows[0].get("assumptions", ())),
            "left_out": [asdict(out) for out in left_out],
        }
        write_json(document, arguments.json)


def _add_model_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options for the model, the lengths and the device."""
    group = command.add_argument_group("the model and the device, to estimate time, memory and money")
    said = "parameters, of all experts: 7B"
    group.add_argument("--model-parameters", dest="parameters", type=whole, metavar="N", help=said)
    group.add_argument("--active-parameters", type=whole, metavar="N", help="parameters of a token (default: all)")
    group.add_argument("--response-tokens", type=number, metavar="T", help="mean length of a response at first")
    group.add_argument("--device", choices=DEVICES, help="the accelerator")
    group.add_argument("--prompt-tokens", type=number, default=0.0, metavar="P", help="mean length of one (default: 0)")
    said = "mean response at the end, over that at first (default: 1)"
    group.add_argument("--response-growth", dest="growth", type=number, default=1.0, metavar="G", help=said)
    group.add_argument(
        "--spread",
        type=number,
        default=SPREAD,
        metavar="S",
        help="relative error of mean lengths (default: %(default)s)",
    )
    group.add_argument("--layers", type=whole, metavar="L", help="layers, for the attention term and the memory")
    group.add_argument("--width", type=whole, metavar="d", help="hidden size, for the same")
    group.add_argument("--vocabulary", type=whole, metavar="V", help="its size, for the logits and a head in float32")
    group.add_argument("--float32-head", action="store_true", help="the trainer computes logits in float32")
    for phase, doing in (("generation", "sampling"), ("training", "training")):
        said, shares = f"share of the peak while {doing}", getattr(Utilisation(), phase)
        name = f"--{phase}-utilisation"
        group.add_argument(name, dest=phase, type=_shares, default=shares, metavar="LOW,LIKELY,HIGH", help=said)
    group.add_argument("--tokens-per-second", type=number, metavar="R", help="sampling of one device, as measured")
    group.add_argument(
        "--extra-forwards", type=whole, default=0, metavar="F", help="forward passes besides (reference, …)"
    )
    said = "the engine has no prefix cache"
    group.add_argument("--no-shared-prompt", dest="shared_prompt", action="store_false", help=said)
    group.add_argument("--price", type=number, metavar="X", help="price of one device-hour")
    group.add_argument("--currency", default="USD", help="currency of the price (default: %(default)s)")


def _setting(arguments: argparse.Namespace) -> Setting | None:
    """The setting that the options describe, or None if none of them is given."""
    need = {"--model-parameters": "parameters", "--response-tokens": "response_tokens", "--device": "device"}
    missing = [option for option, name in need.items() if getattr(arguments, name) is None]
    if len(missing) == len(need):
        return None
    if missing:
        raise BudgetError(f"an estimate of time and memory needs {' and '.join(missing)} as well")
    parts = {
        "model": Model(**_given(Model, arguments)),
        "lengths": Lengths(**_given(Lengths, arguments)),
        "utilisation": Utilisation(**_given(Utilisation, arguments)),
        "device": device(arguments.device),
    }
    return Setting(**{**_given(Setting, arguments), **parts})


def _given(of: type[Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """The options named like the fields of a dataclass."""
    return {field.name: getattr(arguments, field.name) for field in fields(of) if hasattr(arguments, field.name)}


def _shares(text: str) -> tuple[float, float, float]:
    parts = [number(part) for part in text.split(",")]
    if len(parts) not in (1, 3):
        raise argparse.ArgumentTypeError(f"{text!r} is not one share of the peak or three (low,likely,high)")
    low, likely, high = parts * 3 if len(parts) == 1 else parts
    return low, likely, high


def _figure(value: float) -> str:
    """A number in readable form: whole, with two decimals, or in scientific notation."""
    if value >= 1e12:
        return f"{value:.3g}"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.2f}"


COUNTS = ("problems_per_batch", "rollouts_per_problem", "batch_rollouts", "update_steps", "rollouts")
"""Columns of whole numbers."""
INTERVALS = ("seconds_per_step", "device_hours", "cost")
"""Columns of low, likely and high."""


def _row(a: Allocation, setting: Setting | None, arguments: argparse.Namespace) -> dict[str, Any]:
    """Values of one split by column; the learning rate and times only if the arguments ask for them."""
    row: dict[str, Any] = {name: getattr(a, name) for name in COUNTS} | {"unused": arguments.rollouts - a.rollouts}
    if arguments.problems is not None:
        row["epochs"] = a.epochs(arguments.problems)
    if arguments.anchor is not None:
        row["learning_rate"] = a.learning_rate(
            anchor=arguments.anchor, anchor_batch=arguments.anchor_batch, scaling=arguments.scaling
        )
    if setting is not None:
        step = setting.estimate(a.batch_rollouts, rollouts_per_problem=a.rollouts_per_problem).time
        row["seconds_per_step"] = step.times(1 / arguments.world_size).amounts
        row["device_hours"] = step.times(a.update_steps / 3600).amounts
        if arguments.price is not None:
            money = price(step.times(a.update_steps), arguments.price, arguments.currency)
            row["cost"], step = money.amounts, money
        row["assumptions"] = step.assumptions
    return row


def _lines(
    rows: list[dict[str, Any]], reasons: list[str], setting: Setting | None, arguments: argparse.Namespace
) -> Iterable[str]:
    """The splits, why others were left out, and what the splits cost, as lines."""
    if arguments.cells or setting is not None or arguments.anchor is not None:
        header = ["B_p", "n", "batch", "steps", "rollouts", "unused"]
        header += [name.replace("_", " ") for name in ("epochs", "learning_rate", *INTERVALS) if name in rows[0]]
        yield from aligned_table(header, [_cells(row) for row in rows])
    else:
        steps = {(row["problems_per_batch"], row["rollouts_per_problem"]): row["update_steps"] for row in rows}
        down, across = (sorted({*axis}) for axis in zip(*steps, strict=True))
        yield "update steps of each split, problems per batch down and rollouts per problem across"
        cells = [[b, *(steps.get((b, n), "-") for n in across)] for b in down]
        yield from aligned_table(["B_p \\ n", *map(str, across)], cells)
    if reasons or setting is not None:
        yield ""
    yield from (f"left out: {reason}" for reason in reasons)
    if setting is not None:
        needed = setting.memory(world_size=arguments.world_size, micro_batch=arguments.micro_batch)
        tokens = setting.lengths.tokens_of(arguments.rollouts)
        yield f"response tokens: {tokens.likely:,.0f} ({tokens.low:,.0f}-{tokens.high:,.0f})"
        left_out = "" if needed.activations else ", without activations (give the layers and the width)"
        verdict = "" if needed.total <= setting.device.memory else ", which does not fit"
        yield (
            f"memory: {needed.total / GIBIBYTE:,.1f} of {setting.device.memory / GIBIBYTE:,.1f} GiB of "
            f"{setting.device.name}, for 16 bytes per parameter shared by the devices and an engine's weights"
            f"{left_out}{verdict}"
        )
        alone = "no device waits for another, nor for the longest response of a batch"
        yield from (f"assumed: {sentence}" for sentence in (*rows[0]["assumptions"], alone))


def _cells(row: dict[str, Any]) -> list[object]:
    cells = [row[name] for name in (*COUNTS, "unused")]
    cells += [f"{row[name]:{form}}" for name, form in (("epochs", ",.2f"), ("learning_rate", ".3g")) if name in row]
    for name in INTERVALS:
        if name in row:
            low, likely, high = map(_figure, row[name])
            cells.append(f"{likely} ({low}-{high})")
    return cells

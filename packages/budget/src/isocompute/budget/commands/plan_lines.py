"""A plan in lines of text, and as a document."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from ..planning.compute import Interval, response_tokens
from ..planning.costs import estimate
from ..planning.devices import price
from ..planning.splits import Cell, Grid
from . import models
from .models import format_figure, memory_line
from .text import aligned_table, plural

INTERVALS = ("seconds_per_step", "device_hours", "cost")
"""Columns of low, likely and high."""


def plan_row(cell: Cell, arguments: argparse.Namespace) -> dict[str, Any]:
    """The columns of one split.

    Returns:
        Values by column; those of the learning rate and of time only where the arguments ask for them.
    """
    a = cell.allocation
    row: dict[str, Any] = {
        "problems_per_batch": a.problems_per_batch,
        "rollouts_per_problem": a.rollouts_per_problem,
        "batch_rollouts": a.batch_rollouts,
        "update_steps": a.update_steps,
        "rollouts": a.rollouts,
        "unused": cell.unused,
    }
    if cell.epochs is not None:
        row["epochs"] = cell.epochs
    if arguments.anchor is not None:
        row["learning_rate"] = a.learning_rate(
            anchor=arguments.anchor, anchor_batch=arguments.anchor_batch, scaling=arguments.scaling
        )
    setting = models.setting(arguments)
    if setting is not None:
        found = estimate(a.batch_rollouts, setting, rollouts_per_problem=a.rollouts_per_problem)
        step = found.time
        row["seconds_per_step"] = _amounts(step.times(1 / arguments.world_size))
        row["device_hours"] = _amounts(step.times(a.update_steps / 3600))
        if arguments.price is not None:
            money = price(step.times(a.update_steps), arguments.price, arguments.currency)
            row["cost"], step = _amounts(money), money
        row["assumptions"] = step.assumptions
    return row


def _amounts(interval: Interval) -> list[float]:
    return [interval.low, interval.likely, interval.high]


def plan_lines(found: Grid, rows: list[dict[str, Any]], arguments: argparse.Namespace) -> Iterable[str]:
    """The splits and what was left out, as lines."""
    limits = found.constraints
    yield (
        f"{limits.rollouts:,} rollouts, batches up to {limits.max_batch:,}: "
        f"{plural(len(found.cells), 'split')} of {len(found.cells) + len(found.left_out):,} can be run"
    )
    yield ""
    setting = models.setting(arguments)
    listed = arguments.cells or setting is not None or arguments.anchor is not None
    yield from _cell_lines(rows) if listed else _table_lines(found, rows)
    if found.limits or setting is not None:
        yield ""
    for limit, count in found.limits:
        yield f"left out: {plural(count, 'split')} with {limit}"
    if setting is not None:
        held = setting.memory(world_size=arguments.world_size, micro_batch=arguments.micro_batch)
        tokens = response_tokens(limits.rollouts, setting.lengths)
        yield f"response tokens: {tokens.likely:,.0f} ({tokens.low:,.0f}-{tokens.high:,.0f})"
        yield memory_line(held, setting.device)
        for sentence in rows[0]["assumptions"]:
            yield f"assumed: {sentence}"


def _cell_lines(rows: list[dict[str, Any]]) -> Iterable[str]:
    """Every split on a line of its own."""
    header = ["B_p", "n", "batch", "steps", "rollouts", "unused"]
    header += [name for name in ("epochs", "learning_rate", *INTERVALS) if name in rows[0]]
    names = [name if name == "B_p" else name.replace("_", " ") for name in header]
    return aligned_table(names, [_cells(row) for row in rows])


def _table_lines(found: Grid, rows: list[dict[str, Any]]) -> Iterable[str]:
    """The update steps of all splits as a table."""
    limits = found.constraints
    steps = {(row["problems_per_batch"], row["rollouts_per_problem"]): row["update_steps"] for row in rows}
    across = [n for n in limits.rollouts_per_problem if any(n == key[1] for key in steps)]
    down = [b for b in limits.problems_per_batch if any(b == key[0] for key in steps)]
    yield "update steps of each split, problems per batch down and rollouts per problem across"
    yield from aligned_table(
        ["B_p \\ n", *map(str, across)],
        [[f"{b:,}", *(f"{steps[b, n]:,}" if (b, n) in steps else "-" for n in across)] for b in down],
    )


def _cells(row: dict[str, Any]) -> list[str]:
    cells = [f"{row['problems_per_batch']:,}", f"{row['rollouts_per_problem']:,}", f"{row['batch_rollouts']:,}"]
    cells += [f"{row[name]:,}" for name in ("update_steps", "rollouts", "unused")]
    if "epochs" in row:
        cells.append(f"{row['epochs']:,.2f}")
    if "learning_rate" in row:
        cells.append(f"{row['learning_rate']:.3g}")
    for name in INTERVALS:
        if name in row:
            low, likely, high = row[name]
            cells.append(f"{format_figure(likely)} ({format_figure(low)}-{format_figure(high)})")
    return cells


def document(found: Grid, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole plan, to be written as JSON."""
    return {
        "rollouts": found.constraints.rollouts,
        "max_batch": found.constraints.max_batch,
        "cells": [{name: value for name, value in row.items() if name != "assumptions"} for row in rows],
        "assumptions": list(rows[0].get("assumptions", ())),
        "left_out": [asdict(out) for out in found.left_out],
    }

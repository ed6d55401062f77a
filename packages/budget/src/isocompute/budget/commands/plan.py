"""``plan``: the feasible splits of a budget, and a sweep that fits a share of it."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..compute import response_tokens, work
from ..devices import device_time, memory
from ..errors import BudgetError
from ..planning import Cell, Constraints, Grid, grid
from ..sweep import Sweep, design
from ..units import Rollouts
from . import models
from .cost import figure, memory_line
from .text import aligned, number, plural, several, whole, write_json

SWEEP_PROBLEMS = 32
LISTED = 4


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    plan = commands.add_parser(
        "plan",
        help="the feasible splits of a budget, and a sweep that fits a share of it",
        description="Look at every split C = B_p · n · M of a budget, say which can be run and why others cannot, "
        "and design a sweep that measures them at small scale.",
    )
    plan.add_argument("--rollouts", type=whole, required=True, metavar="C", help="the budget")
    plan.add_argument("--max-batch", type=whole, required=True, metavar="B_max", help="most rollouts in a batch")
    plan.add_argument(
        "--rollouts-per-problem", type=several, default=(), metavar="n,…", help="default: powers of two from 2"
    )
    plan.add_argument(
        "--problems-per-batch", type=several, default=(), metavar="B_p,…", help="default: powers of two from 8"
    )
    plan.add_argument("--min-steps", type=whole, default=100, metavar="M", help="fewest (default: %(default)s)")
    plan.add_argument("--problems", type=whole, metavar="D", help="training problems")
    plan.add_argument("--max-epochs", type=number, metavar="E", help="most visits to each problem")
    plan.add_argument("--world-size", type=whole, default=1, metavar="W", help="devices that share a batch")
    plan.add_argument("--cells", action="store_true", help="print every feasible split on a line of its own")
    rate = plan.add_argument_group("the learning rate, from one measured at another batch")
    rate.add_argument("--anchor", type=number, metavar="RATE", help="learning rate measured")
    rate.add_argument("--anchor-batch", type=whole, metavar="B", help="the batch it was measured at, in rollouts")
    rate.add_argument("--scaling", choices=("sqrt", "linear", "constant"), default="sqrt")
    sweep = plan.add_argument_group("a sweep before the run")
    sweep.add_argument("--sweep-share", type=number, metavar="S", help="share of the budget for it")
    sweep.add_argument("--sweep-rollouts", type=whole, metavar="C", help="or rollouts for it")
    sweep.add_argument(
        "--sweep-problems-per-batch", type=several, metavar="B_p,…", help=f"default: {SWEEP_PROBLEMS}, or the largest"
    )
    sweep.add_argument(
        "--sweep-min-steps",
        type=whole,
        default=50,
        metavar="M",
        help="before a first evaluation (default: %(default)s)",
    )
    sweep.add_argument("--seeds", type=whole, default=1, metavar="K", help="runs of each cell (default: %(default)s)")
    sweep.add_argument(
        "--evaluation-rollouts", type=whole, default=0, metavar="E", help="rollouts of one evaluation (default: 0)"
    )
    sweep.add_argument(
        "--points-per-octave", type=whole, default=1, metavar="K", help="evaluations a doubling (default: %(default)s)"
    )
    models.add(plan, required=False)
    plan.add_argument("--micro-batch", type=whole, default=1, metavar="m", help="rollouts of one pass of a device")
    plan.add_argument("--json", type=Path, metavar="FILE", help="also write all of it")
    plan.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> Iterable[str]:
    if arguments.sweep_share is not None and not 0 < arguments.sweep_share < 1:
        raise BudgetError(f"the sweep's share is {arguments.sweep_share}; it must lie within 0 and 1")
    if arguments.sweep_share is not None and arguments.sweep_rollouts is not None:
        raise BudgetError("--sweep-share and --sweep-rollouts both say what the sweep may spend; give one")
    if (arguments.anchor is None) != (arguments.anchor_batch is None):
        raise BudgetError("a learning rate needs both --anchor and --anchor-batch")
    share: int | None = arguments.sweep_rollouts
    if arguments.sweep_share is not None:
        share = int(arguments.rollouts * arguments.sweep_share)
    if share is not None and share >= arguments.rollouts:
        raise BudgetError(f"a sweep of {share:,} rollouts leaves nothing of {arguments.rollouts:,} for the run")
    # What the sweep takes is not there for the run.
    budget = arguments.rollouts - (share or 0)
    common = {
        "max_batch": arguments.max_batch,
        "rollouts_per_problem": arguments.rollouts_per_problem,
        "problems": arguments.problems,
        "max_epochs": arguments.max_epochs,
        "world_size": arguments.world_size,
    }
    problems = arguments.problems_per_batch or tuple(b for b in _powers(8, arguments.max_batch))
    found = grid(Constraints(rollouts=budget, problems_per_batch=problems, min_steps=arguments.min_steps, **common))
    if not found.cells:
        left_out = [f"{plural(count, 'split')} with {limit}" for limit, count in found.limits]
        reason = (
            "; ".join(left_out) or f"no power of two from 2 is a group for batches of at most {arguments.max_batch:,}"
        )
        raise BudgetError(f"no split of {budget:,} rollouts can be run: {reason}")
    sweep = None
    if share is not None:
        tried = arguments.sweep_problems_per_batch or (_compared(found),)
        sweep = design(
            Constraints(rollouts=budget, problems_per_batch=tried, min_steps=arguments.sweep_min_steps, **common),
            total=share,
            seeds=arguments.seeds,
            evaluation_rollouts=arguments.evaluation_rollouts,
            points_per_octave=arguments.points_per_octave,
        )
    rows = [_row(cell, arguments) for cell in found.cells]
    kept = "" if share is None else f" ({share:,} of the {arguments.rollouts:,} are kept for a sweep)"
    yield from _printed(found, rows, arguments, kept)
    if sweep is not None:
        yield ""
        yield from _sweep_lines(sweep)
    if arguments.json is not None:
        write_json(_document(found, rows, sweep), arguments.json)


def _compared(found: Grid) -> int:
    """The problems per batch that a sweep holds fixed: 32, or the most below it that leave values of n to compare."""
    splits = Counter(cell.allocation.problems_per_batch for cell in found.cells)
    several = [problems for problems, count in splits.items() if count > 1 and problems <= SWEEP_PROBLEMS]
    return max(several, default=min(splits))


def _powers(first: int, most: int) -> Iterable[int]:
    while first <= most:
        yield first
        first *= 2


def _row(cell: Cell, arguments: argparse.Namespace) -> dict[str, Any]:
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
        flops = work(
            Rollouts(a.batch_rollouts),
            model=setting.model,
            lengths=setting.lengths,
            rollouts_per_problem=a.rollouts_per_problem,
            shared_prompt=setting.shared_prompt,
            extra_forwards=setting.extra_forwards,
        )
        sampling, training = device_time(
            flops,
            setting.device,
            utilisation=setting.utilisation,
            tokens=response_tokens(Rollouts(a.batch_rollouts), setting.lengths),
            tokens_per_second=setting.tokens_per_second,
        )
        step = sampling + training
        row["seconds_per_step"] = [part.amount / arguments.world_size for part in (step.low, step.likely, step.high)]
        row["assumptions"] = step.assumptions
        row["device_hours"] = [part.hours * a.update_steps for part in (step.low, step.likely, step.high)]
    return row


def _printed(found: Grid, rows: list[dict[str, Any]], arguments: argparse.Namespace, kept: str) -> Iterable[str]:
    limits = found.constraints
    yield (
        f"{limits.rollouts:,} rollouts{kept}, batches up to {limits.max_batch:,}: "
        f"{plural(len(found.cells), 'split')} of {len(found.cells) + len(found.left_out):,} can be run"
    )
    yield ""
    if arguments.cells:
        header = ["B_p", "n", "batch", "steps", "rollouts", "unused"]
        header += [name for name in ("epochs", "learning_rate", "seconds_per_step", "device_hours") if name in rows[0]]
        yield from aligned(
            [name if name == "B_p" else name.replace("_", " ") for name in header], [_cells(row) for row in rows]
        )
    else:
        steps = {(row["problems_per_batch"], row["rollouts_per_problem"]): row["update_steps"] for row in rows}
        across = [n for n in limits.rollouts_per_problem if any(n == key[1] for key in steps)]
        down = [b for b in limits.problems_per_batch if any(b == key[0] for key in steps)]
        yield "update steps of each split, problems per batch down and rollouts per problem across"
        yield from aligned(
            ["B_p \\ n", *map(str, across)],
            [[f"{b:,}", *(f"{steps[b, n]:,}" if (b, n) in steps else "-" for n in across)] for b in down],
        )
    setting = models.setting(arguments)
    if found.limits or setting is not None:
        yield ""
    for limit, count in found.limits:
        yield f"left out: {plural(count, 'split')} with {limit}"
    if setting is not None:
        held = memory(
            setting.model, setting.lengths, world_size=arguments.world_size, micro_batch=arguments.micro_batch
        )
        yield memory_line(held.total, held.activations, setting.device.memory, setting.device.name)
        if arguments.cells:
            for sentence in rows[0]["assumptions"]:
                yield f"assumed: {sentence}"


def _cells(row: dict[str, Any]) -> list[str]:
    cells = [f"{row['problems_per_batch']:,}", f"{row['rollouts_per_problem']:,}", f"{row['batch_rollouts']:,}"]
    cells += [f"{row[name]:,}" for name in ("update_steps", "rollouts", "unused")]
    if "epochs" in row:
        cells.append(f"{row['epochs']:,.2f}")
    if "learning_rate" in row:
        cells.append(f"{row['learning_rate']:.3g}")
    for name in ("seconds_per_step", "device_hours"):
        if name in row:
            low, likely, high = row[name]
            cells.append(f"{figure(likely)} ({figure(low)}-{figure(high)})")
    return cells


def _sweep_lines(sweep: Sweep) -> Iterable[str]:
    yield (
        f"a sweep of {sweep.spent:,} of {sweep.total:,} rollouts: {sweep.training:,} for training and "
        f"{sweep.evaluating:,} for evaluations"
    )
    yield "evaluated at " + ", ".join(f"{point:,}" for point in sweep.evaluations) + " rollouts"
    if sweep.compared:
        yield f"compared from {sweep.compared[0]:,} to {sweep.compared[-1]:,} rollouts, where two cells or more are"
    else:
        yield "no two cells reach the same evaluation, so nothing can be compared: fewer seeds or steps would help"
    yield ""
    yield from aligned(
        ["B_p", "n", "batch", "steps", "rollouts", "runs", "evaluations"],
        [
            [
                f"{cell.allocation.problems_per_batch:,}",
                cell.allocation.rollouts_per_problem,
                cell.allocation.batch_rollouts,
                cell.allocation.update_steps,
                cell.allocation.rollouts,
                cell.seeds,
                cell.points,
            ]
            for cell in sweep.cells
        ],
    )
    for limit, outs in sweep.reasons:
        if len(outs) > LISTED:
            yield f"left out: {plural(len(outs), 'cell')} with {limit}"
            continue
        for out in outs:
            yield f"left out: B_p {out.problems_per_batch:,}, n {out.rollouts_per_problem:,}: {limit}, {out.reason}"


def _document(found: Grid, rows: list[dict[str, Any]], sweep: Sweep | None) -> dict[str, Any]:
    def told(outs: Iterable[Any]) -> list[dict[str, Any]]:
        return [
            {
                "problems_per_batch": out.problems_per_batch,
                "rollouts_per_problem": out.rollouts_per_problem,
                "limit": out.limit,
                "reason": out.reason,
            }
            for out in outs
        ]

    document: dict[str, Any] = {
        "rollouts": found.constraints.rollouts,
        "max_batch": found.constraints.max_batch,
        "cells": [{name: value for name, value in row.items() if name != "assumptions"} for row in rows],
        "assumptions": list(rows[0].get("assumptions", ())),
        "left_out": told(found.left_out),
    }
    if sweep is not None:
        document["sweep"] = {
            "total": sweep.total,
            "training": sweep.training,
            "evaluating": sweep.evaluating,
            "evaluations": list(sweep.evaluations),
            "cells": [
                {
                    "problems_per_batch": cell.allocation.problems_per_batch,
                    "rollouts_per_problem": cell.allocation.rollouts_per_problem,
                    "update_steps": cell.allocation.update_steps,
                    "rollouts": cell.allocation.rollouts,
                    "seeds": cell.seeds,
                }
                for cell in sweep.cells
            ],
            "left_out": told(sweep.left_out),
        }
    return document

"""``difficulty``: measure how often a model solves each problem, or count it in rollouts that are there."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import polars as pl

from ..errors import RolloutError
from ..scoring.evaluation import with_pass_rates
from .output import SOURCE, Output, Source, add_flags, deliver, faults, read
from .run import begin, place_shard
from .settings import add_sampling, refuse_unused
from .store import Groups


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    difficulty = commands.add_parser(
        "difficulty",
        help="measure pass rates of problems",
        description="Measure pass rates of problems with --model, or count them in ROLLOUTS. Killed and started again "
        "with the same arguments, measuring continues where it stopped.",
    )
    difficulty.add_argument("rollouts", nargs="?", help=f"responses sampled earlier: {SOURCE}")
    difficulty.add_argument("--problems", required=True, help=SOURCE)
    difficulty.add_argument(
        "--fresh",
        action="store_true",
        help="measure problems that earlier responses selected, with seeds of their own: add fresh pass rates",
    )
    add_sampling(difficulty, required=False, samples=16, shards=True)
    add_flags(difficulty)
    difficulty.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Measure the problems and say their mean pass rate."""
    if (arguments.rollouts is None) == (arguments.model is None):
        raise RolloutError("difficulty needs either rollouts to count in or --model to measure with")
    if arguments.model is None:
        refuse_unused(arguments)
    else:
        place_shard(arguments, "problems")
    with contextlib.ExitStack() as stack:
        yield from deliver(arguments, partial(_difficulty, stack=stack))


def _difficulty(arguments: argparse.Namespace, *, stack: contextlib.ExitStack) -> Output:
    problems = read(arguments.problems, "problems")
    sources: dict[str, Source] = {"problems": problems}
    params: Mapping[str, Any] = {"fresh": arguments.fresh}
    store: Groups | None = None
    dropped: pl.DataFrame | None = None
    if arguments.model is None:
        given = read(arguments.rollouts, "rollouts")
        sources["rollouts"] = given
        wanted, rollouts = problems.table, given.table
    else:
        phase = "baseline" if arguments.fresh else "difficulty"
        sampling = begin(arguments, stack, problems=problems, phase=phase)
        wanted, params = sampling.problems, {**params, **sampling.params}
        rollouts = sampling.rollouts()
        store, dropped = sampling.finished(rollouts), sampling.dropped
    measured = with_pass_rates(wanted, rollouts, fresh=arguments.fresh)
    if measured.is_empty() and arguments.model is None:
        raise RolloutError(f"{arguments.rollouts}: answers none of the problems of {arguments.problems}")
    if measured.is_empty():
        raise RolloutError(f"all {len(rollouts):,} responses were aborted: nothing was measured")
    besides = [] if arguments.rollouts_out is None else [("rollouts", rollouts, arguments.rollouts_out)]
    return Output(
        name="problems",
        table=measured,
        sources=sources,
        params=params,
        besides=besides,
        store=store,
        dropped=dropped,
        **_figures(measured, rollouts, fresh=arguments.fresh, requested=len(wanted)),
    )


def _figures(measured: pl.DataFrame, rollouts: pl.DataFrame, *, fresh: bool, requested: int) -> dict[str, Any]:
    name = "fresh_pass_rate" if fresh else "pass_rate"
    mean = float(measured[name].to_numpy().mean())
    parts = [f"{len(measured):,} problems", f"mean {name.replace('_', ' ')} {mean:.3f}", *faults(rollouts)]
    summary = ", ".join(parts)
    if len(measured) < requested:
        summary = f"{requested - len(measured):,} problems have no responses; {summary}"
    return {"summary": summary, "metrics": {f"mean_{name}": mean}}

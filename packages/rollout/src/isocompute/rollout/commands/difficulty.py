"""``difficulty``: measure how often a model solves each problem, or count it in rollouts that are there."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterable
from typing import Any

from ..errors import RolloutError
from ..scoring.evaluation import with_pass_rates
from .output import SOURCE, Output, add_flags, check, deliver, faults, read
from .run import begin, place_shard
from .settings import add_sampling, refuse_unused


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    difficulty = commands.add_parser(
        "difficulty",
        help="measure pass rates of problems",
        description="Measure pass rates of problems with --model, or count them in ROLLOUTS. Killed and started again "
        "with the same arguments, measuring continues where it stopped.",
        epilog="example: isocompute-rollout difficulty --problems problems.parquet --model Qwen/Qwen2.5-0.5B "
        "--out measured.parquet",
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
    check(arguments)
    problems = read(arguments.problems, "problems")
    sources, params, kept = {"problems": problems}, {"fresh": arguments.fresh}, dict[str, Any]()
    with contextlib.ExitStack() as stack:
        if arguments.model is None:
            sources["rollouts"] = read(arguments.rollouts, "rollouts")
            wanted, rollouts = problems.table, sources["rollouts"].table
        else:
            phase = "baseline" if arguments.fresh else "difficulty"
            sampling = stack.enter_context(begin(arguments, problems=problems, phase=phase))
            wanted, rollouts = sampling.problems, sampling.rollouts()
            params |= sampling.params
            kept = {"store": sampling.finished(rollouts), "dropped": sampling.dropped}
        measured = with_pass_rates(wanted, rollouts, fresh=arguments.fresh)
        if measured.is_empty() and arguments.model is None:
            raise RolloutError(f"{arguments.rollouts}: answers none of the problems of {arguments.problems}")
        if measured.is_empty():
            raise RolloutError(f"all {len(rollouts):,} responses were aborted: nothing was measured")
        name = "fresh_pass_rate" if arguments.fresh else "pass_rate"
        mean = float(measured[name].to_numpy().mean())
        parts = [f"{len(measured):,} problems", f"mean {name.replace('_', ' ')} {mean:.3f}", *faults(rollouts)]
        summary = ", ".join(parts)
        if len(measured) < len(wanted):
            summary = f"{len(wanted) - len(measured):,} problems have no responses; {summary}"
        output = Output(
            name="problems",
            table=measured,
            summary=summary,
            metrics={f"mean_{name}": mean},
            sources=sources,
            params=params,
            besides=[] if arguments.rollouts_out is None else [("rollouts", rollouts, arguments.rollouts_out)],
            **kept,
        )
        yield from deliver(arguments, output)

"""``generate``: answer problems with a model."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterable
from functools import partial

from .output import ROLLOUT_FILES, SOURCE, Output, add_flags, deliver, read, rewarded
from .run import begin, place_shard
from .settings import add_sampling

PHASES = ("difficulty", "baseline", "eval")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    generate = commands.add_parser(
        "generate",
        help="answer problems with a model",
        description="Answer problems with a model. Killed and started again with the same arguments, it asks only for "
        "the groups that it had not finished.",
    )
    generate.add_argument("--problems", required=True, help=SOURCE)
    generate.add_argument(
        "--phase",
        default="difficulty",
        choices=PHASES,
        help="what the responses are for: to select problems (difficulty, the default), to measure those selected "
        "(baseline) or to evaluate; each has seeds of its own",
    )
    add_sampling(generate, required=True, samples=16, shards=True)
    add_flags(generate, out="the .parquet file to write")
    generate.set_defaults(run=run, files=ROLLOUT_FILES)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Make the rollouts and say how many there are and their mean reward."""
    place_shard(arguments, "rollouts")
    with contextlib.ExitStack() as stack:
        yield from deliver(arguments, partial(_generate, stack=stack))


def _generate(arguments: argparse.Namespace, *, stack: contextlib.ExitStack) -> Output:
    problems = read(arguments.problems, "problems")
    sampling = begin(arguments, stack, problems=problems, phase=arguments.phase, reusable=True)
    rollouts = sampling.rollouts()
    return rewarded(
        rollouts,
        sources={"problems": problems},
        params=sampling.params,
        store=sampling.finished(rollouts),
        dropped=sampling.dropped,
    )

"""``convert``: convert rollouts to tokens or back, along the runs of one n."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from ..data.reading import read_evals
from ..data.units import convert
from .arguments import positive


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("convert", help="convert rollouts to tokens or back, along the runs of one n")
    parser.add_argument("source", nargs="+", help="evals with rollouts and tokens")
    parser.add_argument("--amount", type=positive, required=True)
    parser.add_argument("--to", required=True, choices=["tokens", "rollouts"])
    parser.add_argument("--n", type=int, required=True, help="rollouts per problem of the runs")
    parser.add_argument("--problems-per-batch", type=int)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Print the amount in the other unit."""
    found = convert(
        read_evals(arguments.source), arguments.amount, to=arguments.to, rollouts_per_problem=arguments.n,
        problems_per_batch=arguments.problems_per_batch,
    )  # fmt: skip
    other = "rollouts" if arguments.to == "tokens" else "tokens"
    yield (
        f"{arguments.amount:,.6g} {other} are {found.value:,.6g} {arguments.to} at n = {arguments.n}, where a response "
        f"has {found.tokens_per_rollout:,.4g} tokens"
    )
    if not found.measured:
        yield "note: beyond what was measured, responses are taken to stay as long as they last were"

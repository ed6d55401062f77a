"""``waste``: what training paid for and did not learn from."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..counts import TRAINING_COHORTS, Counts
from .show import SOURCES
from .text import aligned, labelled, whole, write_json

if TYPE_CHECKING:
    import polars as pl

    from ..waste import Waste


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "waste",
        help="what training paid for and did not learn from",
        description="Share of groups without variance over training, and what p^n + (1 - p)^n leads to expect; "
        "rollouts and tokens without gradient; truncated and failed shares; cost of a solved problem.",
    )
    command.add_argument("rollouts", help="a rollouts table (Parquet, a folder, mlflow:EXPERIMENT, runs:/RUN_ID)")
    command.add_argument(
        "--ledger", nargs="+", default=[], metavar="LEDGER", help=f"what was paid, failed and lost too: {SOURCES}"
    )
    rates = command.add_mutually_exclusive_group()
    rates.add_argument("--pass-rates", metavar="TABLE", help="a pass_rates table, for the expectation")
    rates.add_argument("--problems", metavar="TABLE", help="a problems table with pass_rate, for the expectation")
    command.add_argument("--solved-at", type=float, default=1.0, metavar="R", help="least reward of a right response")
    command.add_argument("--bins", type=whole, default=10, metavar="K", help="parts of training (default: %(default)s)")
    command.add_argument("--json", type=Path, metavar="FILE", help="also write the figures")
    command.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> Iterable[str]:
    from .. import tables
    from ..waste import waste

    found = waste(
        tables.read(arguments.rollouts, "rollouts"),
        paid=_paid(arguments.ledger) if arguments.ledger else None,
        pass_rates=_rates(arguments),
        solved_at=arguments.solved_at,
        bins=arguments.bins,
    )
    yield from labelled(_lines(found, bool(arguments.ledger)))
    yield ""
    yield from aligned(
        ["steps", "groups", "zero variance", "all right", "no gradient", "truncated", "failed"],
        [
            [f"{first}-{last}", groups, *("-" if share is None else f"{share:.1%}" for share in shares)]
            for first, last, groups, *shares in found.by_step.iter_rows()
        ],
    )
    if arguments.json is not None:
        write_json(_document(found), arguments.json)


def _paid(sources: Sequence[str]) -> tuple[Counts, Counts, int]:
    """What ledgers say of training: everything paid, what of it was lost, and how many rollouts failed."""
    import polars as pl

    from ..accounts import account

    sums = account(sources).by("cohort").filter(pl.col("cohort").is_in(TRAINING_COHORTS))

    def of(prefix: str) -> Counts:
        return Counts(
            rollouts=int(sums[f"{prefix}rollouts"].sum()),
            prompt_tokens=int(sums[f"{prefix}prompt_tokens"].sum()),
            response_tokens=int(sums[f"{prefix}response_tokens"].sum()),
        )

    failed = sums.filter(pl.col("cohort") == "failed")["paid_rollouts"].sum()
    return of("paid_"), of("lost_"), int(failed)


def _rates(arguments: argparse.Namespace) -> pl.DataFrame | None:
    import polars as pl

    from .. import tables

    if arguments.pass_rates:
        return tables.read(arguments.pass_rates, "pass_rates").select("problem_id", "successes", "samples")
    if not arguments.problems:
        return None
    problems = tables.read(arguments.problems, "problems")
    if "pass_rate" not in problems.columns or "pass_rate_samples" not in problems.columns:
        raise tables.TableError(f"{arguments.problems}: the problems table has no pass_rate and pass_rate_samples")
    measured = problems.drop_nulls(["pass_rate", "pass_rate_samples"])
    successes = (pl.col("pass_rate") * pl.col("pass_rate_samples")).round().cast(pl.Int64)
    return measured.select("problem_id", successes=successes, samples=pl.col("pass_rate_samples"))


def _lines(found: Waste, ledger: bool) -> Iterable[tuple[str, str]]:
    paid = found.generated
    yield "generated for training", f"{paid.rollouts:,} rollouts, {paid.response_tokens:,} response tokens"
    if ledger:
        yield "of which lost in crashes", f"{found.lost.rollouts:,} rollouts, {found.lost.response_tokens:,} tokens"
    share = f"{found.zero_variance:.1%} of {found.groups:,} groups"
    yield "without variance", f"{share}, {found.all_right:,} of them all right"
    if found.expected is not None:
        how = "" if found.estimator == "exact" else ", too high because some pass rates have fewer samples than n"
        yield "expected from pass rates", f"{found.expected:.1%}{how}"
    idle = found.without_gradient
    yield (
        "without gradient",
        f"{idle.rollouts:,} rollouts ({idle.rollouts / found.sampled.rollouts:.1%}), {idle.response_tokens:,} tokens "
        f"({idle.response_tokens / max(1, found.sampled.response_tokens):.1%})",
    )
    yield "truncated", f"{found.truncated:,} rollouts ({found.truncated / found.sampled.rollouts:.1%})"
    yield "failed", f"{found.failed:,} rollouts ({found.failed / max(1, paid.rollouts):.1%})"
    solved = "none"
    if found.rollouts_per_solved is not None and found.tokens_per_solved is not None:
        solved = (
            f"{found.solved_problems:,}, each for {found.rollouts_per_solved:,.1f} rollouts and "
            f"{found.tokens_per_solved:,.0f} tokens"
        )
    yield "problems solved", solved


def _document(found: Waste) -> dict[str, Any]:
    return {
        "generated": asdict(found.generated),
        "lost": asdict(found.lost),
        "groups": found.groups,
        "zero_variance": found.zero_variance,
        "all_right": found.all_right,
        "expected_zero_variance": found.expected,
        "estimator": found.estimator,
        "without_gradient": asdict(found.without_gradient),
        "truncated": found.truncated,
        "failed": found.failed,
        "solved_problems": found.solved_problems,
        "rollouts_per_solved": found.rollouts_per_solved,
        "tokens_per_solved": found.tokens_per_solved,
        "by_step": found.by_step.to_dicts(),
    }

"""``waste``: what training paid for and did not learn from."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..ledger.counts import TRAINING_COHORTS, Counts
from .text import SOURCES, aligned_table, labelled_lines, number, whole, write_json

if TYPE_CHECKING:
    import polars as pl

    from ..waste import Expectation, Paid, Waste


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "waste",
        help="what training paid for and did not learn from",
        description="Share of zero-variance groups over training, compared with the expected share p^n + (1 - p)^n; "
        "rollouts and tokens without gradient; truncated and failed shares; rollouts per solved problem.",
    )
    command.add_argument(
        "rollouts",
        help="a rollouts table (Parquet, CSV, a folder, mlflow:EXPERIMENT, runs:/RUN_ID); run_id, step, problem_id and "
        "reward are enough",
    )
    command.add_argument(
        "--ledger", nargs="+", default=[], metavar="LEDGER", help=f"what was paid, failed and lost too: {SOURCES}"
    )
    rates = command.add_mutually_exclusive_group()
    rates.add_argument("--pass-rates", metavar="TABLE", help="a pass_rates table of the same runs, for the expectation")
    rates.add_argument("--problems", metavar="TABLE", help="a problems table with pass_rate, for the expectation")
    command.add_argument(
        "--solved-at", type=number, default=1.0, metavar="R", help="smallest reward of a correct response"
    )
    command.add_argument(
        "--bins", type=whole, default=10, metavar="K", help="bins of update steps (default: %(default)s)"
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="also write the figures")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Print what was wasted."""
    from ..waste import responses, summed

    found = summed(
        responses.read(arguments.rollouts),
        paid=_paid(arguments.ledger) if arguments.ledger else None,
        pass_rates=_rates(arguments),
        solved_at=arguments.solved_at,
        bins=arguments.bins,
    )
    yield from labelled_lines(_lines(found))
    yield ""
    yield from aligned_table(
        ["steps", "groups", "zero variance", "all correct", "no gradient", "truncated", "failed"],
        [
            [f"{first}-{last}", groups, *("-" if share is None else f"{share:.1%}" for share in shares)]
            for first, last, groups, *shares in found.by_step.iter_rows()
        ],
    )
    if arguments.json is not None:
        write_json(_document(found), arguments.json)


def _paid(sources: Sequence[str]) -> Paid:
    """The training charges of ledgers."""
    import polars as pl

    from ..ledger.accounts import account
    from ..waste import Paid

    found = account(sources)
    sums = found.by("cohort").filter(pl.col("cohort").is_in(TRAINING_COHORTS))

    def of(prefix: str) -> Counts:
        return Counts(
            rollouts=int(sums[f"{prefix}rollouts"].sum()),
            prompt_tokens=int(sums[f"{prefix}prompt_tokens"].sum()),
            response_tokens=int(sums[f"{prefix}response_tokens"].sum()),
        )

    return Paid(
        run_ids=frozenset([*found.ledger["run_id"], *found.lost_work["run_id"]]),
        generated=of("paid_"),
        lost=of("lost_"),
        failed=int(sums.filter(pl.col("cohort") == "failed")["paid_rollouts"].sum()),
    )


def _rates(arguments: argparse.Namespace) -> pl.DataFrame | None:
    import polars as pl

    from ..contract import tables

    if arguments.pass_rates:
        rates = tables.read(arguments.pass_rates, "pass_rates")
        for problem, successes, samples in (
            rates.filter(pl.col("successes") > pl.col("samples"))
            .select("problem_id", "successes", "samples")
            .iter_rows()
        ):
            raise tables.TableError(
                f"{arguments.pass_rates}: problem {problem} has {successes} successes of {samples} samples"
            )
        return rates
    if not arguments.problems:
        return None
    problems = tables.read(arguments.problems, "problems")
    # The pass rate that selected a problem is biased upwards; a fresh one is not.
    measured = [name for name in ("fresh_pass_rate", "pass_rate") if {name, f"{name}_samples"} <= set(problems.columns)]
    if not measured:
        raise tables.TableError(f"{arguments.problems}: the problems table has no pass_rate and pass_rate_samples")
    rate, samples = measured[0], f"{measured[0]}_samples"
    successes = (pl.col(rate) * pl.col(samples)).round().cast(pl.Int64)
    return problems.drop_nulls([rate, samples]).select("problem_id", successes=successes, samples=pl.col(samples))


def _lines(found: Waste) -> Iterable[tuple[str, str]]:
    sampled, idle, tokens = found.sampled.rollouts, found.without_gradient, found.tokens_known
    tokens_text = f", {found.generated.response_tokens:,} response tokens" if tokens or found.paid else ""
    yield "generated for training", f"{found.generated.rollouts:,} rollouts{tokens_text}"
    if found.paid is not None:
        lost = found.paid.lost
        yield "of which lost in crashes", f"{lost.rollouts:,} rollouts, {lost.response_tokens:,} tokens"
    share = f"{found.zero_variance:.1%} of {found.groups:,} groups"
    yield "without variance", f"{share}, {found.all_right:,} of them all correct"
    if found.expected is not None:
        yield "expected from pass rates", _expectation(found.expected, found.groups)
    idle_share = idle.response_tokens / max(1, found.sampled.response_tokens)
    tokens_text = f", {idle.response_tokens:,} tokens ({idle_share:.1%})" if tokens else ""
    yield "without gradient", f"{idle.rollouts:,} rollouts ({idle.rollouts / sampled:.1%}){tokens_text}"
    for name, counted, of in (
        ("truncated", found.truncated, sampled),
        ("failed", found.failed, max(1, found.generated.rollouts)),
    ):
        yield name, "unknown" if counted is None else f"{counted:,} rollouts ({counted / of:.1%})"
    solved = "none"
    if found.rollouts_per_solved is not None:
        solved = f"{found.solved_problems:,}, each for {found.rollouts_per_solved:,.1f} rollouts"
        solved += "" if found.tokens_per_solved is None else f" and {found.tokens_per_solved:,.0f} tokens"
    yield "problems solved", solved


def _expectation(found: Expectation, groups: int) -> str:
    """The estimate with its standard error, and what it rests on."""
    parts = [f"{found.share:.1%} ± {found.standard_error:.1%}"]
    if found.estimator == "plug-in":
        parts.append("too high because some pass rates have fewer samples than n")
    if found.groups < groups:
        parts.append(f"of the {found.groups:,} groups with a measured pass rate")
    if not found.by_step:
        parts.append("measured once and used for every step")
    if not found.independent:
        parts.append("estimated from the same responses; measure others (--pass-rates) for a comparison")
    return ", ".join(parts)


def _document(found: Waste) -> dict[str, Any]:
    tokens = found.tokens_known

    def counted(counts: Counts, known: bool) -> dict[str, int | None]:
        return {name: value if known or name == "rollouts" else None for name, value in asdict(counts).items()}

    return {
        "generated": counted(found.generated, tokens or found.paid is not None),
        "lost": None if found.paid is None else asdict(found.paid.lost),
        "groups": found.groups,
        "zero_variance": found.zero_variance,
        "all_right": found.all_right,
        "expected_zero_variance": None if found.expected is None else asdict(found.expected),
        "without_gradient": counted(found.without_gradient, tokens),
        "truncated": found.truncated,
        "failed": found.failed,
        "solved_problems": found.solved_problems,
        "rollouts_per_solved": found.rollouts_per_solved,
        "tokens_per_solved": found.tokens_per_solved,
        "by_step": found.by_step.to_dicts(),
    }

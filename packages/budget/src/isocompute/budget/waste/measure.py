"""What was paid for and taught nothing: groups without variance, truncated and failed responses.

A group is what one step sampled for one problem. If all its rewards are equal, its advantages are zero and it
contributes nothing to the policy gradient. ``expectation`` says how often that should
happen. TRL logs the share of such groups as ``frac_reward_zero_std``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..checks import whole
from ..errors import BudgetError
from ..ledger.counts import Counts
from ..wording import list_names
from .expectation import expect
from .responses import training
from .summary import Paid, Waste

if TYPE_CHECKING:
    import polars as pl

PROBLEM = ("run_id", "step", "problem_id")
"""The key of a group: what one step of a run sampled for one problem."""


def waste(
    rollouts: pl.DataFrame,
    *,
    paid: Paid | None = None,
    pass_rates: pl.DataFrame | None = None,
    solved_at: float = 1.0,
    bins: int = 10,
) -> Waste:
    """Measure what training generated and how much of it taught nothing.

    Args:
        rollouts: A ``rollouts`` table, of which ``run_id``, ``step``, ``problem_id`` and ``reward`` are enough; its
            evaluations are ignored.
        paid: The charges in the ledgers of the same runs.
        pass_rates: Pass rates for the expectation, as ``expectation.expect`` takes them; by default those of each
            group's own responses.
        solved_at: Smallest reward of a correct response.
        bins: Number of bins of update steps.

    Raises:
        BudgetError: The ledgers or the pass rates are of other runs, or a number is out of range.
        TableError: The table lacks a column, or holds no training rollouts.
    """
    return summed(training(rollouts), paid=paid, pass_rates=pass_rates, solved_at=solved_at, bins=bins)


def summed(
    train: pl.DataFrame, *, paid: Paid | None, pass_rates: pl.DataFrame | None, solved_at: float, bins: int
) -> Waste:
    """As ``waste``, for training responses as ``responses.read`` returns them.

    Args:
        train: Training responses.
        paid: The charges in the ledgers of the same runs, or None.
        pass_rates: Pass rates for the expectation, or None for those of each group's own responses.
        solved_at: Smallest reward of a correct response.
        bins: Number of bins of update steps.

    Raises:
        BudgetError: As in ``waste``.
    """
    import polars as pl

    if not 0 < solved_at <= 1:
        raise BudgetError(f"solved_at is {solved_at!r}; a reward lies between 0 and 1")
    bins = whole(bins, "bins", least=1)
    if paid is not None:
        _check_runs(set(train["run_id"]), set(paid.run_ids))
    train, groups = _mark_responses(train, solved_at)
    # A single response has no group to be compared with.
    compared = groups.filter(pl.col("size") > 1)
    sampled = _counts(train)
    return Waste(
        generated=sampled if paid is None else paid.generated,
        sampled=sampled,
        tokens_known=train["response_tokens"].null_count() == 0,
        groups=compared.height,
        zero_variance_groups=int(compared["zero_variance"].sum()),
        all_right=int(compared.filter("zero_variance")["right"].sum()),
        without_gradient=_counts(train.filter("without_gradient")),
        truncated=_known_sum(train["truncated"]),
        failed=_known_sum(train["failed"]) if paid is None else paid.failed,
        paid=paid,
        solved_problems=train.filter("right").select("run_id", "problem_id").n_unique(),
        expected=expect(compared.select(*PROBLEM, "size", "successes"), pass_rates),
        by_step=_by_step(train, compared, bins),
    )


def _mark_responses(train: pl.DataFrame, solved_at: float) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Mark the responses that are correct or without gradient, and form groups of the complete ones.

    Returns:
        The responses with ``right`` and ``without_gradient``; and per group ``size``, ``zero_variance`` (all rewards
        equal), ``successes`` and ``right`` (whether all are).
    """
    import polars as pl

    # A response without a known finish reason counts as complete.
    aborted = pl.col("failed").fill_null(False)
    train = train.with_columns(right=(pl.col("reward") >= solved_at) & ~aborted)
    groups = (
        train.filter(~aborted)
        .group_by(PROBLEM)
        .agg(
            size=pl.len(),
            zero_variance=pl.col("reward").min() == pl.col("reward").max(),
            successes=pl.col("right").sum(),
            right=pl.col("right").all(),
        )
    )
    equal = groups.select(*PROBLEM, "zero_variance")
    without_gradient = aborted | pl.col("zero_variance").fill_null(True)
    return train.join(equal, on=PROBLEM, how="left").with_columns(without_gradient=without_gradient), groups


def _check_runs(trained: set[str], charged: set[str]) -> None:
    """Refuse ledgers of other runs than those of the rollouts.

    Raises:
        BudgetError: A run is in one of them only.
    """
    if trained != charged:
        sides = (("rollouts", trained - charged), ("ledgers", charged - trained))
        difference = " and ".join(f"{list_names(runs)} only in the {where}" for where, runs in sides if runs)
        raise BudgetError(
            f"the rollouts and the ledgers are not of the same runs: {difference}; leave out what does not belong"
        )


def _known_sum(column: pl.Series) -> int | None:
    """Sum of a column, or None where it is not known."""
    return None if column.null_count() else int(column.sum())


def _by_step(marked: pl.DataFrame, groups: pl.DataFrame, bins: int) -> pl.DataFrame:
    """Shares per bin of steps; the bins are as even as possible."""
    import polars as pl

    steps = marked.select("step").unique().sort("step").with_row_index("place")
    place = (pl.col("place") * min(bins, steps.height) // steps.height).alias("bin")
    steps = steps.with_columns(place).select("step", "bin")
    of_groups = (
        groups.join(steps, on="step")
        .group_by("bin")
        .agg(
            groups=pl.len(),
            zero_variance=pl.col("zero_variance").mean(),
            all_right=(pl.col("zero_variance") & pl.col("right")).mean(),
        )
    )
    return (
        marked.join(steps, on="step")
        .group_by("bin")
        .agg(
            first_step=pl.col("step").min(),
            last_step=pl.col("step").max(),
            truncated=pl.col("truncated").mean(),
            failed=pl.col("failed").mean(),
            rollouts_without_gradient=pl.col("without_gradient").mean(),
        )
        .join(of_groups, on="bin", how="left")
        .sort("bin")
        .with_columns(pl.col("groups").fill_null(0))
        .select(
            "first_step", "last_step", "groups", "zero_variance", "all_right", "rollouts_without_gradient", "truncated",
            "failed",
        )
    )  # fmt: skip


def _counts(frame: pl.DataFrame) -> Counts:
    """Rollouts and tokens; tokens that are not known are 0."""
    return Counts(
        rollouts=frame.height,
        prompt_tokens=int(frame["prompt_tokens"].sum()),
        response_tokens=int(frame["response_tokens"].sum()),
    )

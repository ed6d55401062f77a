"""What was paid for and taught nothing: groups without variance, truncated and failed responses.

A group is what one step sampled for one problem. If all its rewards are equal, its advantages are zero and it
contributes nothing to the policy gradient. How often that should happen, ``expectation`` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .counts import Counts, whole
from .errors import BudgetError
from .expectation import Expectation, expect, expected_zero_variance
from .responses import training
from .wording import listed

if TYPE_CHECKING:
    import polars as pl

__all__ = ["Expectation", "Paid", "Waste", "expected_zero_variance", "summed", "waste"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paid:
    """What ledgers say of training.

    Attributes:
        run_ids: The runs that they are of.
        generated: Everything paid, lost work too.
        lost: What of it was lost in a crash.
        failed: Rollouts that failed.
    """

    run_ids: frozenset[str]
    generated: Counts
    lost: Counts
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waste:
    """What training generated, and what of it taught nothing.

    Attributes:
        generated: Everything generated for training, as the ledger has it where there is one: lost work too.
        sampled: What the ``rollouts`` table holds.
        tokens_known: Whether the table tells tokens; if not, those of ``sampled`` and ``without_gradient`` are 0.
        groups: Groups with at least two complete responses.
        zero_variance_groups: Those whose rewards are all equal.
        all_right: Of these, the ones in which every response was right.
        without_gradient: Rollouts and tokens of groups without variance, and of failed responses.
        truncated: Responses that ended at their limit of tokens, or None where the table does not tell.
        failed: Responses that were aborted, as the ledger has them where there is one, or None.
        paid: What the ledger says, or None.
        solved_problems: Problems of a run with at least one right response.
        expected: Share of groups that should be without variance, from measured pass rates, or None.
        by_step: Per bin of steps: ``first_step``, ``last_step``, ``groups``, ``zero_variance``, ``all_right``,
            ``rollouts_without_gradient``, ``truncated``, ``failed`` (shares; null where they are not known).
    """

    generated: Counts
    sampled: Counts
    tokens_known: bool
    groups: int
    zero_variance_groups: int
    all_right: int
    without_gradient: Counts
    truncated: int | None
    failed: int | None
    paid: Paid | None
    solved_problems: int
    expected: Expectation | None
    by_step: pl.DataFrame

    @property
    def zero_variance(self) -> float:
        """Share of groups without variance."""
        return self.zero_variance_groups / self.groups if self.groups else 0.0

    @property
    def rollouts_per_solved(self) -> float | None:
        """Rollouts paid for each problem solved, or None when none was."""
        return self.generated.rollouts / self.solved_problems if self.solved_problems else None

    @property
    def tokens_per_solved(self) -> float | None:
        """Response tokens paid for each problem solved, or None when none was or the tokens are not known."""
        known = self.solved_problems and (self.tokens_known or self.paid is not None)
        return self.generated.response_tokens / self.solved_problems if known else None


def waste(
    rollouts: pl.DataFrame,
    *,
    paid: Paid | None = None,
    pass_rates: pl.DataFrame | None = None,
    solved_at: float = 1.0,
    bins: int = 10,
) -> Waste:
    """Sum up what training generated and what of it taught nothing.

    Args:
        rollouts: A ``rollouts`` table, of which ``run_id``, ``step``, ``problem_id`` and ``reward`` are enough; its
            evaluations are passed over.
        paid: What the ledgers of the same runs say.
        pass_rates: Pass rates for the expectation, as ``expectation.expect`` takes them; by default those of each
            group's own responses.
        solved_at: Least reward of a right response.
        bins: Parts of training to tell apart.

    Raises:
        BudgetError: The ledgers or the pass rates are of other runs, or a number of them cannot be.
        TableError: The table lacks a column, or holds no training rollouts.
    """
    return summed(training(rollouts), paid=paid, pass_rates=pass_rates, solved_at=solved_at, bins=bins)


def summed(
    train: pl.DataFrame, *, paid: Paid | None, pass_rates: pl.DataFrame | None, solved_at: float, bins: int
) -> Waste:
    """As ``waste``, of training responses as ``responses.read`` returns them.

    Raises:
        BudgetError: As in ``waste``.
    """
    import polars as pl

    if not 0 < solved_at <= 1:
        raise BudgetError(f"solved_at is {solved_at!r}; a reward lies within 0 and 1")
    bins = whole(bins, "bins", least=1)
    if paid is not None:
        _check_runs(set(train["run_id"]), set(paid.run_ids))
    # A response of which nothing is known is taken to be complete.
    aborted = pl.col("failed").fill_null(False)
    train = train.with_columns(right=(pl.col("reward") >= solved_at) & ~aborted)
    key = ["run_id", "step", "problem_id"]
    groups = (
        train.filter(~aborted)
        .group_by(key)
        .agg(
            size=pl.len(),
            flat=pl.col("reward").min() == pl.col("reward").max(),
            successes=pl.col("right").sum(),
            right=pl.col("right").all(),
        )
    )
    marked = train.join(groups.select(*key, "flat"), on=key, how="left").with_columns(
        useless=aborted | pl.col("flat").fill_null(True)
    )
    # A single response has no group to be compared with.
    compared = groups.filter(pl.col("size") > 1)
    return Waste(
        generated=paid.generated if paid is not None else _counts(marked),
        sampled=_counts(marked),
        tokens_known=marked["response_tokens"].null_count() == 0,
        groups=compared.height,
        zero_variance_groups=int(compared["flat"].sum()),
        all_right=int(compared.filter("flat")["right"].sum()),
        without_gradient=_counts(marked.filter("useless")),
        truncated=_known_sum(marked["truncated"]),
        failed=paid.failed if paid is not None else _known_sum(marked["failed"]),
        paid=paid,
        solved_problems=train.filter("right").select("run_id", "problem_id").n_unique(),
        expected=expect(compared.select(*key, "size", "successes"), pass_rates),
        by_step=_by_step(marked, compared, bins),
    )


def _check_runs(trained: set[str], charged: set[str]) -> None:
    """Refuse ledgers of other runs than those of the rollouts.

    Raises:
        BudgetError: A run is in one of them only.
    """
    if trained != charged:
        sides = (("rollouts", trained - charged), ("ledgers", charged - trained))
        told = " and ".join(f"{listed(runs)} only in the {where}" for where, runs in sides if runs)
        raise BudgetError(
            f"the rollouts and the ledgers are not of the same runs: {told}; leave out what does not belong"
        )


def _known_sum(column: pl.Series) -> int | None:
    """Sum of a column, or None where it is not known."""
    return None if column.null_count() else int(column.sum())


def _by_step(marked: pl.DataFrame, groups: pl.DataFrame, bins: int) -> pl.DataFrame:
    """Shares per bin of steps, bins as even as they go."""
    import polars as pl

    steps = marked.select("step").unique().sort("step").with_row_index("place")
    place = (pl.col("place") * min(bins, steps.height) // steps.height).alias("bin")
    steps = steps.with_columns(place).select("step", "bin")
    of_groups = (
        groups.join(steps, on="step")
        .group_by("bin")
        .agg(
            groups=pl.len(),
            zero_variance=pl.col("flat").mean(),
            all_right=(pl.col("flat") & pl.col("right")).mean(),
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
            rollouts_without_gradient=pl.col("useless").mean(),
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

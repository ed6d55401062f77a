"""What was paid for and taught nothing: groups without variance, truncated and failed responses.

A group is what one step sampled for one problem. If all its rewards are equal, its advantages are zero and it
contributes nothing to the policy gradient. With n responses that are right with probability p each, that happens
with probability p^n + (1 − p)^n (``expected_zero_variance``).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import TYPE_CHECKING, Literal

from .counts import Counts, whole
from .errors import BudgetError

if TYPE_CHECKING:
    import polars as pl

Estimator = Literal["exact", "plug-in"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waste:
    """What training generated, and what of it taught nothing.

    Attributes:
        generated: Everything generated for training, as the ledger has it where there is one: lost work too.
        sampled: What the ``rollouts`` table holds.
        groups: Groups with at least two complete responses.
        zero_variance_groups: Those whose rewards are all equal.
        all_right: Of these, the ones in which every response was right.
        without_gradient: Rollouts and tokens of groups without variance, and of failed responses.
        truncated: Responses that ended at their limit of tokens.
        failed: Responses that were aborted, as the ledger has them where there is one.
        lost: Generated and lost in a crash, as the ledger has it.
        solved_problems: Problems of a run with at least one right response.
        expected: Share of groups that should be without variance, from measured pass rates, or None.
        estimator: How ``expected`` was computed: ``exact`` is unbiased, ``plug-in`` is too high.
        by_step: Per bin of steps: ``first_step``, ``last_step``, ``groups``, ``zero_variance``, ``all_right``,
            ``truncated``, ``failed`` (shares), ``rollouts_without_gradient`` (a share as well).
    """

    generated: Counts
    sampled: Counts
    groups: int
    zero_variance_groups: int
    all_right: int
    without_gradient: Counts
    truncated: int
    failed: int
    lost: Counts
    solved_problems: int
    expected: float | None
    estimator: Estimator | None
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
        """Response tokens paid for each problem solved, or None when none was."""
        return self.generated.response_tokens / self.solved_problems if self.solved_problems else None


def waste(
    rollouts: pl.DataFrame,
    *,
    paid: tuple[Counts, Counts, int] | None = None,
    pass_rates: pl.DataFrame | None = None,
    solved_at: float = 1.0,
    bins: int = 10,
) -> Waste:
    """Sum up what training generated and what of it taught nothing.

    Args:
        rollouts: A ``rollouts`` table; its evaluations are passed over.
        paid: What the ledger says of training: everything paid, what of it was lost, and how many failed.
        pass_rates: ``problem_id``, ``successes``, ``samples`` of every problem, for the expectation; by default
            those of the rollouts themselves, pooled over steps.
        solved_at: Least reward of a right response.
        bins: Parts of training to tell apart.

    Raises:
        BudgetError: There are no training rollouts, or a number of them cannot be.
    """
    import polars as pl

    if not 0 < solved_at <= 1:
        raise BudgetError(f"solved_at is {solved_at!r}; a reward lies within 0 and 1")
    bins = whole(bins, "bins", least=1)
    train = rollouts.filter(pl.col("phase") == "train").select(
        "run_id",
        "step",
        "problem_id",
        "reward",
        prompt_tokens=pl.col("prompt_ids").list.len().cast(pl.Int64),
        response_tokens=pl.col("response_ids").list.len().cast(pl.Int64),
        truncated=pl.col("finish_reason") == "length",
        failed=pl.col("finish_reason") == "aborted",
        right=(pl.col("reward") >= solved_at) & (pl.col("finish_reason") != "aborted"),
    )
    if train.is_empty():
        raise BudgetError("the rollouts table holds no rollouts of phase train")
    key = ["run_id", "step", "problem_id"]
    complete = train.filter(~pl.col("failed"))
    groups = complete.group_by(key).agg(
        size=pl.len(),
        flat=pl.col("reward").min() == pl.col("reward").max(),
        right=pl.col("right").all(),
    )
    # A single response has no group to be compared with.
    groups = groups.with_columns(counted=pl.col("size") > 1)
    marked = train.join(groups.select(*key, "flat"), on=key, how="left").with_columns(
        useless=pl.col("failed") | pl.col("flat").fill_null(True)
    )
    compared = groups.filter("counted")
    if pass_rates is None:
        pass_rates = complete.group_by("run_id", "problem_id").agg(successes=pl.col("right").sum(), samples=pl.len())
    expected = _expected(compared, pass_rates)
    return Waste(
        generated=paid[0] if paid is not None else _counts(marked),
        sampled=_counts(marked),
        groups=compared.height,
        zero_variance_groups=int(compared["flat"].sum()),
        all_right=int(compared.filter("flat")["right"].sum()),
        without_gradient=_counts(marked.filter("useless")),
        truncated=int(marked["truncated"].sum()),
        failed=paid[2] if paid is not None else int(marked["failed"].sum()),
        lost=paid[1] if paid is not None else Counts(),
        solved_problems=train.filter("right").select("run_id", "problem_id").n_unique(),
        expected=expected[0] if expected else None,
        estimator=expected[1] if expected else None,
        by_step=_by_step(marked, compared, bins),
    )


def expected_zero_variance(successes: int, samples: int, rollouts_per_problem: int) -> tuple[float, Estimator]:
    """Probability that n responses to a problem all have the same reward.

    With at least n samples this is the unbiased estimate of p^n + (1 − p)^n: the share of ways to draw n of the
    samples that are all right or all wrong. With fewer, successes / samples is put in for p, which gives too much,
    because p^n is convex.

    Args:
        successes: Right responses among those measured.
        samples: Responses measured.
        rollouts_per_problem: n.

    Raises:
        BudgetError: The numbers cannot be.
    """
    n = whole(rollouts_per_problem, "rollouts_per_problem", least=1)
    k = whole(samples, "samples", least=1)
    s = whole(successes, "successes", least=0)
    if s > k:
        raise BudgetError(f"there are {s} successes of {k} samples")
    if k >= n:
        return (comb(s, n) + comb(k - s, n)) / comb(k, n), "exact"
    p = s / k
    return p**n + (1 - p) ** n, "plug-in"


def _expected(groups: pl.DataFrame, rates: pl.DataFrame) -> tuple[float, Estimator] | None:
    """Mean expectation over groups, each with its own size, where the problem's pass rate is known."""
    import polars as pl

    on = ["run_id", "problem_id"] if "run_id" in rates.columns else ["problem_id"]
    if "run_id" not in rates.columns or rates.select(on).is_duplicated().any():
        rates = rates.group_by(on).agg(pl.col("successes").sum(), pl.col("samples").sum())
    known = groups.join(rates, on=on, how="inner").group_by("successes", "samples", "size").len()
    if known.is_empty():
        return None
    total = 0.0
    exact = True
    for successes, samples, size, count in known.select("successes", "samples", "size", "len").iter_rows():
        share, how = expected_zero_variance(successes, samples, size)
        total += share * count
        exact &= how == "exact"
    return total / int(known["len"].sum()), "exact" if exact else "plug-in"


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
    return Counts(
        rollouts=frame.height,
        prompt_tokens=int(frame["prompt_tokens"].sum()),
        response_tokens=int(frame["response_tokens"].sum()),
    )

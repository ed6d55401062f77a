"""How often a group should be without variance, from measured pass rates, with a standard error.

With n responses that are each correct with probability p, all are alike with probability p^n + (1 − p)^n. A policy that
learns changes p, and the mean of a convex function is not the function of the mean: pass rates of different steps are
never pooled.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import comb, exp, lgamma, log, sqrt
from typing import TYPE_CHECKING, Literal

from ..checks import whole
from ..errors import BudgetError
from ..wording import list_names

if TYPE_CHECKING:
    import polars as pl

Estimator = Literal["unbiased", "plug-in"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """Share of groups that should be without variance: an estimate.

    Attributes:
        share: Mean over the groups that were trained on, which weights each step by its groups.
        standard_error: Of ``share``, from the number of responses behind the pass rates.
        estimator: ``unbiased``, or ``plug-in`` (biased upwards) where a pass rate rests on fewer responses than n.
        groups: Groups with a measured pass rate, over which the mean is taken.
        independent: Whether the pass rates were measured on responses other than those trained on.
        by_step: Whether every group has a pass rate of its own time, and not one for all of training.
    """

    share: float
    standard_error: float
    estimator: Estimator
    groups: int
    independent: bool
    by_step: bool


def expected_zero_variance(successes: int, samples: int, rollouts_per_problem: int) -> tuple[float, Estimator]:
    """Probability that n responses to a problem all have the same reward, estimated.

    With at least n samples this is the unbiased estimate of p^n + (1 − p)^n: the share of ways to draw n of the
    samples that are all correct or all wrong. With fewer, successes / samples is used for p, which is biased upwards,
    because p^n is convex.

    Args:
        successes: Correct responses among those measured.
        samples: Responses measured.

    Raises:
        BudgetError: A number is not whole, or there are more successes than samples.
    """
    n = whole(rollouts_per_problem, "rollouts_per_problem", least=1)
    k = whole(samples, "samples", least=1)
    s = whole(successes, "successes", least=0)
    if s > k:
        raise BudgetError(f"there are {s} successes of {k} samples")
    if k >= n:
        return (comb(s, n) + comb(k - s, n)) / comb(k, n), "unbiased"
    p = s / k
    return p**n + (1 - p) ** n, "plug-in"


def expect(groups: pl.DataFrame, rates: pl.DataFrame | None) -> Expectation | None:
    """Expected share of groups without variance, each group with its own size and the pass rate of its own time.

    Args:
        groups: ``run_id``, ``step``, ``problem_id``, ``size`` and ``successes`` of every group trained on.
        rates: ``problem_id``, ``successes`` and ``samples``; with ``run_id`` and ``step`` (update steps taken before
            the measurement) a group of step t takes the last one after at most t − 1 updates of its own run, and
            without them the one measurement serves every step. None takes the groups' own responses.

    Returns:
        The estimate, or None when no group has a measured pass rate.

    Raises:
        BudgetError: The rates are of other runs than the groups, or a problem is measured twice at one time.
    """
    import polars as pl

    if rates is None:
        known = groups.with_row_index("cell").with_columns(samples=pl.col("size"))
    else:
        known = _join_pass_rates(groups.drop("successes"), rates)
    known = known.with_columns(pl.col("successes", "samples", "size").cast(pl.Int64))
    if known.is_empty():
        return None
    cases = known.select("successes", "samples", "size").unique()
    found = [(expected_zero_variance(*row), _standard_deviation(*row)) for row in cases.iter_rows()]
    cases = cases.with_columns(
        share=pl.Series([share for (share, _), _ in found], dtype=pl.Float64),
        deviation=pl.Series([deviation for _, deviation in found], dtype=pl.Float64),
    )
    known = known.join(cases, on=["successes", "samples", "size"])
    # Errors are shared by groups that rest on one measurement, and independent between measurements.
    errors = known.group_by("cell").agg(pl.col("deviation").sum())["deviation"]
    return Expectation(
        share=float(known["share"].sum()) / known.height,
        standard_error=sqrt(float((errors**2).sum())) / known.height,
        estimator="plug-in" if any(how == "plug-in" for (_, how), _ in found) else "unbiased",
        groups=known.height,
        independent=rates is not None,
        by_step=rates is None or "step" in rates.columns,
    )


def _join_pass_rates(groups: pl.DataFrame, rates: pl.DataFrame) -> pl.DataFrame:
    """Join each group with the pass rate that holds for it; ``cell`` numbers the measurements."""
    import polars as pl

    key = [name for name in ("run_id", "step", "problem_id") if name in rates.columns]
    if rates.select(key).is_duplicated().any():
        raise BudgetError(f"a pass rate is given twice for one {', '.join(key)}")
    rates = rates.select(*key, "successes", "samples").with_row_index("cell")
    if "step" not in key:
        return groups.join(rates, on=key, how="inner")
    missing = set(groups["run_id"]) - set(rates["run_id"])
    if missing:
        raise BudgetError(
            f"the pass rates are of run {list_names(set(rates['run_id']))}, and none are of run {list_names(missing)}, "
            "to which the rollouts belong"
        )
    # The policy that samples for step t has taken t − 1 updates.
    return (
        groups.with_columns(updates=pl.col("step") - 1)
        .sort("updates")
        .join_asof(
            rates.with_columns(updates=pl.col("step")).drop("step").sort("updates"),
            on="updates",
            by=["run_id", "problem_id"],
            strategy="backward",
            check_sortedness=False,
        )
        .drop_nulls("successes")
    )


@cache
def _estimates(samples: int, n: int) -> tuple[float, ...]:
    """The estimate for every number of successes."""
    return tuple(expected_zero_variance(s, samples, n)[0] for s in range(samples + 1))


@cache
def _standard_deviation(successes: int, samples: int, n: int) -> float:
    """Standard deviation of the estimate over repeated measurements.

    The pass rate is estimated as (s + ½) / (k + 1) (Jeffreys' prior), since s / k would give 0 of 4 no uncertainty.
    """
    p = (successes + 0.5) / (samples + 1)
    weights = [
        exp(lgamma(samples + 1) - lgamma(s + 1) - lgamma(samples - s + 1) + s * log(p) + (samples - s) * log(1 - p))
        for s in range(samples + 1)
    ]
    estimates = _estimates(samples, n)
    mean = sum(w * e for w, e in zip(weights, estimates, strict=True))
    return sqrt(sum(w * (e - mean) ** 2 for w, e in zip(weights, estimates, strict=True)))

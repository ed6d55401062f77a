"""From an ``evals`` table to curves: the runs of each (n, B_p), checked; and the errors of evaluations."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from ..errors import FrontierError
from .curves import UNITS, Array, Curve
from .pass_rates import answers_of
from .precision import binomial_errors, response_variance, trials_of

TAKEN = frozenset({"seed", "rollouts_per_problem", "problems_per_batch", *UNITS.values()})
"""Columns that tell curves, seeds or evaluations apart already."""


def check_group(group: str | None) -> None:
    """Refuse to group by a column that already tells curves, seeds or evaluations apart.

    Raises:
        FrontierError: It is such a column.
    """
    if group in TAKEN:
        raise FrontierError(
            f"curves cannot be grouped by {group!r}, which has its own meaning in a fit: name another column, such as "
            "a recipe"
        )


def curves(
    evals: pl.DataFrame, *, metric: str, unit: str, split: str, problem_set: str | None = None,
    group: str | None = None,
) -> list[Curve]:  # fmt: skip
    """Group an ``evals`` table into curves, sorted by B_p and n, and by the grouping column where there is one.

    Args:
        group: A further column, such as the recipe: runs that differ in it are curves of their own.

    Raises:
        FrontierError: The metric, unit, split, problem set or grouping column is not there, several problem sets
            are mixed, or a reward lies outside 0 to 1.
    """
    rows = chosen_rows(evals, metric=metric, unit=unit, split=split, problem_set=problem_set, group=group)
    _refuse(rows, {f"{metric} lies outside 0 to 1": ~pl.col(metric).is_between(0, 1)}, metric, UNITS[unit])
    keys = ["problems_per_batch", "rollouts_per_problem", *([group] if group else [])]
    found = []
    for key, part in rows.group_by(keys, maintain_order=True):
        # The metric last, so that even points of equal compute have one order.
        own = part.sort("seed", UNITS[unit], metric)
        found.append(
            Curve(
                rollouts_per_problem=int(key[1]),
                problems_per_batch=int(key[0]),
                compute=own[UNITS[unit]].to_numpy().astype(np.float64),
                reward=own[metric].to_numpy().astype(np.float64),
                seed=(own["seed"].rank("dense").to_numpy() - 1).astype(np.int64),
                group=f"{group} = {key[2]}" if group else "",
            )
        )
    return sorted(found, key=lambda c: (c.problems_per_batch, c.rollouts_per_problem, c.group))


def of_setting(evals: pl.DataFrame, *, problems_per_batch: int | None, batch_rollouts: int | None) -> pl.DataFrame:
    """The evaluations of one of the three settings of the IsoCompute Playbook, section 4.

    Args:
        problems_per_batch: Only this B_p: n against M (the first setting); None takes all.
        batch_rollouts: Only this B = B_p·n: B_p against n (the second). With neither all are taken (the third).

    Raises:
        FrontierError: No run belongs to it.
    """
    batch = pl.col("problems_per_batch") * pl.col("rollouts_per_problem")
    kept = evals.filter(
        pl.col("problems_per_batch") == (problems_per_batch or pl.col("problems_per_batch")),
        batch == (batch_rollouts or batch),
    )
    if kept.is_empty() and not evals.is_empty():
        pairs = evals.select("problems_per_batch", "rollouts_per_problem").unique().sort(pl.all()).rows()
        known = ", ".join(f"({size}, {n})" for size, n in pairs)
        raise FrontierError(
            f"no run has B_p = {problems_per_batch or 'any'} and B = {batch_rollouts or 'any'}; "
            f"the (B_p, n) are {known}"
        )
    return kept


def chosen_rows(
    evals: pl.DataFrame, *, metric: str, unit: str, split: str, problem_set: str | None, group: str | None,
    mixed: bool = False,
) -> pl.DataFrame:  # fmt: skip
    """The evaluations of one split and one problem set, all of them finite numbers; rewards may be in any unit.

    Args:
        mixed: Whether several problem sets may be there, as draws of a population.

    Raises:
        FrontierError: What is asked for is not there, several problem sets are mixed, or a value is not finite.
    """
    if unit not in UNITS:
        raise FrontierError(f"the unit {unit!r} is unknown; it must be one of {', '.join(UNITS)}")
    if metric not in evals.columns:
        known = ", ".join(c for c in evals.columns if "_at_" in c)
        raise FrontierError(f"there is no metric {metric!r}; there are {known}")
    if UNITS[unit] not in evals.columns:
        raise FrontierError(f"there is no column {UNITS[unit]!r}; fitting in {unit} requires it")
    # A table of one split is of that one, whatever it is called.
    rows = evals if evals["split"].n_unique() == 1 else evals.filter(pl.col("split") == split)
    sets = rows["problem_set"].unique().sort().to_list()
    if problem_set is not None:
        rows = rows.filter(pl.col("problem_set") == problem_set)
    elif len(sets) > 1 and not mixed:
        raise FrontierError(f"the evaluations mix the problem sets {', '.join(sets)}: choose one")
    if rows.is_empty():
        raise FrontierError(f"there is no evaluation of split {split!r} and problem set {problem_set or 'any'}")
    check_group(group)
    if group is not None and group not in rows.columns:
        raise FrontierError(f"there is no column {group!r} to group by; there are {', '.join(rows.columns)}")
    reward, compute = pl.col(metric), pl.col(UNITS[unit])
    wrong = {
        f"{UNITS[unit]} is not a finite number": compute.is_null() | ~compute.cast(pl.Float64).is_finite(),
        f"{UNITS[unit]} is negative": compute < 0,
        f"{metric} is not a finite number": reward.is_null() | ~reward.is_finite(),
    }
    _refuse(rows, wrong, metric, UNITS[unit])
    return rows


def errors_and_answers(
    rows: pl.DataFrame, metric: str, pass_rates: pl.DataFrame | None
) -> tuple[Array | None, bool, Array | None]:
    """Standard errors of evaluations, whether they are known, and the answers behind them.

    Raises:
        FrontierError: The pass rates are not those of the evaluations.
    """
    reward = rows[metric].to_numpy().astype(np.float64)
    if pass_rates is not None:
        answers, rates, samples = answers_of(pass_rates, rows, metric, reward)
        return np.sqrt(response_variance(metric, rates, samples) / answers.shape[1]), True, answers
    if {"questions", "samples"} <= set(rows.columns):
        trials, known = trials_of(metric, rows["questions"].to_numpy(), rows["samples"].to_numpy())
        return binomial_errors(reward, trials), known, None
    return None, False, None


def _refuse(rows: pl.DataFrame, wrong: Mapping[str, pl.Expr], metric: str, column: str) -> None:
    """Refuse impossible values.

    Args:
        wrong: What is wrong, and in which rows.

    Raises:
        FrontierError: Says which value, and of which run.
    """
    for what, bad in wrong.items():
        found = rows.filter(bad)
        if not found.is_empty():
            row = found.row(0, named=True)
            raise FrontierError(
                f"{what} at n = {row['rollouts_per_problem']}, B_p = {row['problems_per_batch']}, seed {row['seed']}: "
                f"{metric} {row[metric]}, {column} {row[column]}"
            )

"""From an ``evals`` table to curves: the runs of each (n, B_p), checked, with the error of every evaluation."""

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
    group: str | None = None, pass_rates: pl.DataFrame | None = None,
) -> list[Curve]:  # fmt: skip
    """Group an ``evals`` table into curves, sorted by B_p and n, and by the grouping column where there is one.

    Args:
        problem_set: Problem set, needed when there are several.
        group: A further column, such as the recipe: runs that differ in it are curves of their own.
        pass_rates: A ``pass_rates`` table of the runs, for the errors of the metric, question by question.

    Raises:
        FrontierError: The metric, unit, split, problem set or grouping column is not there, several problem sets
            are mixed, a reward lies outside 0 to 1, or the pass rates are not those of the evaluations.
    """
    rows = chosen_rows(evals, metric=metric, unit=unit, split=split, problem_set=problem_set, group=group)
    _refuse(rows, {f"{metric} lies outside 0 to 1": ~pl.col(metric).is_between(0, 1)}, metric, UNITS[unit])
    error, error_is_known, answers = errors_and_answers(rows, metric, pass_rates)
    keys = ["problems_per_batch", "rollouts_per_problem", *([group] if group else [])]
    found = []
    for key, part in rows.with_row_index("row").group_by(keys, maintain_order=True):
        # The metric last, so that even points of equal compute have one order.
        own = part.sort("seed", UNITS[unit], metric)
        where = own["row"].to_numpy()
        found.append(
            Curve(
                rollouts_per_problem=int(key[1]),
                problems_per_batch=int(key[0]),
                compute=own[UNITS[unit]].to_numpy().astype(np.float64),
                reward=own[metric].to_numpy().astype(np.float64),
                standard_error=_error_from_differences(own, metric) if error is None else error[where],
                error_is_known=error_is_known,
                answers=None if answers is None else answers[where],
                seed=(own["seed"].rank("dense").to_numpy() - 1).astype(np.int64),
                seed_names=tuple(own["seed"].unique().sort().to_list()),
                group=f"{group} = {key[2]}" if group else "",
            )
        )
    return sorted(found, key=lambda c: (c.problems_per_batch, c.rollouts_per_problem, c.group))


def chosen_rows(
    evals: pl.DataFrame, *, metric: str, unit: str, split: str, problem_set: str | None, group: str | None
) -> pl.DataFrame:
    """The evaluations of one split and one problem set, all of them finite numbers; rewards may be in any unit.

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
    elif len(sets) > 1:
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


def _error_from_differences(own: pl.DataFrame, metric: str) -> Array:
    """Where nothing is known of the questions: what neighbouring evaluations of a run differ by."""
    steps = np.abs(np.diff(own[metric].to_numpy()))[own["seed"].to_numpy()[1:] == own["seed"].to_numpy()[:-1]]
    # The median of |N(0, 2σ²)| is 0.954 σ.
    return np.full(len(own), max(float(np.median(steps)) / 0.954 if len(steps) else 0.0, 1e-4))


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

"""The evaluations to fit, record-breaking points among them, and how exactly each measures its metric.

Errors are those of sampling responses: how much values would differ if the same questions were asked again. The choice
of questions is a separate source of error (``posterior/health.py``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import comb
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression
from scipy.stats import beta

from ..contract.tables import METRIC_PATTERN
from ..errors import FrontierError

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
UNITS = {"rollouts": "rollouts", "tokens": "tokens", "update_steps": "step", "gpu_hours": "gpu_hours"}
"""Units of compute, and the column that holds each."""
TOLERANCE = 1e-9
"""Relative rounding error within which compute still counts as within the data."""


def not_beyond(compute: Array | float, last: Array | float) -> Mask:
    """Return whether data that end at ``last`` reach ``compute``; broadcasts over its arguments."""
    return np.asarray(compute <= last * (1 + TOLERANCE), dtype=np.bool_)


TAKEN = frozenset({"seed", "rollouts_per_problem", "problems_per_batch", *UNITS.values()})
"""Columns that already distinguish curves, seeds or evaluations."""


def check_group(group: str | None) -> None:
    """Refuse to group by a column that already distinguishes curves, seeds or evaluations."""
    if group in TAKEN:
        raise FrontierError(
            f"curves cannot be grouped by {group!r}, which has its own meaning in a fit: name another column, such as "
            "a recipe"
        )


def chosen_rows(
    evals: pl.DataFrame,
    *,
    metric: str,
    unit: str,
    split: str,
    problem_set: str | None,
    group: str | None,
    mixed: bool = False,
) -> pl.DataFrame:
    """The evaluations of one split and one problem set, all finite; rewards may be in any unit.

    Args:
        mixed: Whether there may be several problem sets, as draws from a population.

    Raises:
        FrontierError: A column, split or problem set is missing, problem sets are mixed, or a value is not finite.
    """
    if unit not in UNITS:
        raise FrontierError(f"the unit {unit!r} is unknown; it must be one of {', '.join(UNITS)}")
    if metric not in evals.columns:
        known = ", ".join(c for c in evals.columns if "_at_" in c)
        raise FrontierError(f"there is no metric {metric!r}; there are {known}")
    if UNITS[unit] not in evals.columns:
        raise FrontierError(f"there is no column {UNITS[unit]!r}; fitting in {unit} requires it")
    # A table with a single split is used whatever the split's name.
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
    refuse(rows, wrong, metric, UNITS[unit])
    return rows


def refuse(rows: pl.DataFrame, wrong: Mapping[str, pl.Expr], metric: str, column: str) -> None:
    """Refuse impossible values: say what is wrong, and in which rows."""
    for what, bad in wrong.items():
        found = rows.filter(bad)
        if not found.is_empty():
            row = found.row(0, named=True)
            raise FrontierError(
                f"{what} at n = {row['rollouts_per_problem']}, B_p = {row['problems_per_batch']}, seed {row['seed']}: "
                f"{metric} {row[metric]}, {column} {row[column]}"
            )


def refuse_one_seed(evals: pl.DataFrame, keys: Sequence[str | None]) -> None:
    """Refuse two runs with the same seed: they would form one curve whose points jump between the runs.

    Args:
        keys: Columns that distinguish runs; absent ones are ignored.
    """
    if "run_id" not in evals.columns:
        return
    known = [name for name in dict.fromkeys(keys) if name in evals.columns]
    ids = pl.col("run_id").drop_nulls().unique().sort()
    several = evals.group_by(known).agg(ids=ids).filter(pl.col("ids").list.len() > 1).sort(known)
    if not several.is_empty():
        row = several.row(0, named=True)
        raise FrontierError(
            f"the runs {row['ids'][0]} and {row['ids'][1]} have one seed, {row['seed']}, at "
            f"n = {row['rollouts_per_problem']} and B_p = {row['problems_per_batch']}, so that one curve would be "
            "drawn through both: leave one out if they are the same run, give each a seed of its own, or name the "
            "column that tells them apart with --group"
        )


def of_setting(evals: pl.DataFrame, *, problems_per_batch: int | None, batch_rollouts: int | None) -> pl.DataFrame:
    """The evaluations of one of the three settings of the IsoCompute Playbook, section 4.

    Args:
        problems_per_batch: Only this B_p: n against M (the first setting); None takes all.
        batch_rollouts: Only this B = B_p·n: B_p against n (the second). Without either, all are taken (the third).

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
        known = "; ".join(f"B_p = {size}, n = {n}, B = {size * n}" for size, n in pairs)
        asked = {"B_p": problems_per_batch, "B": batch_rollouts}
        wanted = " and ".join(f"{name} = {value}" for name, value in asked.items() if value)
        raise FrontierError(f"no run has {wanted}; there are {known}")
    return kept


def records(compute: Array, reward: Array, *, bin_width: float = 0.005) -> np.ndarray:
    """Indices of the record-breaking points, one per bin of reward (Playbook, section 4, Figures 5 and 15).

    The maximum of noisy evaluations is biased upward, the more so the more often a run is evaluated. So fits use all
    points by default, and report the result for records beside.

    Args:
        bin_width: A record counts if it reaches a bin of this width that no earlier point reached; 0 takes every new
            maximum.

    Returns:
        Indices in order of compute.

    Raises:
        FrontierError: The width is negative.
    """
    if bin_width < 0 or not np.isfinite(bin_width):
        raise FrontierError(f"the bin width is {bin_width}; it must be 0 or more")
    order = np.lexsort((-reward, compute))
    levels = np.floor(reward[order] / bin_width + 1e-9) if bin_width > 0 else reward[order]
    return np.asarray(order[np.diff(np.maximum.accumulate(levels), prepend=-np.inf) > 0])


def smoothed(values: Array, window: int) -> Array:
    """Centred running mean over an odd number of points; shorter at the ends."""
    if window == 1 or not len(values):
        return values
    sums = np.concatenate([[0.0], np.cumsum(values)])
    half = window // 2
    index = np.arange(len(values))
    low, high = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    return np.asarray((sums[high] - sums[low]) / (high - low))


def isotonic(compute: Array, reward: Array) -> Array:
    """The non-decreasing step curve closest to the points in least squares (pool adjacent violators).

    Args:
        compute: Compute of each point; equal ones get one value.

    Returns:
        Fitted value of each point, in the given order.
    """
    if not len(compute):
        return np.zeros(0)
    _, where, mass = np.unique(compute, return_inverse=True, return_counts=True)
    return np.asarray(isotonic_regression(np.bincount(where, reward) / mass, weights=mass).x[where])


PASS_RATE_TOLERANCE = 5e-3
"""Largest allowed difference between an evaluation and the mean of its questions: some tables are in single
precision."""


def answers_of(pass_rates: pl.DataFrame, rows: pl.DataFrame, metric: str, reward: Array) -> tuple[Array, Array, int]:
    """Each question's contribution to a metric and its pass rate, both ``(evaluations, questions)``, and the samples.

    Args:
        reward: Values of the metric, shape ``(evaluations,)``.

    Raises:
        FrontierError: As for ``rates_of``; or the metric cannot be computed from pass rates, or these belong to other
            evaluations.
    """
    found = kind_of(metric)
    if found is None:
        known = "avg_at_k, best_at_k and worst_at_k"
        raise FrontierError(f"{metric} cannot be computed from pass rates (only {known} can): fit without pass rates")
    successes, samples = rates_of(pass_rates, rows)
    if found[0] != "avg" and found[1] > samples:
        raise FrontierError(f"{metric} needs {found[1]} samples per question; the pass rates have {samples}")
    values = values_of(metric, successes, samples)
    off = np.abs(values.mean(axis=1) - reward)
    if off.max() > PASS_RATE_TOLERANCE:
        row = rows.row(int(off.argmax()), named=True)
        raise FrontierError(
            f"run {row['run_id']} has {metric} {row[metric]:.4f} at step {row['step']} and pass rates of "
            f"{values.mean(axis=1)[int(off.argmax())]:.4f}: they are not of the same evaluation"
        )
    return values, successes / samples, samples


def rates_of(pass_rates: pl.DataFrame, rows: pl.DataFrame) -> tuple[Array, int]:
    """Successes of every question in every evaluation, shape ``(evaluations, questions)``, and samples per question.

    Args:
        rows: Evaluations, with ``run_id`` and ``step``.

    Raises:
        FrontierError: An evaluation has no pass rates, or evaluations differ in their questions or samples.
    """
    if not {"run_id", "step"} <= set(rows.columns):
        raise FrontierError("pass rates are matched to evaluations by run_id and step, which the evaluations lack")
    wanted = rows.select("run_id", "step").with_row_index("row")
    own = wanted.join(pass_rates, on=["run_id", "step"], how="left", maintain_order="left")
    missing = own.filter(pl.col("problem_id").is_null())
    if not missing.is_empty():
        first = missing.row(0, named=True)
        raise FrontierError(f"the pass rates have no row of run {first['run_id']} at step {first['step']}")
    samples = own["samples"].unique().to_list()
    if len(samples) > 1:
        low, high = min(samples), max(samples)
        raise FrontierError(f"the pass rates have {low} to {high} samples per question: fit without them")
    ids = own["problem_id"].unique().sort()
    if len(own) != len(ids) * len(rows) or own.select("row", "problem_id").is_duplicated().any():
        raise FrontierError("the evaluations did not all ask the same questions once: fit without pass rates")
    return own.sort("row", "problem_id")["successes"].to_numpy().reshape(len(rows), len(ids)), int(samples[0])


RATES = np.linspace(0.0, 1.0, 513)
"""Pass rates at which the variance of a metric is tabulated."""
LEVELS = (np.arange(64) + 0.5) / 64


def kind_of(metric: str) -> tuple[str, int] | None:
    """Kind (``avg``, ``best`` or ``worst``) and k of a metric such as ``best_at_4``; None for any other metric."""
    if not re.fullmatch(METRIC_PATTERN, metric):
        return None
    kind, k = metric.split("_at_")
    return (kind, int(k)) if int(k) > 0 else None


def values_of(metric: str, successes: NDArray[Any], samples: int) -> Array:
    """A question's contribution to a metric, given its successes among its samples.

    ``best_at_k`` and ``worst_at_k`` are the exact probabilities that the best and the worst of k samples, drawn without
    replacement, is right.

    Args:
        successes: Whole numbers, of any shape.
        samples: Samples per question, k or more for ``best`` and ``worst``.
    """
    kind, k = kind_of(metric) or ("avg", 1)
    if kind == "avg":
        return np.asarray(successes / samples)
    table = [comb(samples - c if kind == "best" else c, k) / comb(samples, k) for c in range(samples + 1)]
    chance = np.array(table)[np.asarray(successes, dtype=np.int64)]
    return np.asarray(1.0 - chance if kind == "best" else chance)


def response_variance(metric: str, rates: Array, samples: int) -> Array:
    """Mean variance of a question's contribution over samplings of its responses, one per evaluation.

    The questions' true pass rates are assumed to follow a Beta distribution with the mean and spread of the measured
    ones, less the spread due to sampling. A single value per question, as of ``best_at_k`` with k samples, does not
    reveal it.

    Args:
        rates: Measured pass rates, shape ``(evaluations, questions)``.
    """
    questions = rates.shape[1]
    # Add half a success and half a failure, so that a mean of 0 or 1 has an error too.
    trials = questions * samples
    mean = (rates.mean(axis=1) * trials + 0.5) / (trials + 1)
    largest = mean * (1 - mean)
    sampled = sampling_variance((rates * (1 - rates)).mean(axis=1), samples) if samples > 1 else largest
    between = rates.var(axis=1, ddof=1) - sampled if questions > 1 else np.zeros_like(mean)
    alike = np.clip(between / largest, 1e-3, 0.999)
    nodes = beta.ppf(LEVELS, (mean * (1 / alike - 1))[:, None], ((1 - mean) * (1 / alike - 1))[:, None])
    counts = np.arange(samples + 1)
    chance = np.array([comb(samples, c) for c in counts]) * RATES[:, None] ** counts
    chance = chance * (1 - RATES[:, None]) ** (samples - counts)
    value = values_of(metric, counts, samples)
    variance = chance @ value**2 - (chance @ value) ** 2
    return np.asarray(np.interp(nodes, RATES, np.maximum(variance, 0.0)).mean(axis=1))


def trials_of(metric: str, questions: Array, samples: Array) -> tuple[Array, bool]:
    """Number of independent trials that an evaluation is worth if pass rates are unknown, and whether it is exact.

    ``avg_at_k`` has at most the binomial error of all its samples. For any other metric, a question's contribution lies
    between 0 and 1, so the error is at most the binomial error over questions. With k samples, it equals that error.
    """
    found = kind_of(metric)
    average = found is not None and found[0] == "avg"
    return np.asarray(questions * (samples if average else 1), dtype=np.float64), average


def binomial_errors(reward: Array, trials: Array) -> Array:
    """Standard errors of success shares, with half a success and half a failure added: 0 and 1 have an error too."""
    return binomial_error((reward * trials + 0.5) / (trials + 1.0), trials)


def binomial_error(rate: Array, trials: Array | float) -> Array:
    """Standard deviation of the success share in independent trials at a known rate."""
    return np.asarray(np.sqrt(rate * (1 - rate) / trials))


def sampling_variance(spread: Array, samples: Array | int) -> Array:
    """Binomial variance of a measured pass rate, unbiased.

    Args:
        spread: r(1−r) of the measured rates, or its mean over questions.
        samples: Samples per question; one sample gives no estimate, and is treated as two.
    """
    return np.asarray(spread / np.maximum(samples - 1, 1))

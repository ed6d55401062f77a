"""Pass rates matched to evaluations: what each question contributed to each of them."""

from __future__ import annotations

import numpy as np
import polars as pl

from ..errors import FrontierError
from .curves import Array
from .precision import kind_of, values_of

TOLERANCE = 5e-3
"""How far an evaluation may lie from the mean of its questions: some tables are in single precision."""


def rates_of(pass_rates: pl.DataFrame, rows: pl.DataFrame) -> tuple[Array, int]:
    """Successes of every question at every evaluation, shape ``(evaluations, questions)``, and the samples of each.

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


def answers_of(pass_rates: pl.DataFrame, rows: pl.DataFrame, metric: str, reward: Array) -> tuple[Array, Array, int]:
    """Each question's contribution to a metric and its pass rate, both ``(evaluations, questions)``, and the samples.

    Args:
        rows: Evaluations, with ``run_id``, ``step`` and the metric.
        metric: Metric column, such as ``best_at_4``.
        reward: Its values, shape ``(evaluations,)``.

    Raises:
        FrontierError: As for ``rates_of``; or the metric does not follow from pass rates, or they are of other
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
    if off.max() > TOLERANCE:
        row = rows.row(int(off.argmax()), named=True)
        raise FrontierError(
            f"run {row['run_id']} has {metric} {row[metric]:.4f} at step {row['step']} and pass rates of "
            f"{values.mean(axis=1)[int(off.argmax())]:.4f}: they are not of the same evaluation"
        )
    return values, successes / samples, samples

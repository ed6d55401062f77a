"""Units of compute: GPU-hours from timings, and what rollouts are in tokens (IsoCompute Playbook, Appendix E)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from ..errors import FrontierError

EVALUATION = ("evaluate",)
"""Phases of a step that are not training and are not charged to it."""


def with_gpu_hours(
    evals: pl.DataFrame, timings: pl.DataFrame, *, without: tuple[str, ...] = EVALUATION
) -> pl.DataFrame:
    """Add ``gpu_hours``: device-seconds of all steps up to and including an evaluation's, over 3,600.

    Args:
        evals: An ``evals`` table with ``run_id`` and ``step``.
        without: Phases left out; by default evaluation, which rollouts and tokens leave out too.

    Raises:
        FrontierError: A table lacks the key, or a run or its last steps have no timings.
    """
    for name, table in (("evals", evals), ("timings", timings)):
        missing = [c for c in ("run_id", "step") if c not in table.columns]
        if missing:
            raise FrontierError(f"the {name} lack {', '.join(missing)}: GPU-hours join the two on run_id and step")
    spent = (
        timings.filter(~pl.col("phase").is_in(list(without)))
        .group_by("run_id", "step")
        .agg(pl.col("device_seconds").sum())
        .sort("run_id", "step")
        .with_columns(gpu_hours=pl.col("device_seconds").cum_sum().over("run_id") / 3600)
        .select("run_id", "step", "gpu_hours")
    )
    ends = spent.group_by("run_id").agg(pl.col("step").max().alias("timed"))
    short = (
        evals.group_by("run_id")
        .agg(pl.col("step").max().alias("evaluated"))
        .join(ends, on="run_id", how="left")
        .filter(pl.col("timed").is_null() | (pl.col("timed") < pl.col("evaluated")))
        .sort("run_id")
    )
    if not short.is_empty():
        row = short.row(0, named=True)
        known = "no timings" if row["timed"] is None else f"timings up to step {row['timed']}"
        raise FrontierError(f"run {row['run_id']} is evaluated at step {row['evaluated']} and has {known}")
    # A step without timings of its own has those of the steps before it.
    hours = (
        evals.select("run_id", "step")
        .unique()
        .join(spent, on=["run_id", "step"], how="full", coalesce=True)
        .sort("run_id", "step")
        .with_columns(pl.col("gpu_hours").forward_fill().over("run_id").fill_null(0.0))
    )
    return evals.join(hours, on=["run_id", "step"], how="left").sort("run_id", "step")


def amount(compute: float) -> str:
    """Compute to be printed: whole where it is large, three digits where it is small."""
    return f"{compute:,.0f}" if compute >= 1000 else f"{compute:.3g}"


def short(compute: float) -> str:
    """An amount in three digits: 920, 16k, 1.3M."""
    for factor, sign in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if compute >= 0.9995 * factor:
            return f"{compute / factor:.3g}{sign}"
    return f"{compute:.3g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """An amount of compute in another unit.

    Attributes:
        value: The amount, in the unit asked for.
        tokens_per_rollout: Mean response tokens per rollout, at the point converted.
        measured: Whether it lies within what the runs measured; beyond, responses are taken to stay as long as
            they last were.
    """

    value: float
    tokens_per_rollout: float
    measured: bool


def convert(
    evals: pl.DataFrame, amount: float, *, to: str, rollouts_per_problem: int, problems_per_batch: int | None = None
) -> Conversion:
    """Convert rollouts to tokens or tokens to rollouts along the runs of one setting.

    Responses change in length while a model is trained, and differently for every n: the cumulative counts of the
    runs are interpolated, never a mean length multiplied. Several runs are averaged at equal rollouts. Tokens are
    response tokens, as in ``evals``; prompts, and the speed at which a GPU makes either, are not in them.

    Args:
        amount: What is converted, above 0.
        to: ``tokens`` or ``rollouts``.
        problems_per_batch: B_p of the runs; any by default.

    Raises:
        FrontierError: No run is of this setting, it logged no tokens, the amount is not a positive number, or
            the unit is neither.
    """
    if to not in ("tokens", "rollouts"):
        raise FrontierError(f"compute is converted to tokens or rollouts, not to {to!r}")
    if not (np.isfinite(amount) and amount > 0):
        raise FrontierError(f"the amount is {amount}; it must be above 0")
    own = evals.filter(pl.col("rollouts_per_problem") == rollouts_per_problem)
    if problems_per_batch is not None:
        own = own.filter(pl.col("problems_per_batch") == problems_per_batch)
    counted = own.filter(pl.col("rollouts") > 0).group_by("rollouts").agg(pl.col("tokens").mean()).sort("rollouts")
    if counted.is_empty() or counted["tokens"].max() == 0:
        raise FrontierError(f"no run of n = {rollouts_per_problem} has counted tokens to convert by")
    rollouts = np.concatenate([[0.0], counted["rollouts"].to_numpy().astype(np.float64)])
    tokens = np.maximum.accumulate(np.concatenate([[0.0], counted["tokens"].to_numpy()]))
    given, wanted = (rollouts, tokens) if to == "tokens" else (tokens, rollouts)
    last = max(len(rollouts) - 2, 0)
    length = float((tokens[-1] - tokens[last]) / (rollouts[-1] - rollouts[last]))
    if amount <= given[-1]:
        value, measured = float(np.interp(amount, given, wanted)), True
        k = int(np.clip(np.searchsorted(given, amount), 1, len(given) - 1))
        length = float((tokens[k] - tokens[k - 1]) / (rollouts[k] - rollouts[k - 1]))
    else:
        more = (amount - given[-1]) * (length if to == "tokens" else 1 / max(length, 1e-300))
        value, measured = float(wanted[-1] + more), False
    return Conversion(value=value, tokens_per_rollout=length, measured=measured)


def counted(count: int, noun: str) -> str:
    """A count and its noun to be printed, such as ``1 run`` or ``2,048 runs``.

    Args:
        noun: What is counted, in the singular; its plural adds an s.
    """
    return f"{count:,} {noun}" + ("" if count == 1 else "s")

"""How hard each problem is for a base model, and problem sets by difficulty (IsoCompute Playbook, section 3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from ..errors import RolloutError
from .evaluation import successes


@dataclass(frozen=True, slots=True, kw_only=True)
class DifficultySplit:
    """A problem set by pass rate.

    Attributes:
        name: Name of the set, such as ``easy``.
        lowest: Smallest pass rate in it.
        highest: Largest pass rate in it.
        train: Training problems.
        validation: Validation problems.

    Raises:
        RolloutError: The interval is empty or not within 0 to 1, or a side has no problems.
    """

    name: str
    lowest: float
    highest: float
    train: int
    validation: int = 300

    def __post_init__(self) -> None:
        if not 0 <= self.lowest <= self.highest <= 1:
            raise RolloutError(
                f"the set {self.name} takes pass rates from {self.lowest} to {self.highest}; "
                "an interval within 0 to 1 is needed"
            )
        if min(self.train, self.validation) < 1:
            raise RolloutError(f"the set {self.name} needs at least one training and one validation problem")


def with_pass_rates(problems: pl.DataFrame, rollouts: pl.DataFrame, *, fresh: bool = False) -> pl.DataFrame:
    """Add ``pass_rate`` and ``pass_rate_samples`` (avg@m over the m responses) to the problems answered.

    What selects never measures: responses that selected problems overstate how well those problems fit the interval
    (regression to the mean); fresh ones do not.

    Args:
        fresh: Write ``fresh_pass_rate`` and ``fresh_pass_rate_samples`` instead: the responses selected nothing.

    Returns:
        The problems that have completed responses, sorted by ``problem_id``.

    Raises:
        RolloutError: Responses of phase ``difficulty`` are given as fresh, or those of phase ``baseline`` are not.
    """
    wrong = "difficulty" if fresh else "baseline"
    if "phase" in rollouts.columns and (rollouts["phase"] == wrong).any():
        raise RolloutError(
            f"the rollouts are of phase {wrong}; "
            + (
                "they selected problems, and fresh ones are needed"
                if fresh
                else "they measure problems already selected"
            )
        )
    name = "fresh_pass_rate" if fresh else "pass_rate"
    rates = successes(rollouts).select(
        "problem_id",
        (pl.col("successes") / pl.col("samples")).alias(name),
        pl.col("samples").alias(f"{name}_samples"),
    )
    return problems.drop(name, f"{name}_samples", strict=False).join(rates, on="problem_id").sort("problem_id")


def inside(problems: pl.DataFrame, *, lowest: float, highest: float, min_samples: int = 1) -> pl.DataFrame:
    """Return the problems whose pass rate lies in an interval.

    A pass rate of 0 after m responses is a bound, not a zero: with 95 % confidence the problem's own is below 3 / m.

    Args:
        problems: A ``problems`` table with ``pass_rate``.
        min_samples: Responses that a problem must have been measured with.

    Returns:
        A ``problems`` table, sorted by ``problem_id``.

    Raises:
        RolloutError: The interval is not within 0 to 1, or no problem was measured so often.
    """
    if not 0 <= lowest <= highest <= 1:
        raise RolloutError(f"pass rates from {lowest} to {highest} are asked for; an interval within 0 to 1 is needed")
    if min_samples < 1:
        raise RolloutError(f"min_samples is {min_samples}; it must be at least 1")
    if min_samples > 1 and "pass_rate_samples" not in problems.columns:
        raise RolloutError(
            f"problems measured {min_samples} times are asked for, and the table has no column pass_rate_samples"
        )
    if min_samples > 1:
        most = int(problems["pass_rate_samples"].fill_null(0).to_numpy().max())
        if most < min_samples:
            raise RolloutError(
                f"problems measured {min_samples} times are asked for, and the most that any was is {most}: measure "
                f"with `difficulty --samples {min_samples}`"
            )
        problems = problems.filter(pl.col("pass_rate_samples") >= min_samples)
    return problems.filter(pl.col("pass_rate").is_between(lowest, highest)).sort("problem_id")


def split(problems: pl.DataFrame, wanted: DifficultySplit, *, min_samples: int = 1) -> pl.DataFrame:
    """Choose the problems of a set, ``train`` and ``validation``.

    Problems keep the side they were generated for; on each side those with the smallest ``problem_id`` (a
    hash, so an arbitrary but fixed choice) are taken.

    Args:
        problems: A ``problems`` table with ``pass_rate``.
        min_samples: Responses that a problem must have been measured with.

    Returns:
        A ``problems`` table of ``train`` + ``validation`` rows, sorted by ``problem_id``.

    Raises:
        RolloutError: A side cannot be filled; the message says how many problems there are and what would help.
    """
    found = inside(problems, lowest=wanted.lowest, highest=wanted.highest, min_samples=min_samples)
    parts = []
    for side, count in (("train", wanted.train), ("validation", wanted.validation)):
        candidates = found.filter(pl.col("split") == side)
        if len(candidates) < count:
            total = len(problems.filter(pl.col("split") == side))
            mean = float(problems["pass_rate"].to_numpy().mean())
            raise RolloutError(
                f"the set {wanted.name} needs {count} {side} problems with a pass rate from {wanted.lowest:g} to "
                f"{wanted.highest:g}, and {len(candidates)} of {total} measured ones have it (the mean pass rate "
                f"is {mean:.2f}): {_advice(count, len(candidates), total, side)}"
            )
        parts.append(candidates.head(count))
    return pl.concat(parts).sort("problem_id")


def _advice(wanted: int, found: int, total: int, side: str) -> str:
    """What would fill a side."""
    if not found:
        return f"generate other {side} problems (easier or harder ones), or move the interval to where problems are"
    needed = int(np.ceil(1.1 * wanted * total / found / 100)) * 100
    return f"generate about {needed:,} {side} problems, widen the interval, or make the set smaller"


def histogram(problems: pl.DataFrame, *, bins: int = 16) -> pl.DataFrame:
    """Count problems by pass rate (IsoCompute Playbook, figure 2).

    Args:
        problems: A ``problems`` table with ``pass_rate``.
        bins: Intervals of equal width from 0 to 1.

    Returns:
        ``lowest`` and ``highest`` (the edges of a bin) and ``problems`` (how many lie in it).
    """
    counts, edges = np.histogram(problems["pass_rate"].to_numpy(), bins=bins, range=(0.0, 1.0))
    return pl.DataFrame({"lowest": edges[:-1], "highest": edges[1:], "problems": counts})

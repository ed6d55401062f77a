"""Whether a logged mean reward is a success rate, on which scale: from its values and its logged spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isclose, sqrt

from ..errors import BudgetError

SCALES = {"rate": (0.0, 1.0), "sign": (-1.0, 1.0), "percent": (0.0, 100.0)}
"""Rewards of failure and success: 0 and 1, -1 and 1, 0 and 100."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A mean reward.

    Attributes:
        step: Where it was logged.
        mean: The mean, of batches of equal weight.
        deviation: The mean of the batches' standard deviations (of samples), or None.
        batch: Responses in each batch, or None.
        batches: Batches, where all are of one size, or None.
    """

    step: int
    mean: float
    deviation: float | None = None
    batch: int | None = None
    batches: int | None = None


def success_rates(points: Sequence[Point], name: str, declared: str, *, where: str) -> tuple[dict[int, float], str]:
    """Means as success rates, by step.

    Args:
        declared: The scale that the user says it has, or an empty text.

    Returns:
        The rates, and what is to be said of the scale; an empty text where it is 0 and 1.

    Raises:
        BudgetError: No scale fits, so that rewards other than of success and failure are in it.
    """
    if declared not in ("", *SCALES):
        raise BudgetError(f"{where}: scale is {declared!r}; it must be {', '.join(SCALES)}")
    for scale in [declared] if declared else SCALES:
        low, high = SCALES[scale]
        rates = {p.step: (p.mean - low) / (high - low) for p in points}
        if all(_fits(p, rates[p.step], high - low) for p in points):
            said = "" if scale == "rate" else f"{name} is of rewards {low:g} and {high:g}: it is read as a success rate"
            return {step: min(max(rate, 0.0), 1.0) for step, rate in rates.items()}, said
    low, high = SCALES[declared or "rate"]
    worst = next((p for p in points if not _fits(p, (p.mean - low) / (high - low), high - low)), points[0])
    spread = "" if worst.deviation is None else f" with a standard deviation of {worst.deviation:g}"
    raise BudgetError(
        f"{where}: {name} is {worst.mean:g}{spread} at step {worst.step}, which is not a success rate: "
        "name the accuracy's own metric with --set metric=NAME"
    )


def _fits(point: Point, rate: float, width: float) -> bool:
    """Whether a mean can be of successes and failures alone."""
    if not -1e-6 <= rate <= 1 + 1e-6:
        return False
    if point.batch and point.batches:
        successes = rate * point.batch * point.batches
        if point.batch * point.batches < 1e5 and abs(successes - round(successes)) > 1e-3 + 1e-6 * successes:
            return False
    if point.deviation is None:
        return True
    deviation = point.deviation / width
    # A last batch may hold two responses only, whose sample deviation is the largest.
    correction = sqrt(point.batch / (point.batch - 1)) if point.batch and point.batch > 1 and point.batches else sqrt(2)
    most = sqrt(max(rate * (1 - rate), 0.0)) * correction
    if deviation > most * 1.001 + 1e-3:
        return False
    single = point.batches == 1 and point.batch is not None and point.batch > 1
    return not single or isclose(deviation, most, rel_tol=2e-3, abs_tol=2e-3)

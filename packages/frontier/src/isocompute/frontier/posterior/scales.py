"""Runs whose reward was logged on another scale than that of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .siblings import common_start, usual_at
from .view import View

SCALES: dict[str, Callable[[float], float]] = {
    "twice": lambda r: 2 * r,
    "half": lambda r: r / 2,
    "(1 + r)/2 of": lambda r: (1 + r) / 2,
    "2r − 1 of": lambda r: 2 * r - 1,
    "a hundredth of": lambda r: r / 100,
    "a hundred times": lambda r: 100 * r,
}
"""Scales in use: −1 and 1 for wrong and right, percent, and a reward halved or doubled by a second part."""
FAR = 4.0
"""Standard errors between starts beyond which they are not of one model and scale: they differ by sampling alone."""
NEAR = 3.0
"""Standard errors within which a start lies where a scale would put it."""


def other_scale(own: View, others: Sequence[View]) -> str | None:
    """Why the run is of another scale than the others; None where nothing says so.

    Rewards outside 0 to 1 are. Else its start is compared with the common one of two others or more, and it must lie
    where a scale of ``SCALES`` puts it. The second evaluation must agree, and the others be possible on that scale.
    """
    low, high = float(own.run.reward.min()), float(own.run.reward.max())
    if low < 0 or high > 1:
        return f"has rewards from {low:.3g} to {high:.3g}, where a share of successes lies within 0 to 1"
    shared, count = common_start(own, [o for o in others if o.run.reward.min() >= 0 and o.run.reward.max() <= 1])
    if count < 2 or own.run.compute[0] > 0 or len(own.compute) < 2:
        return None
    first, usual, second = own.first, shared.reward, float(own.reward[1])
    if abs(first.reward - usual) <= FAR * np.hypot(first.error, shared.error):
        return None
    later = usual_at(own, others, float(own.compute[1]))
    for name, scale in SCALES.items():
        error = np.hypot(first.error, (scale(1.0) - scale(0.0)) * shared.error)
        possible = first.reward > 0 and low >= scale(0.0) - NEAR * error and high <= scale(1.0) + NEAR * error
        # A single bad evaluation at the start is no scale: the next one must be on it too.
        agrees = abs(second - scale(later)) < abs(second - later)
        if possible and agrees and abs(first.reward - scale(usual)) <= NEAR * error:
            return f"starts at {first.reward:.3f}, which is {name} the {usual:.3f} that {count} others start at"
    return None

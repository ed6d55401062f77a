"""ScaleRL's own procedure: a grid over the asymptote and the midpoint, the steepness fitted at each.

The asymptote is on the paper's grid of 0.005. The midpoint's hundred candidates are log-spaced over the data,
where the paper's are fixed to its own runs.
"""

from __future__ import annotations

import numpy as np

from ..data.curves import Array
from .forms import Parameters

STEP = 0.005
MIDPOINTS = 100
STEEPNESS = np.geomspace(0.3, 6.0, 241)


def fit_scalerl(compute: Array, reward: Array, r0: float) -> Parameters:
    """Fit the hill form by exhaustive search in plain sums of squares.

    Args:
        compute: Compute of each point, above 0.
        r0: Reward before training.
    """
    asymptotes = np.arange(np.ceil((r0 + STEP) / STEP), np.floor(1.0 / STEP) + 1) * STEP
    midpoints = np.geomspace(compute.min() / 3, compute.max() * 10, MIDPOINTS)
    best = (np.inf, 0.0, 0.0, 1.0)
    for middle in midpoints:
        # All steepnesses and asymptotes of one midpoint at once: (steepness, points), then squares in closed form.
        share = 1.0 / (1.0 + (middle / compute[None, :]) ** STEEPNESS[:, None])
        target = reward - r0
        yy, hy, hh = (target**2).sum(), share @ target, (share**2).sum(axis=1)
        gain = asymptotes[None, :] - r0
        squares = yy - 2 * gain * hy[:, None] + gain**2 * hh[:, None]
        k, a = np.unravel_index(squares.argmin(), squares.shape)
        if squares[k, a] < best[0]:
            best = (float(squares[k, a]), float(asymptotes[a]), float(middle), float(STEEPNESS[k]))
    _, asymptote, middle, steepness = best
    return Parameters(form="hill", start=r0, gain=asymptote - r0, scale=middle, shape=steepness)

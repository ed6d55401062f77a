"""Choosing a form: AICc, or how well a fit to the first part of a run predicts its tail."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .curves import Array
from .fitting import grid, project
from .forms import rise

CRITERIA = ("aicc", "tail")
TAIL = 0.25
"""Share of the distinct evaluations, those of most compute, that a tail error is measured on."""


def tail_of(compute: Array) -> NDArray[np.bool_] | None:
    """Which points are the held-out tail, or None where too few are left to fit or to predict."""
    distinct = np.unique(compute[compute > 0])
    held = int(len(distinct) * TAIL)
    # Four parameters need five points, or they predict nothing.
    if held < 2 or len(distinct) - held < 5:
        return None
    return np.asarray(compute >= distinct[-held], dtype=np.bool_)


def tail_errors(form: str, compute: Array, rewards: Array, weights: Array, start: Array | None) -> Array | None:
    """Mean squared error on the tail, over its variance, of a form fitted to what comes before.

    Args:
        form: The form.
        compute: Compute of each point.
        rewards: Rewards of one or several runs, shape ``(sets, points)``.
        weights: One over the variance of each point.
        start: R0 of each set where it is held fixed.

    Returns:
        One error a set (1 where only noise is left), or None where the run has no tail to hold out.
    """
    tail = tail_of(compute)
    if tail is None:
        return None
    head = ~tail
    candidates = grid(form, compute[head])
    first, gain, squares = project(candidates, rewards[:, head], weights[head], start)
    best = squares.argmin(axis=1)
    rows = np.arange(len(rewards))
    share = rise(form, compute[tail][None, :], candidates.scale[best, None], candidates.shape[best, None])
    miss = first[rows, best][:, None] + gain[rows, best][:, None] * share - rewards[:, tail]
    return np.asarray((miss**2 * weights[tail]).mean(axis=1))

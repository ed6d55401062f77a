"""How often each curve is best, after the observed differences between curves are shrunk (partial pooling).

Of several equal curves, the highest is often well above the others by chance. Refits start from the observed data, so
without shrinkage that curve would be best in most of them. Here the curves' true rewards at one compute differ by
N(0, τ²) about their mean, with τ over the error of a difference drawn from its posterior: a half-Cauchy prior, and
Student's t for what is seen. A refit keeps g²/(1+g²) of each difference, g being that ratio: where differences are
many times their errors nothing changes (Gelman, Hill and Yajima, 2012).
"""

from __future__ import annotations

import numpy as np

from ..data.curves import Array, Mask

RATIOS = np.geomspace(0.02, 50.0, 80)
"""Ratios of τ to the error of a difference."""


def best_shares(point: Array, refits: Array, within: Mask, degrees: float) -> Array:
    """Share of the refits in which each curve is the best at each compute, shape ``(curves, points)``.

    Args:
        point: Fitted rewards, shape ``(curves, points)``.
        refits: Refitted rewards, shape ``(refits, curves, points)``.
        within: Curves compared at each compute, shape ``(curves, points)``; the others have a share of 0.
        degrees: Degrees of freedom behind the errors.
    """
    shares = np.zeros(point.shape)
    for p in range(point.shape[1]):
        compared = np.flatnonzero(within[:, p])
        if not len(compared):
            continue
        pooled = shrunk(point[compared, p], refits[:, compared, p], degrees)
        shares[compared, p] = np.bincount(pooled.argmax(axis=1), minlength=len(compared)) / len(refits)
    return shares


def shrunk(point: Array, refits: Array, degrees: float) -> Array:
    """Differences from the mean of the curves at one compute in every refit, shrunk, shape ``(refits, curves)``.

    Args:
        point: Fitted rewards, shape ``(curves,)``.
        refits: Refitted rewards, shape ``(refits, curves)``.
        degrees: Degrees of freedom behind the errors.
    """
    count = len(point)
    seen = point - point.mean()
    errors = refits - refits.mean(axis=1, keepdims=True) - seen
    if count == 1:
        return np.asarray(errors)
    # Half of the central 68 %: few seeds give errors with tails too long for a variance.
    low, high = np.quantile(errors, [0.1587, 0.8413], axis=0)
    variance = max(float(((high - low) ** 2).mean()) / 4 * count / (count - 1), 1e-18)
    total = 1 + RATIOS**2
    squares = float((seen**2).sum()) / variance
    density = np.log(np.gradient(RATIOS) / total) - 0.5 * (count - 1) * np.log(total)
    density -= 0.5 * (degrees + count - 1) * np.log1p(squares / (degrees * total))
    cumulative = np.cumsum(np.exp(density - density.max()))
    # The same draws at all compute, so that what is shrunk is as smooth as the curves are.
    levels = np.random.default_rng(0).random(len(refits))
    drawn = RATIOS[np.searchsorted(cumulative / cumulative[-1], levels).clip(0, len(RATIOS) - 1)]
    kept = (drawn**2 / (1 + drawn**2))[:, None]
    return np.asarray(kept * seen + np.sqrt(kept) * errors)

"""Groups with signal: n responses to a problem that are neither all right nor all wrong.

Of a problem that is solved with probability p these are 1 − p^n − (1 − p)^n of its groups; a group without signal has
no advantages, and is paid for. The share is concave in p, so that its mean over problems is at most the share at the
mean pass rate: how pass rates spread decides it, and one number does not say.
"""

from __future__ import annotations

from math import comb, prod

SPREAD = 2.0
"""a + b of the Beta distribution of pass rates where nothing says how they spread: uniform at a mean of one half."""
LEAST, MOST = 1e-3, 1e6
"""Bounds of a + b: every problem always or never solved, and all problems alike."""


def share_alike(rate: float, n: int) -> float:
    """The share of groups with signal where every problem has one pass rate, the most that any spread of it has."""
    return 1 - rate**n - (1 - rate) ** n


def share_spread(mean: float, n: int, spread: float = SPREAD) -> float:
    """The share where pass rates are Beta(a, b) with a + b = ``spread``: E p^n is ∏ (a + i) / (spread + i), i < n."""
    a, b = mean * spread, (1 - mean) * spread
    return 1 - sum(prod((part + i) / (spread + i) for i in range(n)) for part in (a, b))


def share_counted(successes: int, samples: int, n: int) -> float:
    """The share of a problem of which some samples are right: without bias for n up to their number.

    Beyond it, the share at the rate of the samples, whose mean is at most the true one.
    """
    if n > samples:
        return share_alike(successes / samples, n)
    return 1 - (comb(successes, n) + comb(samples - successes, n)) / comb(samples, n)


def spread_of(mean: float, n: int, share: float) -> float:
    """The a + b of Beta pass rates of a mean with which groups of n have a share of signal, within the bounds above."""
    low, high = LEAST, MOST
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if share_spread(mean, n, middle) < share else (low, middle)
    return float((low * high) ** 0.5)

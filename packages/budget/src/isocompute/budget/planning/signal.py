"""Groups with signal: n responses to a problem that are neither all right nor all wrong.

If a problem is solved with probability p, a share 1 − p^n − (1 − p)^n of its groups has signal. A group without signal
has no advantages, but is paid for. The share is concave in p, so its mean over problems is at most the share at the
mean pass rate. It depends on the distribution of pass rates, so the mean alone does not determine it.
"""

from __future__ import annotations

from math import comb, prod

SPREAD = 2.0
"""Default a + b of the Beta distribution of pass rates if it is unknown: uniform at a mean of one half."""
LEAST, MOST = 1e-3, 1e6
"""Bounds of a + b: from every problem always or never solved, to all problems alike."""


def share_alike(rate: float, n: int) -> float:
    """The share of groups with signal if all problems share a pass rate; no distribution with that mean has more."""
    return 1 - rate**n - (1 - rate) ** n


def share_spread(mean: float, n: int, spread: float = SPREAD) -> float:
    """The share if pass rates are Beta(a, b) with a + b = ``spread``: E p^n is ∏ (a + i) / (spread + i), i < n."""
    a, b = mean * spread, (1 - mean) * spread
    return 1 - sum(prod((part + i) / (spread + i) for i in range(n)) for part in (a, b))


def share_counted(successes: int, samples: int, n: int) -> float:
    """The share for a problem from its right samples: unbiased for n up to the number of samples.

    Beyond it, the share at the samples' pass rate, whose expectation is at most the true share.
    """
    if n > samples:
        return share_alike(successes / samples, n)
    return 1 - (comb(successes, n) + comb(samples - successes, n)) / comb(samples, n)


def spread_of(mean: float, n: int, share: float) -> float:
    """The a + b of Beta pass rates of this mean that gives groups of n this share with signal, within the bounds."""
    low, high = LEAST, MOST
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if share_spread(mean, n, middle) < share else (low, middle)
    return float((low * high) ** 0.5)

"""Exact estimators over k of m responses, without replacement (hypergeometric)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import RolloutError

Z = 1.959964
"""Standard deviations of a normal distribution on either side of its mean that hold 95 % of it."""


def avg_at_k(successes: ArrayLike, samples: ArrayLike, k: int) -> NDArray[np.float64]:
    """Expected mean reward of k responses (avg@k): successes / samples, for any k.

    Args:
        successes: Responses with reward 1, per problem.
        samples: Responses sampled, per problem.
        k: Responses drawn; at most ``samples``.

    Returns:
        One value per problem.

    Raises:
        RolloutError: k is below 1 or above a problem's samples, or successes lie outside 0..samples.
    """
    c, m = _checked(successes, samples, k)
    return np.asarray(c / m, dtype=np.float64)


def best_at_k(successes: ArrayLike, samples: ArrayLike, k: int) -> NDArray[np.float64]:
    """Probability that at least one of k responses is right: 1 − C(m−c, k) / C(m, k) (pass@k).

    Returns:
        One value per problem.

    Raises:
        RolloutError: k is below 1 or above a problem's samples, or successes lie outside 0..samples.
    """
    c, m = _checked(successes, samples, k)
    return 1.0 - _all_of(m - c, m, k)


def worst_at_k(successes: ArrayLike, samples: ArrayLike, k: int) -> NDArray[np.float64]:
    """Probability that all of k responses are right: C(c, k) / C(m, k) (pass^k).

    Returns:
        One value per problem.

    Raises:
        RolloutError: k is below 1 or above a problem's samples, or successes lie outside 0..samples.
    """
    c, m = _checked(successes, samples, k)
    return _all_of(c, m, k)


def sampling_variance(metric: str, successes: ArrayLike, samples: ArrayLike, k: int) -> NDArray[np.float64]:
    """Unbiased estimate of the variance that an estimate has from sampling responses, its question given.

    The estimators are means over all draws of k responses, U, and Var U = E U² − θ². Two disjoint draws of k give an
    unbiased estimate of θ², which for a success in every draw is that of 2k responses: C(c, 2k) / C(m, 2k). A single
    estimate may be negative; their mean over many questions is what is used.

    Args:
        metric: ``avg``, ``best`` or ``worst``.
        successes: Responses with reward 1, per problem.
        samples: Responses sampled, per problem: at least 2 for ``avg``, and at least 2k for the others.
        k: Responses drawn.

    Returns:
        One value per problem.

    Raises:
        RolloutError: There are too few samples, there is no such metric, or as for the estimators.
    """
    if metric not in ("avg", "best", "worst"):
        raise RolloutError(f"there is no metric {metric!r}; there are avg, best and worst")
    drawn = 1 if metric == "avg" else k
    c, m = _checked(successes, samples, 2 * drawn)
    right = m - c if metric == "best" else c
    return np.asarray(_all_of(right, m, drawn) ** 2 - _all_of(right, m, 2 * drawn), dtype=np.float64)


def wilson_interval(rate: float, trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion, which has a width at 0 and 1 too, where √(p(1 − p)/N) is 0.

    Its ends are the p with |rate − p| = z·√(p(1 − p)/N), z = 1.96 (Wilson, JASA 22, 1927).

    Args:
        rate: Share of successes, within 0 to 1.
        trials: N, at least 1.
    """
    spread = Z**2 / trials
    middle = (rate + spread / 2) / (1 + spread)
    half = (spread * (rate * (1 - rate) + spread / 4)) ** 0.5 / (1 + spread)
    # Rounding must not leave the proportion itself outside.
    return max(min(middle - half, rate), 0.0), min(max(middle + half, rate), 1.0)


def proportion_error(rate: float, trials: int) -> float:
    """Standard error of a proportion: √(p(1 − p)/N), and at 0 and 1 what a Wilson interval of its width has.

    Args:
        rate: Share of successes, p, within 0 to 1.
        trials: N, at least 1.
    """
    if 0 < rate < 1:
        return float((rate * (1 - rate) / trials) ** 0.5)
    lowest, highest = wilson_interval(rate, trials)
    return (highest - lowest) / (2 * Z)


def _checked(successes: ArrayLike, samples: ArrayLike, k: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    c, m = np.broadcast_arrays(np.asarray(successes, dtype=np.int64), np.asarray(samples, dtype=np.int64))
    if k < 1 or (m.size and k > m.min()):
        raise RolloutError(f"k is {k}; it must lie between 1 and the {m.min() if m.size else 1} samples")
    if (c < 0).any() or (c > m).any():
        raise RolloutError("successes must lie between 0 and the samples")
    return c, m


def _all_of(c: NDArray[np.int64], m: NDArray[np.int64], k: int) -> NDArray[np.float64]:
    """C(c, k) / C(m, k) as a product of k factors, exactly 0 where c < k."""
    result = np.ones(c.shape, dtype=np.float64)
    for i in range(k):
        result *= np.maximum(c - i, 0) / (m - i)
    return result

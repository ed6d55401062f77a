"""Which questions were asked: what a curve says of these questions, and what of all that might have been asked.

All evaluations of a fit ask the same questions, so their luck moves every curve, and two curves alike as far as they
find the same questions easy. It is drawn jointly for all curves: each question has, per curve, a level and a gain that
it contributes to the curve's; their covariance over questions, less what sampling responses adds to it, is that of the
means.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.linalg import block_diag

from .curves import Array, Curve
from .forms import Parameters
from .seeds import courses


def question_effects(
    curves: Sequence[Curve], fitted: Sequence[Parameters], *, refits: int, rng: np.random.Generator
) -> list[Array] | None:
    """What other questions would do to the level and the gain of each curve, each of shape ``(refits, 2)``.

    Returns:
        None where the curves have no answers.
    """
    if any(c.answers is None for c in curves):
        return None
    parts, sampled = [], []
    for curve, parameters in zip(curves, fitted, strict=True):
        assert curve.answers is not None
        basis = np.stack([np.ones(len(curve.compute)), courses(curve, parameters)[:, 0]], axis=1)
        weighted = basis * curve.standard_error[:, None] ** -2
        solve = np.linalg.pinv(basis.T @ weighted, rcond=1e-9, hermitian=True) @ weighted.T
        parts.append(solve @ curve.answers)
        # Of one question, whose mean over questions has the standard error.
        sampled.append((solve * curve.standard_error**2 * curve.answers.shape[1]) @ solve.T)
    every = np.concatenate(parts)
    covariance = (np.cov(every) - block_diag(*sampled)) / every.shape[1]
    value, vector = np.linalg.eigh(covariance)
    drawn = rng.standard_normal((refits, len(value))) * np.sqrt(np.maximum(value, 0.0)) @ vector.T
    return [drawn[:, 2 * i : 2 * i + 2] for i in range(len(curves))]

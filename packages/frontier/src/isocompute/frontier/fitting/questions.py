"""The luck of which questions were asked: a curve is measured on these, and stands for all that might have been.

All evaluations of a fit ask the same questions, so their luck moves every curve, and moves two curves alike as far as
both find the same questions easy. It is drawn jointly for all curves: each question contributes, per curve, to the
level and to the gain; the covariance of these over questions, minus what sampling responses adds to it, is that of the
means.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.linalg import block_diag

from ..data.curves import Array, Curve
from .forms import Parameters
from .seeds import effect_basis


def question_effects(
    curves: Sequence[Curve], fitted: Sequence[Parameters], *, refits: int, rng: np.random.Generator
) -> list[Array] | None:
    """What other questions would do to the level and the gain of each curve, each of shape ``(refits, 2)``.

    Args:
        curves: The curves of a fit, with or without answers.
        rng: Source of randomness.

    Returns:
        None where the curves have no answers.
    """
    if any(c.answers is None for c in curves):
        return None
    parts, sampled = [], []
    for curve, parameters in zip(curves, fitted, strict=True):
        assert curve.answers is not None
        basis = np.stack([np.ones(len(curve.compute)), effect_basis(curve, parameters)[:, 0]], axis=1)
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

"""The luck of which questions were asked: a curve is measured on these, and stands for all that might have been.

All evaluations of a sweep ask the same questions, so that their luck moves every curve, and moves two curves alike as
far as both find the same questions easy. Each question contributes, per setting, to the level and to the gain; the
covariance of these over questions, less what sampling responses adds to it, is that of the means.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.linalg import block_diag

from ..data.curves import Array
from .evaluations import Run
from .posterior import Posterior


def luck_of(runs: Sequence[Run], fitted: Posterior, *, rng: np.random.Generator) -> Array | None:
    """What other questions would do to level and gain of each setting, shape ``(draws, 2, cells)``.

    Returns:
        None where the answers to each question are not known, or where base models were asked their own.
    """
    cells = fitted.model.runs.cells
    used = [run for run in runs if run.cell in cells]
    if any(run.answers is None for run in used) or len(fitted.model.runs.bases) > 1:
        return None
    parts, sampled = [], []
    for k, cell in enumerate(cells):
        own = [run for run in used if run.cell == cell]
        compute, error = (np.concatenate([getattr(r, name) for r in own]) for name in ("compute", "error"))
        answers = np.concatenate([r.answers for r in own if r.answers is not None])
        share = fitted.share(compute)[:, k].mean(axis=0)
        basis = np.stack([np.ones_like(compute), share], axis=1)
        weighted = basis * error[:, None] ** -2
        solve = np.linalg.pinv(basis.T @ weighted, rcond=1e-9, hermitian=True) @ weighted.T
        parts.append(solve @ answers)
        # Of one question, whose mean over questions has the standard error.
        sampled.append((solve * error**2 * answers.shape[1]) @ solve.T)
    every = np.concatenate(parts)
    covariance = (np.cov(every) - block_diag(*sampled)) / every.shape[1]
    value, vector = np.linalg.eigh(covariance)
    drawn = rng.standard_normal((len(fitted.theta), len(value))) * np.sqrt(np.maximum(value, 0.0)) @ vector.T
    return np.asarray(drawn.reshape(len(drawn), len(cells), 2).transpose(0, 2, 1))

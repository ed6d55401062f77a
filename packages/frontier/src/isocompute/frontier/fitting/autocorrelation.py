"""What autocorrelated points are worth."""

from __future__ import annotations

import numpy as np


def effective_points(points: float, autocorrelation: float) -> float:
    """How many independent points autocorrelated ones are worth: N(1−φ)/(1+φ), at least 1.

    Args:
        points: N.
        autocorrelation: φ, at lag 1.
    """
    return max(points * (1 - autocorrelation) / (1 + autocorrelation), 1.0)


def autocorrelation_of(lagged: float, squares: float, *, points: float, parameters: int) -> float:
    """Lag-1 autocorrelation of the noise, from the residuals of a fitted curve.

    That of the residuals is lower by about (p − 1/2 + 4φ)/N, since a curve follows part of the noise.

    Args:
        lagged: Sum of the products of neighbouring residuals.
        points: N.
    """
    if squares <= 0:
        return 0.0
    raised = (lagged / squares * points + parameters - 0.5) / max(points - 4.0, 1.0)
    return float(np.clip(raised, 0.0, 0.9))

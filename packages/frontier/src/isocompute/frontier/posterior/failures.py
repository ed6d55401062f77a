"""How often a run fails, by setting, partially pooled: the rates of settings are draws of one Beta distribution."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaln

from ..data.curves import Array

MEANS = np.linspace(0.004, 0.6, 60)
"""Grid of the mean rate; before the data it is near Beta(0.6, 6), with a mean of 9 %."""
STRENGTHS = np.geomspace(1.0, 300.0, 30)
"""Grid of how many runs' worth the settings have in common; uniform in logarithms."""


def failure_rates(failed: NDArray[np.int64], runs: NDArray[np.int64], *, draws: int, rng: np.random.Generator) -> Array:
    """Draws of the probability that the next run of each setting fails, shape ``(draws, settings)``.

    Args:
        failed: Runs of each setting that failed, shape ``(settings,)``.
        runs: All of its runs; 0 for a setting that was not run.
        rng: Source of randomness.
    """
    mean, strength = (g.ravel() for g in np.meshgrid(MEANS, STRENGTHS))
    first, second = mean * strength, (1 - mean) * strength
    own = betaln(first[:, None] + failed, second[:, None] + runs - failed) - betaln(first, second)[:, None]
    density = own.sum(axis=1) - 0.4 * np.log(mean) + 5.0 * np.log1p(-mean)
    weights = np.exp(density - density.max())
    chosen = rng.choice(len(mean), size=draws, p=weights / weights.sum())
    return rng.beta(first[chosen, None] + failed, second[chosen, None] + runs - failed)

"""What the posterior is compared with: curves fitted to each n alone, and the n that has gone farthest so far."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from isocompute.frontier import FitConfig, Fits, FrontierError, fit, prescribe

LAST_EVALUATIONS = 3
"""Of each run, that "best so far" is a mean of."""


@dataclass(frozen=True, kw_only=True)
class Separate:
    """Curves fitted to each n alone: all that is used of ``isocompute.frontier.fit``.

    Attributes:
        fits: What it returned.
    """

    fits: Fits

    @property
    def ns(self) -> list[int]:
        """Every n that could be fitted."""
        return [c.curve.rollouts_per_problem for c in self.fits.fitted]

    def draws(self, compute: np.ndarray) -> np.ndarray:
        """Rewards in every refit, shape ``(refits, n, points)``."""
        return np.stack([c.draws.at(compute) for c in self.fits.fitted if c.draws is not None], axis=1)

    def of_least_regret(self, compute: float) -> int:
        """The n of least expected regret over the refits."""
        return self.ns[int(self.draws(np.array([compute]))[:, :, 0].mean(axis=0).argmax())]

    def prescribed(self, compute: float) -> int | None:
        """The n of ``prescribe``; None where it refuses."""
        try:
            return prescribe(self.fits, budget=int(compute)).rollouts_per_problem
        except FrontierError:
            return None


def separate(evals: pl.DataFrame, number: int) -> Separate:
    """Fit each n alone, with 200 refits.

    Args:
        evals: A sweep.
        number: Fixes the refits.
    """
    return Separate(fits=fit(evals, FitConfig(bootstrap=200, seed=number)))


def best_so_far(evals: pl.DataFrame) -> int:
    """The n of highest mean reward over the last evaluations of its runs."""
    last = evals.sort("rollouts").group_by("run_id").tail(LAST_EVALUATIONS)
    means = last.group_by("rollouts_per_problem").agg(pl.col("avg_at_4").mean()).sort("rollouts_per_problem")
    return int(means["rollouts_per_problem"][int(np.argmax(means["avg_at_4"].to_numpy()))])

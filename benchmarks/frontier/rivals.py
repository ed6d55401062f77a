"""Rivals of the posterior: each n fitted alone, and the n that has gone farthest so far."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from isocompute.frontier import Frontier
from isocompute.frontier.posterior.posterior import Posterior

LAST_EVALUATIONS = 3
"""Of each run, that "best so far" is a mean of."""


@dataclass(frozen=True, kw_only=True)
class Separate:
    """Each n fitted alone.

    Attributes:
        fits: Posterior of the runs of each n.
    """

    fits: dict[int, Posterior]

    @property
    def ns(self) -> list[int]:
        """Every n that could be fitted."""
        return list(self.fits)

    def draws(self, compute: np.ndarray) -> np.ndarray:
        """Draws of the rewards, shape ``(draws, n, points)``."""
        every = [own.reward(compute)[:, 0] for own in self.fits.values()]
        return np.stack([own[: min(map(len, every))] for own in every], axis=1)

    def of_least_regret(self, compute: float) -> int:
        """The n of least expected regret."""
        return self.ns[int(self.draws(np.array([compute]))[:, :, 0].mean(axis=0).argmax())]


def separate(evals: pl.DataFrame, number: int) -> Separate:
    """Fit each n alone.

    Args:
        evals: A sweep.
        number: Fixes the draws.
    """
    fits = Frontier(evals).fit_separately(seed=number)
    return Separate(fits={cell.rollouts_per_problem: own for cell, own in fits.items()})


def best_so_far(evals: pl.DataFrame) -> int:
    """The n of highest mean reward over the last evaluations of its runs."""
    last = evals.sort("rollouts").group_by("run_id").tail(LAST_EVALUATIONS)
    means = last.group_by("rollouts_per_problem").agg(pl.col("avg_at_4").mean()).sort("rollouts_per_problem")
    return int(means["rollouts_per_problem"][int(np.argmax(means["avg_at_4"].to_numpy()))])

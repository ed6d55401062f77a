"""How much the scores of pilots differ between seeds, and how many standard errors are more than luck."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import fsum, inf, sqrt

from scipy import stats

from .trials import Tried

LEVEL = 0.05
"""Probability of any false alarm, of both sides, among the comparisons that are made together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedNoise:
    """How much the score of a rate differs between seeds, pooled over the rates tried.

    Attributes:
        deviation: Standard deviation of one seed's score; 0 where no rate has two seeds.
        freedom: Its degrees of freedom, one for each seed beyond a rate's first.
    """

    deviation: float
    freedom: int

    def error(self, each: Tried) -> float:
        """Standard error of a rate's score over its seeds, no lower than that of sampling."""
        return max(each.standard_error or 0.0, self.deviation / sqrt(each.seeds))

    def errors_needed(self, comparisons: int) -> float:
        """Standard errors by which a difference must exceed 0 to be more than luck.

        The upper quantile of Student's t at ``LEVEL`` / 2, divided by the number of comparisons (Bonferroni); the
        normal one where no rate has two seeds, so that the noise of sampling is all that is known.

        Args:
            comparisons: How many differences are looked at.
        """
        return float(stats.t.ppf(1 - LEVEL / 2 / comparisons, self.freedom or inf))


def seed_noise(grid: Iterable[Tried]) -> SeedNoise:
    """Pool the noise between seeds over all stable rates with two seeds or more.

    A rate with s seeds and the standard error e has the variance s·e² with s − 1 degrees of freedom. e is no lower
    than the error of sampling, so that the result is rather too large than too small.

    Args:
        grid: Every rate tried, of every (n, B_p).
    """
    several = [(each.seeds, each.standard_error or 0.0) for each in grid if each.stable and each.seeds > 1]
    freedom = sum(seeds - 1 for seeds, _ in several)
    if not freedom:
        return SeedNoise(deviation=0.0, freedom=0)
    variance = fsum((seeds - 1) * seeds * error**2 for seeds, error in several) / freedom
    return SeedNoise(deviation=sqrt(variance), freedom=freedom)

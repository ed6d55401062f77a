"""The frontier as rows: one point of the grid of compute, and the cell that is best at a budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

SURE = 0.95
"""Share of the refits that the set of the cells best most often makes up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPoint:
    """The envelope at one compute.

    Attributes:
        compute: Compute, in the unit of the fit.
        reward: Reward of the envelope, within 0 to 1.
        reward_low: Lower end of its 95 % interval.
        reward_high: Upper end.
        carried: Whether the data of the curve that attains the envelope have ended, so that its reward is one of less
            compute.
        shares: How often each fitted curve is best, shape ``(fitted,)``; see ``pooling``.
    """

    compute: float
    reward: float
    reward_low: float
    reward_high: float
    carried: bool
    shares: tuple[float, ...]

    @property
    def best(self) -> int:
        """Index of the curve that is best most often."""
        return int(np.argmax(self.shares))

    @property
    def probability(self) -> float:
        """How often that curve is best."""
        return max(self.shares)

    def likely(self) -> list[int]:
        """Indices of the curves that are best most often, as few as make up 95 % of the refits."""
        share = np.array(self.shares)
        order = np.argsort(-share, kind="stable")
        return [int(k) for k in order[: int(np.searchsorted(np.cumsum(share[order]), SURE - 1e-9)) + 1]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BestCell:
    """The cell (n, B_p) that is best at one compute, and how sure that is.

    Attributes:
        compute: Compute, in the unit of the fit.
        rollouts_per_problem: n of the cell.
        problems_per_batch: B_p of the cell.
        group: Its value of the grouping column, or empty without one.
        probability: In how many of the refits it is best, within 0 to 1.
        competing: How many n have data there or at less compute.
        n_set: n of the cells that are best in 95 % of the refits.
        reward: Reward of the cell's fitted curve, at the end of its data where that is less compute.
    """

    compute: float
    rollouts_per_problem: int
    problems_per_batch: int
    group: str
    probability: float
    competing: int
    n_set: tuple[int, ...]
    reward: float

    def as_row(self) -> dict[str, Any]:
        """As a row of ``Fits.n_star_table``."""
        return {
            "compute": self.compute, "n": self.rollouts_per_problem, "problems_per_batch": self.problems_per_batch,
            "probability": self.probability, "competing": self.competing, "n_set": list(self.n_set),
            "reward": self.reward,
        }  # fmt: skip

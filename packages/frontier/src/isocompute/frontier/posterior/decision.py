"""What to do with a budget: the setting of least expected regret, and what the others would lose.

With draws d of the reward R_k(d) that setting k is expected to reach at a budget, failures included, the regret of k is
the mean of max_j R_j − R_k: what would be gained on average if the truth were known. The setting of least regret is
that of the highest mean, so a wide interval is no advantage; P(best) stands beside it and decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..data.curves import Array
from .runs import Cell

TIE = 0.001
"""Reward within which expected regrets count as equal: below what any evaluation resolves."""
NEAR = 0.005
"""Reward that a setting may lose on average and still be as good for a reader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One setting at a budget.

    Attributes:
        reward: Mean reward of a run that does not fail.
        interval: Its 95 % interval.
        regret: Expected loss against the best setting, were that known.
        loss: Mean of what it loses to the setting that is chosen; 0 for that one.
        loss_interval: Its 95 % interval.
        probability_best: Share of the draws in which it is best.
        failure: Probability that the next run fails.
        reach: The budget over the compute of its last evaluation; above 1 it is extrapolated.
    """

    cell: Cell
    reward: float
    interval: tuple[float, float]
    regret: float
    loss: float
    loss_interval: tuple[float, float]
    probability_best: float
    failure: float
    reach: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """All settings at one budget.

    Attributes:
        compute: The budget, in the unit of the fit.
        options: Sorted by regret, the chosen one first.
        unknown: Settings whose runs end so early that nothing can be said of them here.
    """

    compute: float
    options: tuple[Option, ...]
    unknown: tuple[Cell, ...] = ()

    @property
    def chosen(self) -> Option:
        """The setting of least regret."""
        return self.options[0]

    def near(self, loss: float = NEAR) -> list[Option]:
        """Settings that lose on average no more than this to the chosen one, that one first."""
        return [o for o in self.options if o.loss <= loss]

    @property
    def known(self) -> bool:
        """Whether one setting is best with a probability of 95 %."""
        return self.chosen.probability_best >= 0.95


def decide(
    compute: float, cells: tuple[Cell, ...], rewards: Array, failing: Array, failed_reward: Array, reach: Array
) -> Decision:
    """Rank settings at one budget.

    Args:
        rewards: Draws of the reward of a run that does not fail, shape ``(draws, cells)``.
        failing: Probability that a run fails, shape ``(cells,)``.
        failed_reward: Reward that a failed run ends at, shape ``(cells,)``.
        reach: The budget over the compute of the last evaluation, shape ``(cells,)``.
    """
    whole = rewards - failing * np.maximum(rewards - failed_reward, 0.0)
    best = whole.max(axis=1)
    regret = best.mean() - whole.mean(axis=0)
    leads = np.bincount(whole.argmax(axis=1), minlength=len(cells)) / len(whole)
    first = _least(regret, reach, cells)
    order = [first, *(k for k in np.argsort(regret, kind="stable").tolist() if k != first)]
    loss = whole[:, [first]] - whole
    low, high = np.quantile(rewards, [0.025, 0.975], axis=0)
    loss_low, loss_high = np.quantile(loss, [0.025, 0.975], axis=0)
    return Decision(
        compute=compute,
        options=tuple(
            Option(
                cell=cells[k], reward=float(rewards[:, k].mean()), interval=(float(low[k]), float(high[k])),
                regret=float(regret[k]), loss=float(loss[:, k].mean()),
                loss_interval=(float(loss_low[k]), float(loss_high[k])), probability_best=float(leads[k]),
                failure=float(failing[k]), reach=float(reach[k]),
            )
            for k in order
        ),
    )  # fmt: skip


def _least(regret: Array, reach: Array, cells: tuple[Cell, ...]) -> int:
    """Of the settings whose regret is least but for a tie: one that was measured so far, then that of fewest steps."""
    tied = np.flatnonzero(regret <= regret.min() + TIE)
    return int(min(tied, key=lambda k: (reach[k] > 1 + 1e-9, -cells[k].batch_rollouts, regret[k])))

"""n* over compute: which setting is chosen at each budget, where the choice changes, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..data.curves import Array
from .decision import NEAR, Decision
from .runs import Cell

POINTS = 48
"""Budgets of the path, uniform in logarithms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Where one setting takes over from another.

    Attributes:
        before: Index of the setting chosen below.
        after: Index of the one chosen above.
        compute: Where the choice changes.
        interval: 90 % interval of where the second overtakes the first for the last time; an end is None where more
            than 5 % of the draws have no such compute on that side.
    """

    before: int
    after: int
    compute: float
    interval: tuple[float | None, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """The choice over a range of budgets.

    Attributes:
        compute: Budgets, shape ``(points,)``.
        chosen: Index of the setting chosen at each, shape ``(points,)``: that of a larger budget, where it loses no
            more than 0.005.
        near: Whether a setting loses no more than 0.005 to the chosen one on average, shape ``(points, cells)``.
        regret: Expected regret of each setting, infinite where nothing is known of it, shape ``(points, cells)``.
        probability_best: Shape ``(points, cells)``.
        changes: Where the choice changes for good.
    """

    compute: Array
    chosen: np.ndarray
    near: np.ndarray
    regret: Array
    probability_best: Array
    changes: tuple[Change, ...]

    def at(self, compute: float) -> int:
        """Index of the setting chosen at a budget, or at the nearest one of the path."""
        return int(self.chosen[np.abs(np.log(self.compute / compute)).argmin()])


def path_of(
    first: float, last: float, cells: tuple[Cell, ...], decide_at: Callable[[float], Decision],
    whole: Callable[[Array], Array],
) -> Path:  # fmt: skip
    """The path between two budgets.

    Args:
        last: Largest budget.
        whole: Draws of the rewards, failures included, at some budgets, shape ``(draws, cells, points)``.
    """
    compute = np.geomspace(first, last, POINTS)
    decisions = [decide_at(float(c)) for c in compute]
    share = np.zeros((POINTS, len(cells)))
    # A setting that is not known at a budget is not chosen there.
    regret, loss = np.full(share.shape, np.inf), np.full(share.shape, np.inf)
    for k, decision in enumerate(decisions):
        for option in decision.options:
            own = cells.index(option.cell)
            regret[k, own], share[k, own], loss[k, own] = option.regret, option.probability_best, option.loss
    chosen = _lasting(np.array([cells.index(d.chosen.cell) for d in decisions]), loss)
    rewards = whole(compute)
    changes = []
    for k in np.flatnonzero(chosen[1:] != chosen[:-1]):
        before, after = int(chosen[k]), int(chosen[k + 1])
        lead = rewards[:, after] - rewards[:, before]
        changes.append(
            Change(
                before=before, after=after, compute=float(np.sqrt(compute[k] * compute[k + 1])),
                interval=_overtakes(compute, lead),
            )
        )  # fmt: skip
    return Path(
        compute=compute, chosen=chosen, near=loss <= NEAR, regret=regret, probability_best=share,
        changes=tuple(changes),
    )  # fmt: skip


def _lasting(chosen: np.ndarray, loss: Array) -> np.ndarray:
    """The choices seen from the last budget: a setting is kept for less compute while it loses next to nothing."""
    kept = chosen.copy()
    for k in range(len(chosen) - 2, -1, -1):
        if loss[k, kept[k + 1]] <= NEAR:
            kept[k] = kept[k + 1]
    return kept


def _overtakes(compute: Array, lead: Array) -> tuple[float | None, float | None]:
    """90 % interval of the compute from which the lead of each draw, shape ``(draws, points)``, stays above 0."""
    ahead = lead > 0
    behind = ~ahead
    last_behind = ahead.shape[1] - 1 - behind[:, ::-1].argmax(axis=1)
    where = np.where(behind.any(axis=1), compute[np.minimum(last_behind + 1, len(compute) - 1)], -np.inf)
    where = np.where(ahead[:, -1], where, np.inf)
    low, high = np.quantile(where, [0.05, 0.95], method="inverted_cdf")
    return (float(low) if np.isfinite(low) else None, float(high) if np.isfinite(high) else None)

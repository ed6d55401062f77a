"""What the runs of a sweep have in common: their start, their gains, their planned ends, their grids of evaluations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..data.curves import Array
from .evaluations import Run
from .view import SAME_POINT, Level, View

SHARED_END = 0.1
"""Share of compute within which runs count as planned to one end: budgets are whole batches."""
MOST_POINTS = 2000
"""Points of grids beyond which none is missed: what is logged at each step is no grid."""


def common_start(own: View, others: Sequence[View]) -> tuple[Level, int]:
    """The median reward before training of the other runs of its group, and how many of them say it.

    All runs of a sweep start from one model, so that their evaluations at compute 0 differ by sampling only. Equal ones
    are one evaluation: runs of one seed may share it.
    """
    starts = [v.first for v in others if v.run.cell.group == own.run.cell.group and v.run.compute[0] == 0]
    if not starts:
        return own.first, 0
    rewards = [s.reward for s in starts]
    error = float(np.median([s.error for s in starts])) / float(np.sqrt(len(set(rewards))))
    return Level(reward=float(np.median(rewards)), error=error), len(starts)


def usual_at(own: View, others: Sequence[View], compute: float) -> float:
    """The median reward of the others at some compute: of the same cell if there are any, else of its n and B_p."""
    cell = [o for o in others if o.run.cell == own.run.cell]
    same = [o for o in others if _setting(o.run) == _setting(own.run)]
    return float(np.median([np.interp(compute, o.compute, o.reward) for o in cell or same or others]))


def bad_start(own: View, others: Sequence[View], times: float) -> bool:
    """Whether its first evaluation alone is far from the others: the second is less far from their start or progress.

    Args:
        times: Standard errors that count as far.
    """
    shared, count = common_start(own, others)
    if count < 2 or own.run.compute[0] > 0 or len(own.compute) < 2:
        return False
    # The error of what it should have been: a share of 0 seems to have almost none.
    error = np.hypot(own.run.error_at(np.full(len(own.run.reward), shared.reward))[0], shared.error)
    off = abs(own.first.reward - shared.reward)
    usual = np.array([shared.reward, usual_at(own, others, float(own.compute[1]))])
    return bool(off > times * error and np.abs(own.reward[1] - usual).min() < off)


def start_of(own: View, others: Sequence[View], times: float) -> Level:
    """The reward before training: what all runs say together, unless this one begins elsewhere.

    Args:
        times: Standard errors beyond which it does.
    """
    shared, count = common_start(own, others)
    if not count or own.run.compute[0] > 0:
        return own.first
    elsewhere = shared.above(own.first, times) or own.first.above(shared, times)
    return own.first if elsewhere and not bad_start(own, others, times) else shared


def usual_gain(own: View, others: Sequence[View], starts: Sequence[Level], *, times: float) -> float | None:
    """What other runs had gained by the compute of this one's end; None where that would not show, or was nothing.

    Those of the same n and B_p say it if one of them gained; else all others, if half of them did.

    Args:
        times: Standard errors beyond which a gain is sure.
    """
    last = float(own.compute[-1])
    same, gains = [], []
    for other, start in zip(others, starts, strict=True):
        if other.run.last < (1 - SHARED_END) * last:
            continue
        best = other.best(last)
        gains.append(best.reward - start.reward if best.above(start, times) else 0.0)
        same.append(_setting(other.run) == _setting(own.run))
    gained = [g for g, s in zip(gains, same, strict=True) if s and g > 0]
    if not gained and 2 * sum(g > 0 for g in gains) >= len(gains):
        gained = [g for g in gains if g > 0]
    usual = float(np.median(gained)) if gained else 0.0
    return usual if usual > 2 * times * own.best(last).error else None


def planned_end(own: Run, others: Sequence[Run]) -> tuple[float, int] | None:
    """The compute that the run was meant to reach, and how many others ended there; None where that is unclear.

    It is the most common last compute of the other runs of the same n and B_p, if two or more share it; else that of
    all others, if two or more and at least half of them share it. Of several as common the largest counts: runs end
    early, not late.
    """
    same = [o for o in others if _setting(o) == _setting(own)]
    for siblings, least in ((same, 2), (list(others), max(2, (len(others) + 1) // 2))):
        lasts = np.array([o.last for o in siblings])
        sharing = [int((np.abs(lasts - last) <= SHARED_END * last).sum()) for last in lasts]
        most = max(sharing, default=0)
        if most >= least:
            return float(max(last for last, count in zip(lasts, sharing, strict=True) if count == most)), most
    return None


def missing_points(own: Run, others: Sequence[Run]) -> Array:
    """Points of the siblings' grid, within the run's own compute, at which the run has no evaluation.

    A point is of the grid if at least two of the runs of the same n and B_p have it, and most of those that reach it;
    where there are no two such runs, all others are asked.
    """
    same = [o for o in others if _setting(o) == _setting(own)]
    siblings = same if len(same) > 1 else list(others)
    if len(siblings) < 2:
        return np.zeros(0)
    points = np.unique(np.concatenate([o.compute for o in siblings]))
    points = points[points <= own.last * (1 + SAME_POINT)]
    if not len(points) or len(points) > MOST_POINTS:
        return np.zeros(0)
    reaching = sum((o.last >= points * (1 - SAME_POINT)).astype(int) for o in siblings)
    having = sum((_distance(points, o.compute) <= SAME_POINT * points).astype(int) for o in siblings)
    grid = points[(np.asarray(having) >= 2) & (np.asarray(having) > np.asarray(reaching) / 2)]
    # Points that are alike are one: batches of different sizes do not divide a budget alike.
    grid = grid[np.diff(grid, prepend=-1.0) > SAME_POINT * grid]
    absent = grid[_distance(grid, own.compute) > SAME_POINT * grid]
    # A run that lacks most of it has a grid of its own.
    return np.asarray(absent if 2 * len(absent) <= len(grid) else absent[:0])


def _distance(points: Array, compute: Array) -> Array:
    """How far each point is from the nearest evaluation."""
    after = np.searchsorted(compute, points)
    left, right = compute[np.maximum(after - 1, 0)], compute[np.minimum(after, len(compute) - 1)]
    return np.asarray(np.minimum(np.abs(points - left), np.abs(points - right)))


def _setting(run: Run) -> tuple[int, int, str]:
    return run.cell.problems_per_batch, run.cell.rollouts_per_problem, run.cell.group

"""The other runs of a sweep, which each run is compared with: their start, their gain, their end and their grid.

Every comparison is with all others but not with the run itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ..data.curves import Array, Mask
from .runs import Run, binned, expected_error, padded, spikes

SAME_POINT = 0.02
"""Share of compute within which two evaluations are at one point of a grid."""
FEW = 8
"""Points up to which moving means are of two, not three."""
SIGNIFICANT = 4.0
"""Standard errors by which a reward must have changed. A run is judged by the highest of its moving means, of which the
noise alone lifts the highest of twenty by two to three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A mean reward.

    Attributes:
        error: Its standard error.
        compute: Of the last evaluation in it.
    """

    reward: float
    error: float
    compute: float = 0.0

    def above(self, other: Level) -> bool:
        """Return whether it is surely higher than another."""
        return self.reward - other.reward > SIGNIFICANT * float(np.hypot(self.error, other.error))


@dataclass(frozen=True, kw_only=True)
class View:
    """A run as it is judged: without its spikes, in few points, with the noise that its evaluations really have.

    Attributes:
        spikes: Indices of its spikes.
        compute: Of the points, shape ``(points,)``.
        error: Their standard errors, noise beyond sampling included.
    """

    run: Run
    spikes: tuple[int, ...]
    compute: Array
    reward: Array
    error: Array

    @property
    def first(self) -> Level:
        """Its first evaluation."""
        return Level(reward=float(self.reward[0]), error=float(self.error[0]), compute=float(self.compute[0]))

    @property
    def setting(self) -> tuple[int, int, str]:
        """What it shares with the runs that it is compared with first."""
        return self.run.cell.key

    @property
    def end(self) -> Level:
        """The reward that it ended at, over its last points."""
        return self._means[-1] if self._means else self.first

    def best(self, until: float) -> Level:
        """Its highest moving mean after the start, up to some compute."""
        return self.tops[1][int(np.searchsorted(self.tops[0], until * (1 + SAME_POINT), side="right"))]

    @cached_property
    def tops(self) -> tuple[Array, list[Level]]:
        """Compute of its moving means, and the highest up to before the first of them, up to that, and so on."""
        best = [self.first]
        for own in self._means:
            best.append(own if len(best) == 1 or own.reward > best[-1].reward else best[-1])
        return np.array([own.compute for own in self._means]), best

    def mean(self, chosen: Mask) -> Level:
        """The mean of some of its points, one or more."""
        error = float(np.sqrt((self.error[chosen] ** 2).sum()) / chosen.sum())
        return Level(reward=float(self.reward[chosen].mean()), error=error, compute=float(self.compute[chosen][-1]))

    def after_last(self, level: float) -> Mask:
        """Points after the last one that reached a reward."""
        reached = np.flatnonzero(self.reward >= level)
        return np.arange(len(self.reward)) > (reached[-1] if len(reached) else -1)

    @cached_property
    def _means(self) -> list[Level]:
        after = self.compute > self.compute[0]
        width = min(3 if len(self.compute) > FEW else 2, int(after.sum()))
        if not width:
            return []
        reward, squares = (sliding_window_view(x[after], width) for x in (self.reward, self.error**2))
        error = np.sqrt(squares.sum(axis=1)) / width
        means = zip(reward.mean(axis=1), error, self.compute[after][width - 1 :], strict=True)
        return [Level(reward=float(mean), error=float(own), compute=float(at)) for mean, own, at in means]


def view(run: Run, factor: float) -> View:
    """Make the view of a run.

    Args:
        factor: Noise of the sweep's evaluations over the errors stated.
    """
    bad = tuple(np.flatnonzero(spikes(run, factor)).tolist())
    kept = binned(run.without(bad))
    error = expected_error(kept)
    # Before training there is nothing to be smoothed with.
    error[:1] = kept.error_at(kept.reward)[:1]
    return View(run=run, spikes=bad, compute=kept.compute, reward=kept.reward, error=factor * error)


SHARED_END = 0.1
"""Share of compute within which runs count as planned to one end: budgets are whole batches."""
MOST_POINTS = 2000
"""Points of grids beyond which none is missed: what is logged at each step is no grid."""
Key = tuple[int, int, str]


class Siblings:
    """Runs that others are compared with; one that is among them is compared with the others of them."""

    def __init__(self, views: Sequence[View]) -> None:
        self.views = tuple(views)
        self._keys = [v.setting for v in self.views]
        self._groups = np.array([v.run.cell.group for v in self.views], dtype=np.str_)
        self._started = np.array([v.run.compute[0] == 0 for v in self.views], dtype=np.bool_)
        self._first, self._error = np.array([(v.first.reward, v.first.error) for v in self.views]).reshape(-1, 2).T
        self._last = np.array([v.run.last for v in self.views])
        self._gains, self._grid = cache(self._gains_of), cache(self._grid_of)

    def _others(self, own: View) -> Mask:
        """Which runs are others than this one, shape ``(runs,)``."""
        return np.array([v is not own for v in self.views], dtype=np.bool_)

    def _of(self, key: Key) -> Mask:
        """Which runs are of a setting, shape ``(runs,)``."""
        return np.array([each == key for each in self._keys], dtype=np.bool_)

    def common_start(self, own: View) -> tuple[Level, int]:
        """The median reward before training of the other runs of its group, and how many of them say it.

        All runs of a sweep start from one model, so that their evaluations at compute 0 differ by sampling only. Equal
        ones are one evaluation: runs of one seed may share it.
        """
        which = self._others(own) & self._started & (self._groups == own.run.cell.group)
        if not which.any():
            return own.first, 0
        rewards = self._first[which]
        error = np.median(self._error[which]) / np.sqrt(len(np.unique(rewards)))
        return Level(reward=float(np.median(rewards)), error=float(error)), len(rewards)

    def usual_at(self, own: View, compute: float) -> float:
        """The median reward of the others at some compute: of its cell if there are any, else of its n and B_p."""
        others = [o for o in self.views if o is not own]
        cell = [o for o in others if o.run.cell == own.run.cell]
        same = [o for o in others if o.setting == own.setting]
        return float(np.median([np.interp(compute, o.compute, o.reward) for o in cell or same or others]))

    def bad_start(self, own: View, times: float = SIGNIFICANT) -> bool:
        """Return whether its first evaluation alone is off by so many standard errors.

        The second is then nearer to the others' start or progress.
        """
        shared, count = self.common_start(own)
        if count < 2 or own.run.compute[0] > 0 or len(own.compute) < 2:
            return False
        # The error of what it should have been: a share of 0 seems to have almost none.
        error = np.hypot(own.run.error_at(np.full(len(own.run.reward), shared.reward))[0], shared.error)
        off = abs(own.first.reward - shared.reward)
        if off <= times * error:
            return False
        usual = np.array([shared.reward, self.usual_at(own, float(own.compute[1]))])
        return bool(np.abs(own.reward[1] - usual).min() < off)

    def start_of(self, own: View) -> Level:
        """The reward before training: what all runs say together, unless this one surely begins elsewhere."""
        shared, count = self.common_start(own)
        if not count or own.run.compute[0] > 0:
            return own.first
        elsewhere = shared.above(own.first) or own.first.above(shared)
        return own.first if elsewhere and not self.bad_start(own) else shared

    def usual_gain(self, own: View) -> float | None:
        """Median gain of others by the compute of this one's end; None where it would not show, or was nothing.

        Those of the same n and B_p say it if one of them gained; else all others, if half of them did.
        """
        last, others = float(own.compute[-1]), self._others(own)
        reached, gain = self._gains(last)
        gained = others & (gain > 0)
        same = gained & self._of(own.setting)
        if same.any():
            gained = same
        elif 2 * gained.sum() < (others & reached).sum():
            return None
        usual = float(np.median(gain[gained])) if gained.any() else 0.0
        return usual if usual > 2 * SIGNIFICANT * own.best(last).error else None

    def _gains_of(self, last: float) -> tuple[Mask, Array]:
        """Which runs went as far as some compute, and their gains by then, 0 where not sure, shape ``(runs,)`` each."""
        compute, reward, error = self._tops
        which = np.arange(len(self.views)), (compute <= last * (1 + SAME_POINT)).sum(axis=1)
        begin, unsure = self._starts
        off = reward[which] - begin
        reached = self._last >= (1 - SHARED_END) * last
        return reached, np.where(reached & (off > SIGNIFICANT * np.hypot(error[which], unsure)), off, 0.0)

    @cached_property
    def _starts(self) -> Array:
        """Reward before training of each run, and its error, shape ``(2, runs)``."""
        return np.array([(start.reward, start.error) for start in map(self.start_of, self.views)]).T

    @cached_property
    def _tops(self) -> tuple[Array, Array, Array]:
        """Compute of all moving means, and the highest until then with its error, one row for each run."""
        tops = [v.tops for v in self.views]
        return (
            padded([compute for compute, _ in tops], np.inf),
            padded([np.array([b.reward for b in best]) for _, best in tops], 0.0),
            padded([np.array([b.error for b in best]) for _, best in tops], 0.0),
        )

    def planned_end(self, own: View) -> tuple[float, int] | None:
        """The compute that the run was meant to reach, and how many others ended there; None where that is unclear.

        It is the most common last compute of the other runs of the same n and B_p, if two or more share it; else that
        of all others, if two or more and at least half of them share it. Of several as common the largest counts: runs
        end early, not late.
        """
        others = self._others(own)
        for which, least in ((others & self._of(own.setting), 2), (others, max(2, (others.sum() + 1) // 2))):
            sharing = self._one_end[np.ix_(which, which)].sum(axis=1)
            most = int(sharing.max(initial=0))
            if most >= least:
                return float(self._last[which][sharing == most].max()), most
        return None

    @cached_property
    def _one_end(self) -> Mask:
        """Which runs end within a tenth of where each one does, shape ``(runs, runs)``."""
        return np.asarray(np.abs(self._last - self._last[:, None]) <= SHARED_END * self._last[:, None])

    def longest(self, own: View) -> float:
        """The largest compute that another run reached; its own where there is none."""
        others = self._last[self._others(own)]
        return float(others.max()) if len(others) else own.run.last

    def missing_points(self, own: View) -> Array:
        """Points of the siblings' grid, within the run's own compute, at which the run has no evaluation.

        A point is of the grid if at least two of the runs of the same n and B_p have it, and most of those that reach
        it; where there are no two such runs, all others count.
        """
        run, others, same = own.run, self._others(own), self._of(own.setting)
        key = own.setting if (others & same).sum() >= 2 else None
        which = others[same] if key else others
        if which.sum() < 2:
            return np.zeros(0)
        points, *each = self._grid(key)
        often, reaching, having = (counted[which].sum(axis=0) for counted in each)
        kept = (often > 0) & (points <= run.last * (1 + SAME_POINT))
        if kept.sum() > MOST_POINTS:
            return np.zeros(0)
        grid = points[kept & (having >= 2) & (having > reaching / 2)]
        # Points that are alike are one: batches of different sizes do not divide a budget alike.
        grid = grid[np.diff(grid, prepend=-1.0) > SAME_POINT * grid]
        absent = grid[_distance(grid, run.compute) > SAME_POINT * grid]
        # A run that lacks most of it has a grid of its own.
        return np.asarray(absent if 2 * len(absent) <= len(grid) else absent[:0])

    def _grid_of(self, key: Key | None) -> tuple[Array, Mask, Mask, Mask]:
        """Points of all grids; which runs evaluated each exactly, reach it, and have it, shape ``(runs, points)``."""
        runs = [v.run for v, own in zip(self.views, self._keys, strict=True) if key in (None, own)]
        points = np.unique(np.concatenate([run.compute for run in runs]))
        # With more than these no run is asked for any: its own may be taken out.
        points = points[: MOST_POINTS + 1 + max(len(run.compute) for run in runs)]
        return (
            points,
            np.array([np.isin(points, run.compute) for run in runs]),
            np.array([run.last >= points * (1 - SAME_POINT) for run in runs]),
            np.array([_distance(points, run.compute) <= SAME_POINT * points for run in runs]),
        )


def _distance(points: Array, compute: Array) -> Array:
    """Distance of each point from the nearest evaluation."""
    after = np.searchsorted(compute, points)
    left, right = compute[np.maximum(after - 1, 0)], compute[np.minimum(after, len(compute) - 1)]
    return np.asarray(np.minimum(np.abs(points - left), np.abs(points - right)))


SCALES: dict[str, Callable[[float], float]] = {
    "twice": lambda r: 2 * r,
    "half": lambda r: r / 2,
    "(1 + r)/2 of": lambda r: (1 + r) / 2,
    "2r − 1 of": lambda r: 2 * r - 1,
    "a hundredth of": lambda r: r / 100,
    "a hundred times": lambda r: 100 * r,
}
"""Scales in use: −1 and 1 for wrong and right, percent, and a reward halved or doubled by a second part."""
FAR = 4.0
"""Standard errors between starts beyond which they are not of one model and scale: they differ by sampling alone."""
NEAR = 3.0
"""Standard errors within which a start lies where a scale would put it."""


def other_scale(own: View, every: Siblings, possible: Siblings) -> str | None:
    """The evidence that a run was logged on another scale than the others; None without any.

    Rewards outside 0 to 1 are. Else its start is compared with the common one of two others or more, and it must lie
    where a scale of ``SCALES`` puts it. The second evaluation must agree, and the others be possible on that scale.

    Args:
        possible: Those of ``every`` whose rewards lie within 0 to 1.
    """
    low, high = float(own.run.reward.min()), float(own.run.reward.max())
    if low < 0 or high > 1:
        return f"has rewards from {low:.3g} to {high:.3g}, where a share of successes lies within 0 to 1"
    shared, count = possible.common_start(own)
    if count < 2 or own.run.compute[0] > 0 or len(own.compute) < 2:
        return None
    first, usual, second = own.first, shared.reward, float(own.reward[1])
    if abs(first.reward - usual) <= FAR * np.hypot(first.error, shared.error):
        return None
    later = every.usual_at(own, float(own.compute[1]))
    for name, scale in SCALES.items():
        error = np.hypot(first.error, (scale(1.0) - scale(0.0)) * shared.error)
        fits = first.reward > 0 and low >= scale(0.0) - NEAR * error and high <= scale(1.0) + NEAR * error
        # A single bad evaluation at the start is no scale: the next one must be on it too.
        agrees = abs(second - scale(later)) < abs(second - later)
        if fits and agrees and abs(first.reward - scale(usual)) <= NEAR * error:
            return f"starts at {first.reward:.3f}, which is {name} the {usual:.3f} that {count} others start at"
    return None

"""The other runs of a sweep, which each run is compared with: their start, their gain, their end and their grid.

Every comparison is with all others but not with the run itself. So that a sweep of many runs is not gone through once
for each, what all say together is kept sorted or counted, and the run's own share is taken out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from ..data.curves import Array, Mask
from .runs import Run, binned, expected_error, padded, spikes

SAME_POINT = 0.02
"""Share of compute within which two evaluations are at one point of a grid."""
FEW = 8
"""Points up to which moving means are of two, not three."""


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

    def above(self, other: Level, times: float) -> bool:
        """Return whether it is higher than another by so many standard errors."""
        return self.reward - other.reward > times * float(np.hypot(self.error, other.error))


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
Counts = NDArray[np.int64]


class Sorted:
    """Numbers whose median is asked for without one of them."""

    def __init__(self, values: Sequence[float] | Array) -> None:
        self.values = np.sort(np.asarray(values, dtype=np.float64))

    def median(self, without: float | None = None) -> float:
        """The median of all, or of all but one that is among them."""
        count = len(self.values) - (without is not None)
        left = len(self.values) if without is None else int(np.searchsorted(self.values, without))
        low, high = (float(self.values[k + (k >= left)]) for k in ((count - 1) // 2, count // 2))
        return (low + high) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Gains:
    """What runs had gained by some compute.

    Attributes:
        reached: Which runs went as far, shape ``(runs,)``.
        gain: Their gain over their start, 0 where it is not sure.
        every: The gains above 0.
        same: Those of each setting.
    """

    reached: Mask
    gain: Array
    every: Sorted
    same: dict[Key, Sorted]


class Siblings:
    """Runs that others are compared with; one that is among them is compared with the others of them."""

    def __init__(self, views: Sequence[View]) -> None:
        self.views = tuple(views)
        self._index = {id(v): k for k, v in enumerate(self.views)}
        self._last = np.array([v.run.last for v in self.views])
        self._same: dict[Key, list[int]] = {}
        for k, v in enumerate(self.views):
            self._same.setdefault(v.setting, []).append(k)
        self._starts: dict[str, list[Level]] = {}
        for v in self.views:
            if v.run.compute[0] == 0:
                self._starts.setdefault(v.run.cell.group, []).append(v.first)
        self._ends, self._grid, self._start = cache(self._ends_of), cache(self._grid_of), cache(self._start_of)
        self._by: dict[float, Gains] = {}

    def _at(self, own: View) -> int | None:
        return self._index.get(id(own))

    def _start_of(self, group: str) -> tuple[Sorted, Sorted, dict[float, int]]:
        """Rewards and errors of the starts of a group, and how often each reward is there."""
        starts = self._starts[group]
        values, counts = np.unique([s.reward for s in starts], return_counts=True)
        often = dict(zip(values.tolist(), counts.tolist(), strict=True))
        return Sorted([s.reward for s in starts]), Sorted([s.error for s in starts]), often

    def common_start(self, own: View) -> tuple[Level, int]:
        """The median reward before training of the other runs of its group, and how many of them say it.

        All runs of a sweep start from one model, so that their evaluations at compute 0 differ by sampling only. Equal
        ones are one evaluation: runs of one seed may share it.
        """
        group = own.run.cell.group
        inside = self._at(own) is not None and own.run.compute[0] == 0
        count = len(self._starts.get(group, ())) - inside
        if not count:
            return own.first, 0
        rewards, errors, often = self._start(group)
        first = own.first
        different = len(often) - (inside and often[first.reward] == 1)
        error = errors.median(first.error if inside else None) / float(np.sqrt(different))
        return Level(reward=rewards.median(first.reward if inside else None), error=error), count

    def usual_at(self, own: View, compute: float) -> float:
        """The median reward of the others at some compute: of its cell if there are any, else of its n and B_p."""
        others = [o for o in self.views if o is not own]
        cell = [o for o in others if o.run.cell == own.run.cell]
        same = [o for o in others if o.setting == own.setting]
        return float(np.median([np.interp(compute, o.compute, o.reward) for o in cell or same or others]))

    def bad_start(self, own: View, times: float) -> bool:
        """Return whether its first evaluation alone is far off: the second is nearer the others' start or progress.

        Args:
            times: Standard errors that count as far.
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

    def start_of(self, own: View, times: float) -> Level:
        """The reward before training: what all runs say together, unless this one begins elsewhere.

        Args:
            times: Standard errors beyond which it does.
        """
        shared, count = self.common_start(own)
        if not count or own.run.compute[0] > 0:
            return own.first
        elsewhere = shared.above(own.first, times) or own.first.above(shared, times)
        return own.first if elsewhere and not self.bad_start(own, times) else shared

    def usual_gain(self, own: View, starts: Sequence[Level], *, times: float) -> float | None:
        """Median gain of others by the compute of this one's end; None where it would not show, or was nothing.

        Those of the same n and B_p say it if one of them gained; else all others, if half of them did.

        Args:
            starts: Of each run, in their order; the same at every call, as ``times`` is.
            times: Standard errors beyond which a gain is sure.
        """
        last, at = float(own.compute[-1]), self._at(own)
        if last not in self._by:
            self._by[last] = self._gains(last, starts, times)
        by = self._by[last]
        gain = float(by.gain[at]) if at is not None and by.reached[at] else None
        without, usual = gain or None, 0.0
        same = by.same.get(own.setting, Sorted([]))
        if len(same.values) > (without is not None):
            usual = same.median(without)
        else:
            gained = len(by.every.values) - (without is not None)
            if gained and 2 * gained >= int(by.reached.sum()) - (gain is not None):
                usual = by.every.median(without)
        return usual if usual > 2 * times * own.best(last).error else None

    def _gains(self, last: float, starts: Sequence[Level], times: float) -> Gains:
        reached = self._last >= (1 - SHARED_END) * last
        gain = np.zeros(len(self.views))
        compute, reward, error = self._tops
        which = np.arange(len(self.views)), (compute <= last * (1 + SAME_POINT)).sum(axis=1)
        begin = np.array([s.reward for s in starts])
        off, unsure = reward[which] - begin, np.hypot(error[which], [s.error for s in starts])
        gain = np.where(reached & (off > times * unsure), off, 0.0)
        positive = {key: gain[own][gain[own] > 0] for key, own in self._same.items()}
        same = {key: Sorted(own) for key, own in positive.items()}
        return Gains(reached=reached, gain=gain, every=Sorted(gain[gain > 0]), same=same)

    @cached_property
    def _tops(self) -> tuple[Array, Array, Array]:
        """Compute of all moving means, and the highest until then with its error, one row for each run."""
        tops = [v.tops for v in self.views]
        compute = padded([compute for compute, _ in tops], np.inf)
        levels = [best for _, best in tops]
        return (
            compute,
            padded([np.array([b.reward for b in best]) for best in levels], 0.0),
            padded([np.array([b.error for b in best]) for best in levels], 0.0),
        )

    def _siblings(self, own: View, least: int) -> tuple[Key | None, int]:
        """Its setting, or None for all where there are too few others of it; and how many others that are."""
        inside = self._at(own) is not None
        count = len(self._same.get(own.setting, ())) - inside
        return (own.setting, count) if count >= least else (None, len(self.views) - inside)

    def planned_end(self, own: View) -> tuple[float, int] | None:
        """The compute that the run was meant to reach, and how many others ended there; None where that is unclear.

        It is the most common last compute of the other runs of the same n and B_p, if two or more share it; else that
        of all others, if two or more and at least half of them share it. Of several as common the largest counts: runs
        end early, not late.
        """
        without = own.run.last if self._at(own) is not None else None
        every = len(self.views) - (without is not None)
        for key, least in ((own.setting, 2), (None, max(2, (every + 1) // 2))):
            if key is not None and key not in self._same:
                continue
            values, often, within = self._ends(key)
            sharing, left = within @ often, often
            if without is not None:
                at = int(np.searchsorted(values, without))
                sharing, left = sharing - within[:, at], often - (np.arange(len(often)) == at)
            most = int(sharing[left > 0].max(initial=0))
            if most >= least:
                return float(values[(left > 0) & (sharing == most)].max()), most
        return None

    def _ends_of(self, key: Key | None) -> tuple[Array, Counts, Counts]:
        """Where runs end, how often each is, and which lie within a tenth of each, shape ``(ends, ends)``."""
        values, often = np.unique(self._last if key is None else self._last[self._same[key]], return_counts=True)
        return values, often, (np.abs(values - values[:, None]) <= SHARED_END * values[:, None]).astype(np.int64)

    def longest(self, own: View) -> float:
        """The largest compute that another run reached; its own where there is none."""
        others = np.delete(self._last, [] if (at := self._at(own)) is None else [at])
        return float(others.max(initial=-np.inf)) if len(others) else own.run.last

    def missing_points(self, own: View) -> Array:
        """Points of the siblings' grid, within the run's own compute, at which the run has no evaluation.

        A point is of the grid if at least two of the runs of the same n and B_p have it, and most of those that reach
        it; where there are no two such runs, all others count.
        """
        key, count = self._siblings(own, 2)
        if count < 2:
            return np.zeros(0)
        points, often, reaching, having = self._grid(key)
        run, inside = own.run, self._at(own) is not None
        if inside:
            often = often - np.isin(points, run.compute)
            reaching, having = reaching - _reaches(run, points), having - _has(run, points)
        kept = (often > 0) & (points <= run.last * (1 + SAME_POINT))
        points, reaching, having = points[kept], reaching[kept], having[kept]
        if not len(points) or len(points) > MOST_POINTS:
            return np.zeros(0)
        grid = points[(having >= 2) & (having > reaching / 2)]
        # Points that are alike are one: batches of different sizes do not divide a budget alike.
        grid = grid[np.diff(grid, prepend=-1.0) > SAME_POINT * grid]
        absent = grid[_distance(grid, run.compute) > SAME_POINT * grid]
        # A run that lacks most of it has a grid of its own.
        return np.asarray(absent if 2 * len(absent) <= len(grid) else absent[:0])

    def _grid_of(self, key: Key | None) -> tuple[Array, Counts, Counts, Counts]:
        """Points of all grids; how many runs evaluated each exactly, how many reach it, and how many have it."""
        runs = [v.run for v in (self.views if key is None else [self.views[k] for k in self._same[key]])]
        points, often = np.unique(np.concatenate([np.unique(run.compute) for run in runs]), return_counts=True)
        # With more than these no run is asked for any: its own may be taken out.
        most = MOST_POINTS + 1 + max(len(run.compute) for run in runs)
        points, often = points[:most], often[:most]
        reaching, having = (np.zeros(len(points), dtype=np.int64) for _ in range(2))
        for run in runs:
            reaching += _reaches(run, points)
            having += _has(run, points)
        return points, often, reaching, having


def _reaches(run: Run, points: Array) -> Mask:
    return np.asarray(run.last >= points * (1 - SAME_POINT))


def _has(run: Run, points: Array) -> Mask:
    return np.asarray(_distance(points, run.compute) <= SAME_POINT * points)


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

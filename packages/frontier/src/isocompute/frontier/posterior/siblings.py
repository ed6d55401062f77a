"""The other runs of a sweep, with which each run is compared: their start, gain, end and grid.

Every comparison uses all other runs, but not the run itself.
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
"""Two evaluations within this share of compute are at the same grid point."""
FEW = 8
"""With up to this many points, moving means are over two points, otherwise three."""
SIGNIFICANT = 4.0
"""Standard errors by which a reward must have changed. A run is judged by its highest moving mean, and noise alone
lifts the highest of twenty by two to three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A mean reward.

    Attributes:
        error: Its standard error.
        compute: Compute of the last evaluation in it.
    """

    reward: float
    error: float
    compute: float = 0.0

    def above(self, other: Level) -> bool:
        """Return whether it is significantly higher than another level."""
        return self.reward - other.reward > SIGNIFICANT * float(np.hypot(self.error, other.error))


@dataclass(frozen=True, kw_only=True)
class View:
    """A run as it is judged: without its spikes, reduced to few points, and with the actual noise of its evaluations.

    Attributes:
        spikes: Indices of its spikes.
        compute: Compute of the points, shape ``(points,)``.
        error: Their standard errors, including noise beyond sampling.
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
        """What it shares with the runs that it is first compared with."""
        return self.run.cell.key

    @property
    def end(self) -> Level:
        """The reward at its end, over its last points."""
        return self._means[-1] if self._means else self.first

    def best(self, until: float) -> Level:
        """Its highest moving mean after the start, up to a given compute."""
        return self.tops[1][int(np.searchsorted(self.tops[0], until * (1 + SAME_POINT), side="right"))]

    @cached_property
    def tops(self) -> tuple[Array, list[Level]]:
        """Compute of its moving means, and the highest: before the first of them, up to the first, and so on."""
        best = [self.first]
        for own in self._means:
            best.append(own if len(best) == 1 or own.reward > best[-1].reward else best[-1])
        return np.array([own.compute for own in self._means]), best

    def mean(self, chosen: Mask) -> Level:
        """The mean of one or more of its points."""
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
        factor: Ratio of the sweep's evaluation noise to the stated errors.
    """
    bad = tuple(np.flatnonzero(spikes(run, factor)).tolist())
    kept = binned(run.without(bad))
    error = expected_error(kept)
    # Before training, there is nothing to smooth with.
    error[:1] = kept.error_at(kept.reward)[:1]
    return View(run=run, spikes=bad, compute=kept.compute, reward=kept.reward, error=factor * error)


SHARED_END = 0.1
"""Runs within this share of compute count as planned to the same end: budgets are whole batches."""
MOST_POINTS = 2000
"""With more grid points than this, none counts as missing: values logged at each step are not a grid."""
Key = tuple[int, int, str]


class Siblings:
    """Runs for comparison; one that is among them is compared with the rest."""

    def __init__(self, views: Sequence[View]) -> None:
        self.views = tuple(views)
        self._keys = [v.setting for v in self.views]
        self._groups = np.array([v.run.cell.group for v in self.views], dtype=np.str_)
        self._started = np.array([v.run.compute[0] == 0 for v in self.views], dtype=np.bool_)
        self._first, self._error = np.array([(v.first.reward, v.first.error) for v in self.views]).reshape(-1, 2).T
        self._last = np.array([v.run.last for v in self.views])
        self._gains, self._grid = cache(self._gains_of), cache(self._grid_of)

    def _others(self, own: View) -> Mask:
        """Mask of the runs other than this one, shape ``(runs,)``."""
        return np.array([v is not own for v in self.views], dtype=np.bool_)

    def _of(self, key: Key) -> Mask:
        """Mask of the runs with a setting, shape ``(runs,)``."""
        return np.array([each == key for each in self._keys], dtype=np.bool_)

    def common_start(self, own: View) -> tuple[Level, int]:
        """The median reward before training over the other runs of its group, and the number of these runs.

        All runs of a sweep start from one model, so their evaluations at compute 0 differ only by sampling. Equal ones
        count as one evaluation: runs of one seed may share it.
        """
        which = self._others(own) & self._started & (self._groups == own.run.cell.group)
        if not which.any():
            return own.first, 0
        rewards = self._first[which]
        error = np.median(self._error[which]) / np.sqrt(len(np.unique(rewards)))
        return Level(reward=float(np.median(rewards)), error=float(error)), len(rewards)

    def usual_at(self, own: View, compute: float) -> float:
        """The others' median reward at a compute: in its cell if possible, else at its n and B_p, else overall."""
        others = [o for o in self.views if o is not own]
        cell = [o for o in others if o.run.cell == own.run.cell]
        same = [o for o in others if o.setting == own.setting]
        return float(np.median([np.interp(compute, o.compute, o.reward) for o in cell or same or others]))

    def bad_start(self, own: View, times: float = SIGNIFICANT) -> bool:
        """Return whether its first evaluation alone is off by this many standard errors.

        The second evaluation is then closer to the others' start or progress.
        """
        shared, count = self.common_start(own)
        if count < 2 or own.run.compute[0] > 0 or len(own.compute) < 2:
            return False
        # Use the error at the expected reward: at a share of 0 it would be almost none.
        error = np.hypot(own.run.error_at(np.full(len(own.run.reward), shared.reward))[0], shared.error)
        off = abs(own.first.reward - shared.reward)
        if off <= times * error:
            return False
        usual = np.array([shared.reward, self.usual_at(own, float(own.compute[1]))])
        return bool(np.abs(own.reward[1] - usual).min() < off)

    def start_of(self, own: View) -> Level:
        """The reward before training: the common value of all runs, unless this one clearly begins elsewhere."""
        shared, count = self.common_start(own)
        if not count or own.run.compute[0] > 0:
            return own.first
        elsewhere = shared.above(own.first) or own.first.above(shared)
        return own.first if elsewhere and not self.bad_start(own) else shared

    def usual_gain(self, own: View) -> float | None:
        """Others' median gain by the compute at this run's end; None if it would not be visible, or there was none.

        Runs with the same n and B_p are used if one of them gained; otherwise all others, if half of them gained.
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
        """Mask of runs that reached a compute, and their gains by then, 0 if unsure, shape ``(runs,)`` each."""
        compute, reward, error = self._tops
        which = np.arange(len(self.views)), (compute <= last * (1 + SAME_POINT)).sum(axis=1)
        begin, unsure = self._starts
        off = reward[which] - begin
        reached = self._last >= (1 - SHARED_END) * last
        return reached, np.where(reached & (off > SIGNIFICANT * np.hypot(error[which], unsure)), off, 0.0)

    @cached_property
    def _starts(self) -> Array:
        """Each run's reward before training, and its error, shape ``(2, runs)``."""
        return np.array([(start.reward, start.error) for start in map(self.start_of, self.views)]).T

    @cached_property
    def _tops(self) -> tuple[Array, Array, Array]:
        """Compute of all moving means, and the running maximum with its error, one row per run."""
        tops = [v.tops for v in self.views]
        return (
            padded([compute for compute, _ in tops], np.inf),
            padded([np.array([b.reward for b in best]) for _, best in tops], 0.0),
            padded([np.array([b.error for b in best]) for _, best in tops], 0.0),
        )

    def planned_end(self, own: View) -> tuple[float, int] | None:
        """The compute that the run was meant to reach, and how many others ended there; None if unclear.

        It is the most common last compute of the other runs with the same n and B_p, if two or more share it; else that
        of all others, if two or more and at least half of them share it. If several are equally common, the largest
        counts: runs end early, not late.
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
        """Mask of the runs that end within a tenth of each run's end, shape ``(runs, runs)``."""
        return np.asarray(np.abs(self._last - self._last[:, None]) <= SHARED_END * self._last[:, None])

    def longest(self, own: View) -> float:
        """The largest compute that another run reached; its own if there is none."""
        others = self._last[self._others(own)]
        return float(others.max()) if len(others) else own.run.last

    def missing_points(self, own: View) -> Array:
        """Points of the siblings' grid, within the run's own compute, at which the run has no evaluation.

        A point belongs to the grid if at least two runs with the same n and B_p have it, and so do most of those that
        reach it. If there are fewer than two such runs, all others count.
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
        # Merge points that are nearly equal: batches of different sizes divide a budget differently.
        grid = grid[np.diff(grid, prepend=-1.0) > SAME_POINT * grid]
        absent = grid[_distance(grid, run.compute) > SAME_POINT * grid]
        # A run that lacks most of the grid has its own grid.
        return np.asarray(absent if 2 * len(absent) <= len(grid) else absent[:0])

    def _grid_of(self, key: Key | None) -> tuple[Array, Mask, Mask, Mask]:
        """Points of all grids; masks of runs that evaluated each exactly, reach it, and have it, ``(runs, points)``."""
        runs = [v.run for v, own in zip(self.views, self._keys, strict=True) if key in (None, own)]
        points = np.unique(np.concatenate([run.compute for run in runs]))
        # Beyond this number, no run is asked for any point; a run's own points may be removed later.
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
"""Known scales: −1 and 1 for wrong and right, percent, and a reward halved or doubled by a second part."""
FAR = 4.0
"""Starts farther apart than this many standard errors differ in model or scale: otherwise only sampling separates
them."""
NEAR = 3.0
"""A start fits a scale if it lies within this many standard errors of the predicted value."""


def other_scale(own: View, every: Siblings, possible: Siblings) -> str | None:
    """The evidence that a run was logged on another scale than the others; None if there is none.

    Rewards outside 0 to 1 are evidence. Otherwise the run's start is compared with the common start of two or more
    others, and must lie where a scale of ``SCALES`` puts it. The second evaluation must agree, and the other rewards
    must be possible on that scale.

    Args:
        possible: The members of ``every`` whose rewards lie within 0 to 1.
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
        # A single bad evaluation at the start is not a scale: the next one must fit it too.
        agrees = abs(second - scale(later)) < abs(second - later)
        if fits and agrees and abs(first.reward - scale(usual)) <= NEAR * error:
            return f"starts at {first.reward:.3f}, which is {name} the {usual:.3f} that {count} others start at"
    return None

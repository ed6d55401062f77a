"""A run as it is judged: without its spikes, in few points, with the noise that its evaluations really have."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..data.curves import Array, Mask
from .binning import binned
from .evaluations import Run
from .scatter import expected_error, spikes

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
        """Whether it is higher than another by so many standard errors."""
        return self.reward - other.reward > times * float(np.hypot(self.error, other.error))


@dataclass(frozen=True, kw_only=True)
class View:
    """A run as it is judged.

    Attributes:
        run: As it was read.
        spikes: Indices of its spikes.
        compute: Of the points, shape ``(points,)``.
        reward: Of the points.
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
    def end(self) -> Level:
        """The reward that it ended at, over its last points."""
        return self._means[-1] if self._means else self.first

    def best(self, until: float) -> Level:
        """Its highest moving mean after the start, up to some compute."""
        reached = [m for m in self._means if m.compute <= until * (1 + SAME_POINT)]
        return max(reached, key=lambda m: m.reward, default=self.first)

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
        after = np.flatnonzero(self.compute > self.compute[0])
        width = min(3 if len(self.compute) > FEW else 2, len(after))
        last = np.arange(len(self.compute))
        return [self.mean((last > i - width) & (last <= i)) for i in after[max(width - 1, 0) :]]


def view(run: Run, factor: float) -> View:
    """A run as it is judged.

    Args:
        factor: Noise of the sweep's evaluations over the errors stated.
    """
    bad = tuple(np.flatnonzero(spikes(run, factor)).tolist())
    kept = binned(run.without(bad))
    error = expected_error(kept)
    # Before training there is nothing to be smoothed with.
    error[:1] = kept.error_at(kept.reward)[:1]
    return View(run=run, spikes=bad, compute=kept.compute, reward=kept.reward, error=factor * error)

"""The runs of a sweep as arrays: one row per run, padded, and the cell that each run belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..data.curves import Array, Mask, binomial_error


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting of a sweep.

    Attributes:
        learning_rate: The rate at the end of warm-up; None where the runs do not say.
        group: Value of the grouping column, or empty without one.
    """

    rollouts_per_problem: int
    problems_per_batch: int
    learning_rate: float | None = None
    group: str = ""

    @property
    def batch_rollouts(self) -> int:
        """B = B_p · n."""
        return self.problems_per_batch * self.rollouts_per_problem

    @property
    def key(self) -> tuple[int, int, str]:
        """Identify it whatever its learning rate; settings are listed in this order."""
        return self.rollouts_per_problem, self.problems_per_batch, self.group


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """All runs that one posterior is of.

    Attributes:
        cells: The settings, without repetition.
        cell: Index of each run's cell, shape ``(runs,)``.
        compute: Compute of each evaluation, rising, padded by 1, shape ``(runs, points)``.
        reward: The metric, padded by 0.
        error: Standard error within the run, padded by 1.
        seen: False where padded.
        trials: Responses behind an evaluation, shape of ``compute``; None where the error is not binomial.
        error_is_known: True where noise is at least ``error``; else only ratios of errors mean something.
        bases: What the runs are draws of: base models, or base models with their problem sets.
        base: Index of each run's base, shape ``(runs,)``; all of the first one by default.
    """

    cells: tuple[Setting, ...]
    cell: NDArray[np.int64]
    compute: Array
    reward: Array
    error: Array
    seen: Mask
    trials: Array | None = None
    error_is_known: bool = True
    bases: tuple[str, ...] = ("",)
    base: NDArray[np.int64] | None = None

    @property
    def base_of_run(self) -> NDArray[np.int64]:
        """``base``, filled in."""
        return np.zeros(len(self.cell), dtype=np.int64) if self.base is None else self.base

    @property
    def last(self) -> Array:
        """Compute of the last evaluation of each run, shape ``(runs,)``."""
        return np.asarray(np.where(self.seen, self.compute, 0.0).max(axis=1))

    def only(self, which: NDArray[np.int64]) -> Runs:
        """Some of the runs, with the settings and base models that are theirs."""
        cells, cell = np.unique(self.cell[which], return_inverse=True)
        bases, base = np.unique(self.base_of_run[which], return_inverse=True)
        return replace(
            self,
            cells=tuple(self.cells[k] for k in cells),
            cell=cell.reshape(-1),
            bases=tuple(self.bases[k] for k in bases),
            base=base.reshape(-1),
            compute=self.compute[which],
            reward=self.reward[which],
            error=self.error[which],
            seen=self.seen[which],
            trials=None if self.trials is None else self.trials[which],
        )

    def with_errors_at(self, reward: Array) -> Runs:
        """The same runs with each binomial error that of the fitted reward, not that of the one measured.

        Args:
            reward: Fitted rewards, shape of ``compute``.
        """
        if self.trials is None:
            return self
        rate = np.clip(reward, 0.5 / self.trials, 1 - 0.5 / self.trials)
        error = np.where(self.seen, binomial_error(rate, self.trials), 1.0)
        return replace(self, error=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """The curves of a sweep: one for each cell of each base model that has runs.

    Attributes:
        base: Index of each curve's base model, shape ``(curves,)``.
        cell: Index of its cell.
        of_run: Index of each run's curve, shape ``(runs,)``.
        members: Membership of runs in curves, as ones and zeros, shape ``(runs, curves)``.
        of_base: Of curves in base models, shape ``(curves, bases)``.
        of_cell: Of curves in cells, shape ``(curves, cells)``.
    """

    base: NDArray[np.int64]
    cell: NDArray[np.int64]
    of_run: NDArray[np.int64]
    members: Array
    of_base: Array
    of_cell: Array

    @classmethod
    def of(cls, runs: Runs) -> Curves:
        """Those of some runs."""
        every = np.stack([runs.base_of_run, runs.cell], axis=1)
        pairs, of_run = np.unique(every, axis=0, return_inverse=True)
        (base, cell), of_run = pairs.T, of_run.reshape(-1)
        return cls(
            base=base,
            cell=cell,
            of_run=of_run,
            members=members(of_run, len(cell)),
            of_base=members(base, len(runs.bases)),
            of_cell=members(cell, len(runs.cells)),
        )


def members(index: NDArray[np.int64], count: int) -> Array:
    """Membership of things in groups, as ones and zeros, shape ``(things, groups)``."""
    return np.asarray((index[:, None] == np.arange(count)).astype(np.float64))


def padded(rows: Sequence[Array], fill: float) -> Array:
    """Rows of any length as one array, shape ``(rows, longest)``.

    Args:
        fill: Value after the end of a row.
    """
    whole = np.full((len(rows), max(map(len, rows))), fill)
    for row, values in zip(whole, rows, strict=True):
        row[: len(values)] = values
    return whole

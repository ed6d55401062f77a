"""The runs of a sweep as arrays: one row per run, padded, and the cell that each run belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..data.curves import Array, Mask
from ..data.precision import binomial_error


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """All runs that one posterior is of.

    Attributes:
        cells: The settings, without repetition.
        cell: Index of each run's cell, shape ``(runs,)``.
        compute: Compute of each evaluation, rising, padded by 1, shape ``(runs, points)``.
        reward: The metric, padded by 0.
        error: Standard error within the run, padded by 1.
        seen: What is no padding.
        trials: Responses behind an evaluation, shape of ``compute``; None where the error is not binomial.
        error_is_known: Whether noise is at least ``error``; else only ratios of errors mean something.
    """

    cells: tuple[Cell, ...]
    cell: NDArray[np.int64]
    compute: Array
    reward: Array
    error: Array
    seen: Mask
    trials: Array | None = None
    error_is_known: bool = True

    @property
    def last(self) -> Array:
        """Compute of the last evaluation of each run, shape ``(runs,)``."""
        return np.asarray(np.where(self.seen, self.compute, 0.0).max(axis=1))

    def with_errors_at(self, reward: Array) -> Runs:
        """The same runs with each binomial error that of the fitted reward, not that of the one measured.

        Args:
            reward: Fitted rewards, shape of ``compute``.
        """
        if self.trials is None:
            return self
        rate = np.clip(reward, 0.5 / self.trials, 1 - 0.5 / self.trials)
        error = np.where(self.seen, binomial_error(rate, self.trials), 1.0)
        return Runs(
            cells=self.cells, cell=self.cell, compute=self.compute, reward=self.reward, error=error, seen=self.seen,
            trials=self.trials, error_is_known=self.error_is_known,
        )  # fmt: skip


def padded(rows: Sequence[Array], fill: float) -> Array:
    """Rows of any length as one array, shape ``(rows, longest)``.

    Args:
        fill: What stands where a row has ended.
    """
    whole = np.full((len(rows), max(map(len, rows))), fill)
    for row, values in zip(whole, rows, strict=True):
        row[: len(values)] = values
    return whole

"""Numbers per token, response after response: list columns of a table as one array with lengths, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from ..errors import LearnerError


@dataclass(frozen=True, slots=True, kw_only=True)
class Ragged:
    """Rows of different lengths, joined.

    The rows ``[1, 2]``, ``[]`` and ``[3]`` are the values ``[1, 2, 3]`` with the lengths ``[2, 0, 1]``.

    Attributes:
        values: Shape ``(tokens,)``.
        lengths: Shape ``(rows,)``; its sum is ``tokens``.
    """

    values: np.ndarray
    lengths: np.ndarray

    @property
    def row(self) -> np.ndarray:
        """Row of each value, shape ``(tokens,)``."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @property
    def last(self) -> np.ndarray:
        """Where the last value of each row that has one is, shape ``(rows with values,)``."""
        ends: np.ndarray = np.cumsum(self.lengths)[self.lengths > 0] - 1
        return ends

    @property
    def mask(self) -> np.ndarray:
        """Where the values are in the matrix of ``padded``, shape ``(rows, longest)``."""
        within: np.ndarray = np.arange(int(self.lengths.max(initial=0)))[None, :] < self.lengths[:, None]
        return within

    def padded(self) -> np.ndarray:
        """The rows as a matrix filled up with 0, shape ``(rows, longest)``."""
        matrix = np.zeros((len(self.lengths), int(self.lengths.max(initial=0))))
        matrix[self.mask] = self.values
        return matrix

    def sums(self) -> np.ndarray:
        """Sum of each row, shape ``(rows,)``."""
        return np.bincount(self.row, weights=self.values, minlength=len(self.lengths))


def ragged(table: pl.DataFrame, name: str, lengths: np.ndarray) -> Ragged:
    """Read a list column of numbers per sampled token.

    Args:
        table: A ``rollouts`` table that a policy was measured on.
        lengths: Sampled tokens of each row.

    Raises:
        LearnerError: The column is missing, or a row has a number of values that is not its number of sampled tokens.
    """
    if name not in table.columns:
        raise LearnerError(f"the rollouts have no column {name}, which the objective needs: measure them first")
    column = table[name].rechunk()
    found = column.list.len().fill_null(0).to_numpy().astype(np.int64)
    wrong = np.flatnonzero(found != lengths)
    if len(wrong):
        row = int(wrong[0])
        raise LearnerError(
            f"row {row} of the rollouts has {found[row]} numbers in {name} and {lengths[row]} sampled tokens; it must "
            "have one for each"
        )
    values: Any = column.drop_nulls().to_arrow().flatten()
    return Ragged(values=values.to_numpy(zero_copy_only=False).astype(np.float64), lengths=lengths)


def listed(name: str, rows: Ragged) -> pl.Series:
    """A list column of float32 with such rows."""
    offsets = np.concatenate([[0], np.cumsum(rows.lengths)])
    values = pa.array(rows.values.astype(np.float32))
    return pl.Series(name, pa.LargeListArray.from_arrays(pa.array(offsets), values))

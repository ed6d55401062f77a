"""What becomes of each response that was generated and is paid for."""

from __future__ import annotations

import numpy as np
import polars as pl

from ..settings.batch import BatchConfig
from .advantages import zero_variance


def with_cohorts(rollouts: pl.DataFrame, config: BatchConfig) -> pl.DataFrame:
    """Add ``zero_variance`` and ``cohort`` columns to a ``rollouts`` table: what is paid for, and as what.

    Cohorts are a partition: ``failed`` responses were aborted; ``filtered`` are those of groups with equal rewards,
    when they are to be left out, and those beyond the first ``trained_rollouts`` completed ones of a group by
    ``sample``; all else is ``trained``. Any rewards and any groups have one, also those of which no advantage can be
    computed, so that what was generated can be charged first.

    Args:
        rollouts: A ``rollouts`` table; ``problem_id``, ``reward``, ``finish_reason`` and, with ``trained_rollouts``,
            ``sample`` are read.

    Returns:
        The table with both columns.
    """
    completed = (rollouts["finish_reason"] != "aborted").to_numpy()
    groups = group_index(rollouts)[completed]
    # Not the same as an advantage of 0, which the middle one of the rewards 0, 0.5 and 1 has.
    equal = np.zeros(len(rollouts), dtype=bool)
    equal[completed] = zero_variance(rollouts["reward"].to_numpy().astype(np.float64)[completed], groups)
    left_out = np.zeros(len(rollouts), dtype=bool)
    if config.trained_rollouts is not None:
        left_out[completed] = _place(groups, rollouts["sample"].to_numpy()[completed]) >= config.trained_rollouts
    if config.filter_zero_variance:
        left_out |= equal
    cohort = np.where(completed, np.where(left_out, "filtered", "trained"), "failed")
    return rollouts.with_columns(
        pl.Series("zero_variance", equal, dtype=pl.Boolean),
        pl.Series("cohort", cohort.astype("<U8"), dtype=pl.String),
    )


def group_index(rollouts: pl.DataFrame) -> np.ndarray:
    """Group of each response, by problem: whole numbers from 0, shape ``(responses,)``."""
    index: np.ndarray = rollouts["problem_id"].rank("dense").to_numpy().astype(np.int64) - 1
    return index


def _place(groups: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """Place of each response in its group, from 0, in the order of ``sample``."""
    order = np.lexsort((samples, groups))
    ordered = groups[order]
    begins = np.searchsorted(ordered, ordered)
    place = np.empty(len(groups), dtype=np.int64)
    place[order] = np.arange(len(groups)) - begins
    return place

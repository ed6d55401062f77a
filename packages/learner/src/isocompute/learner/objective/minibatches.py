"""The updates that a batch is split into."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from ..config import LearnerConfig
from .cohorts import group_index
from .prepare import sampled_counts, with_loss_weights


def minibatches(batch: pl.DataFrame, config: LearnerConfig, seed: int, step: int) -> Iterator[pl.DataFrame]:
    """Yield the responses of one update after another.

    With one update per batch that is the batch as it is. Else each pass over the batch (``epochs``) splits its groups
    at random into ``updates_per_batch`` parts of as equal a number of groups as possible; parts beyond the number of
    groups are left out, and so are those without a sampled token where others have one. Rows keep their order, and
    each part has the ``loss_weight`` of an update from it alone.

    Args:
        step: The step; it, the seed and the pass decide the split, so that a resumed run has the same.
    """
    if not config.objective.off_policy:
        yield batch
        return
    groups = group_index(batch)
    count = int(groups.max(initial=-1)) + 1
    parts = min(config.objective.updates_per_batch, count)
    for epoch in range(config.objective.epochs):
        order = np.random.default_rng([seed, step, epoch]).permutation(count)
        for chosen in np.array_split(order, parts) if parts else ():
            part = batch.filter(np.isin(groups, chosen))
            if sampled_counts(part).any() or not sampled_counts(batch).any():
                yield with_loss_weights(part, config)

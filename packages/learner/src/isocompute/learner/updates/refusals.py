"""What a learner refuses to learn from, each as an error that leaves the policy as it was."""

from __future__ import annotations

import math
from collections.abc import Callable

import polars as pl

from ..batch.table import check_columns
from ..config import LearnerConfig
from ..errors import DivergenceError, LearnerError, SyncError
from .sync import BROKEN, check_finite, check_sync

ADVANTAGES = ("advantage", "advantages")
"""The column of one advantage per response, and that of one per sampled token."""


def check_prepared(batch: pl.DataFrame, *, step: int) -> None:
    """Refuse responses without advantages or weights, from which nothing would be learnt without a word.

    Raises:
        LearnerError: A column is missing.
    """
    columns = set(batch.columns)
    if "loss_weight" in columns and columns & set(ADVANTAGES):
        return
    missing = "loss_weight" if columns & set(ADVANTAGES) else "advantage"
    raise LearnerError(f"the batch of step {step} has no column {missing}: prepare(rollouts, config) adds it")


def check_versions(rollouts: pl.DataFrame, version: int, total: Callable[[float], float]) -> None:
    """Refuse responses of other weights than the learner's; all ranks refuse or none does.

    Args:
        rollouts: This rank's share.
        total: Adds a number up over the ranks.

    Raises:
        SyncError: A response on some rank was sampled with another version.
        LearnerError: A column is missing.
    """
    check_columns(rollouts, ("prompt_ids", "response_ids", "logprobs", "weights_version"))
    stale = rollouts.filter(pl.col("weights_version") != version)
    if total(len(stale)):
        versions = stale["weights_version"].unique().sort().to_list() or "others (on another rank)"
        raise SyncError(
            f"a batch for step {version + 1} was sampled with weights version {versions}, "
            f"and the learner is at {version}: a sync was skipped"
        )


def check_outcome(norm: float, loss: float, broken: tuple[float, float], config: LearnerConfig, *, step: int) -> None:
    """Refuse a step whose numbers are not finite; these are sums over the ranks, so all refuse or none does.

    Args:
        broken: How many log-probabilities of the learner and of the sampler are not finite.

    Raises:
        DivergenceError: The gradient, the loss or a log-probability of the learner's own is not finite.
        SyncError: A log-probability of the sampler is not.
    """
    check_finite(broken[0], step=step)
    if broken[1]:
        check_sync(BROKEN, config, step=step)
    if not math.isfinite(norm):
        raise DivergenceError(
            f"step {step} has a gradient that is not finite ({norm}): an advantage of the batch is not finite, "
            "or the policy has diverged; no update was made"
        )
    if not math.isfinite(loss):
        raise DivergenceError(
            f"step {step} has a loss that is not finite ({loss}): the policy has diverged; no update was made"
        )

"""How old the tokens of a batch are when they are learnt from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl


@dataclass(frozen=True, slots=True, kw_only=True)
class LagStatistics:
    """How old the tokens of a step's batch were when they were learnt from, and who waited for whom.

    Attributes:
        lag_mean: Versions by which the weights that a token was drawn with are behind those that it updates, the mean
            over tokens.
        lag_max: The most of them.
        mixed_share: Share of the responses whose tokens are of several versions.
        stale_groups: Groups that were dropped, as a response of theirs was over the bound.
        stale_length: Mean tokens of their responses; None where there is none.
        engines_idle_share: Share of the time since the step before in which engines had nothing to do; None where the
            pipe does not say.
        trainer_idle_share: Share in which the trainer waited for groups.
        virtual_time: Time since the run began on a virtual clock (steps of decoding); None without one.
    """

    lag_mean: float
    lag_max: int
    mixed_share: float
    stale_groups: int = 0
    stale_length: float | None = None
    engines_idle_share: float | None = None
    trainer_idle_share: float | None = None
    virtual_time: float | None = None

    def metrics(self) -> dict[str, float]:
        """The numbers by name; those that do not exist are left out."""
        return {name: float(value) for name in self.__slots__ if (value := getattr(self, name)) is not None}


def lag_statistics(
    used: pl.DataFrame, stale: pl.DataFrame, *, version: int, idle: Mapping[str, float]
) -> LagStatistics:
    """Describe a step's batch, for the weights of a version.

    Args:
        used: Its completed responses.
        stale: Those of groups that were dropped for their age.
        idle: From ``Pipe.idle``.
    """
    lengths = used["response_ids"].list.len().to_numpy().astype(np.int64)
    oldest = used["weights_version"].to_numpy().astype(np.int64)
    versions, starts = oldest, np.zeros(len(used), dtype=np.int64)
    counts = np.ones(len(used), dtype=np.int64)
    if "versions" in used.columns:
        spans = used.with_columns(
            versions=pl.coalesce("versions", pl.concat_list("weights_version")),
            version_starts=pl.coalesce("version_starts", pl.concat_list(pl.lit(0, dtype=pl.Int32))),
        )
        counts = spans["versions"].list.len().to_numpy().astype(np.int64)
        versions = spans["versions"].explode().to_numpy().astype(np.int64)
        starts = spans["version_starts"].explode().to_numpy().astype(np.int64)
    # A span ends where the next one of its response begins, the last one with the response.
    ends = np.append(starts[1:], 0)
    ends[np.cumsum(counts) - 1] = lengths
    tokens = ends - starts
    behind = version - versions
    return LagStatistics(
        lag_mean=float((behind * tokens).sum() / max(1, tokens.sum())),
        lag_max=int(behind.max(initial=0)),
        mixed_share=float((counts > 1).mean()) if len(used) else 0.0,
        stale_groups=stale["problem_id"].n_unique(),
        stale_length=float(stale["response_ids"].list.len().to_numpy().mean()) if len(stale) else None,
        engines_idle_share=idle.get("engines"),
        trainer_idle_share=idle.get("trainer"),
        virtual_time=idle.get("clock"),
    )

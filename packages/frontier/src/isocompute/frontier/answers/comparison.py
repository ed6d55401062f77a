"""Prescriptions against fixed n at the same budget, seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from ..errors import FrontierError
from ..fitting.intervals import t_quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The prescribed n against one fixed n at the same budget.

    Attributes:
        differences: Last evaluation of the prescribed n minus that of the baseline, seed by seed.
        mean: None without pairs.
        interval: 95 % t interval of the mean, of this comparison alone, or None with fewer than two pairs.
    """

    baseline: int
    differences: tuple[float, ...]
    mean: float | None
    interval: tuple[float, float] | None


def compare(
    evals: pl.DataFrame, *, prescribed: int, baselines: Sequence[int], metric: str = "avg_at_4"
) -> list[Comparison]:
    """Compare the last evaluations of runs at one budget.

    Args:
        evals: An ``evals`` table of the runs, none of which the prescription was fitted to.

    Raises:
        FrontierError: The runs did not end at the same compute.
    """
    last = evals.sort("rollouts").group_by("rollouts_per_problem", "seed", maintain_order=True).last()
    if last["rollouts"].n_unique() > 1:
        spans = sorted(set(last["rollouts"].to_list()))
        raise FrontierError(f"the runs compared end at different rollouts ({spans}): compare equal budgets")
    own = last.filter(rollouts_per_problem=prescribed).select("seed", own=metric)
    found = []
    for n in baselines:
        pairs = own.join(last.filter(rollouts_per_problem=n), on="seed").sort("seed")
        differences = (pairs["own"] - pairs[metric]).to_numpy()
        mean = float(differences.mean()) if len(differences) else None
        interval = None
        if mean is not None and len(differences) >= 2:
            half = t_quantile(len(differences) - 1) * float(differences.std(ddof=1) / np.sqrt(len(differences)))
            interval = (mean - half, mean + half)
        found.append(Comparison(baseline=n, differences=tuple(differences.tolist()), mean=mean, interval=interval))
    return found

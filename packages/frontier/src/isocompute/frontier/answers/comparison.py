"""Prescriptions against fixed n at the same budget, seed by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import numpy as np
import polars as pl
from scipy import stats

from ..data.reading import counted
from ..errors import FrontierError
from ..fitting.intervals import t_quantile

K = TypeVar("K")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The prescribed n against one fixed n at the same budget.

    Attributes:
        differences: Last evaluation of the prescribed n minus that of the baseline, seed by seed.
        mean: None without pairs.
        interval: 95 % t interval of the mean, of this comparison alone, or None with fewer than two pairs.
        p_value: Of no difference, adjusted for all the comparisons made (Holm), or None with fewer than two pairs.
        verdict: ``won`` or ``lost`` where the adjusted p is below 0.05, else ``unresolved``; ``same`` when the baseline
            is what was prescribed.
    """

    prescribed: int
    baseline: int
    differences: tuple[float, ...]
    mean: float | None
    interval: tuple[float, float] | None
    verdict: str
    p_value: float | None = None
    comparisons: int = 1

    def as_dict(self) -> dict[str, Any]:
        """The comparison as plain values."""
        plain = asdict(self)
        plain["differences"] = list(self.differences)
        plain["interval"] = list(self.interval) if self.interval else None
        return plain

    def summary(self) -> str:
        """One line to be printed."""
        head = f"n = {self.prescribed} against n = {self.baseline}"
        if self.verdict == "same":
            return f"{head}: the same allocation"
        if self.mean is None:
            return f"{head}: no seed was trained with both, unresolved"
        span = f" (95 % {self.interval[0]:+.3f} to {self.interval[1]:+.3f})" if self.interval else ""
        chance = "" if self.p_value is None else f", p = {self.p_value:.2g}"
        chance += f" with {self.comparisons} comparisons" if chance and self.comparisons > 1 else ""
        return f"{head}: {self.mean:+.3f}{span} over {counted(len(self.differences), 'seed')}{chance}, {self.verdict}"


def compare(
    evals: pl.DataFrame, *, prescribed: int, baselines: Sequence[int], metric: str = "avg_at_4"
) -> list[Comparison]:
    """Compare the last evaluations of runs at one budget.

    Where nothing differs, any verdict is ``won`` or ``lost`` in at most one comparison of twenty, however many
    baselines there are.

    Args:
        evals: An ``evals`` table of the runs, none of which the prescription was fitted to.

    Raises:
        FrontierError: The runs did not end at the same compute.
    """
    last = evals.sort("rollouts").group_by("rollouts_per_problem", "seed", maintain_order=True).last()
    if last["rollouts"].n_unique() > 1:
        spans = sorted(set(last["rollouts"].to_list()))
        raise FrontierError(f"the runs compared end at different rollouts ({spans}): compare equal budgets")
    scores = {(r["rollouts_per_problem"], r["seed"]): r[metric] for r in last.iter_rows(named=True)}
    return _with_verdicts([_comparison(scores, prescribed, n) for n in baselines])


def holm(ps: Mapping[K, float]) -> dict[K, float]:
    """Holm's adjusted p of each hypothesis of a family."""
    adjusted, largest = {}, 0.0
    for rank, (name, p) in enumerate(sorted(ps.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, (len(ps) - rank) * p))
        adjusted[name] = largest
    return adjusted


def _with_verdicts(found: list[Comparison]) -> list[Comparison]:
    """Holm's adjustment, and the verdicts that follow."""
    adjusted = holm({c.baseline: c.p_value for c in found if c.p_value is not None})
    return [
        c
        if c.p_value is None
        else replace(
            c,
            p_value=adjusted[c.baseline],
            comparisons=len(adjusted),
            verdict="unresolved" if adjusted[c.baseline] >= 0.05 else "won" if (c.mean or 0.0) > 0 else "lost",
        )
        for c in found
    ]


def _comparison(scores: dict[tuple[int, int], float], prescribed: int, baseline: int) -> Comparison:
    if baseline == prescribed:
        return Comparison(
            prescribed=prescribed, baseline=baseline, differences=(), mean=None, interval=None, verdict="same"
        )
    seeds = sorted(s for n, s in scores if n == prescribed and (baseline, s) in scores)
    differences = np.array([scores[prescribed, s] - scores[baseline, s] for s in seeds])
    mean = float(differences.mean()) if len(seeds) else None
    interval, p_value = None, None
    if mean is not None and len(seeds) >= 2:
        error = float(differences.std(ddof=1) / np.sqrt(len(seeds)))
        half = t_quantile(len(seeds) - 1) * error
        interval = (mean - half, mean + half)
        p_value = float(2 * stats.t.sf(abs(mean) / error, len(seeds) - 1)) if error > 0 else float(mean == 0)
    return Comparison(
        prescribed=prescribed,
        baseline=baseline,
        differences=tuple(differences.tolist()),
        mean=mean,
        interval=interval,
        p_value=p_value,
        verdict="unresolved",
    )

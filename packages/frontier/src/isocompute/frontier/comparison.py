"""Whether a prescription won: paired differences over seeds, with a t interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl
from scipy import stats

from .errors import FrontierError


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The prescribed n against one fixed n at the same budget.

    Attributes:
        prescribed: The prescribed n.
        baseline: The fixed n.
        differences: Last evaluation of the prescribed n minus that of the baseline, seed by seed.
        mean: Their mean, or None without pairs.
        interval: 95 % t interval of the mean, or None with fewer than two pairs.
        verdict: ``won``, ``lost``, ``unresolved``, or ``same`` when the baseline is what was prescribed.
    """

    prescribed: int
    baseline: int
    differences: tuple[float, ...]
    mean: float | None
    interval: tuple[float, float] | None
    verdict: str

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        plain = asdict(self)
        plain["differences"] = list(self.differences)
        plain["interval"] = list(self.interval) if self.interval else None
        return plain

    def summary(self) -> str:
        """One line for people."""
        head = f"n = {self.prescribed} against n = {self.baseline}"
        if self.verdict == "same":
            return f"{head}: the same allocation"
        if self.mean is None:
            return f"{head}: no seed was trained with both, unresolved"
        span = f" (95 % {self.interval[0]:+.3f} to {self.interval[1]:+.3f})" if self.interval else ""
        return f"{head}: {self.mean:+.3f}{span} over {len(self.differences)} seeds, {self.verdict}"


def compare(
    evals: pl.DataFrame, *, prescribed: int, baselines: Sequence[int], metric: str = "avg_at_4"
) -> list[Comparison]:
    """Compare the last evaluations of runs at one budget.

    Args:
        evals: An ``evals`` table of the runs.
        prescribed: The prescribed n.
        baselines: The fixed n.
        metric: Metric compared.

    Raises:
        FrontierError: The runs did not end at the same compute.
    """
    last = evals.sort("rollouts").group_by("rollouts_per_problem", "seed", maintain_order=True).last()
    if last["rollouts"].n_unique() > 1:
        spans = sorted(set(last["rollouts"].to_list()))
        raise FrontierError(f"the runs compared end at different rollouts ({spans}): compare equal budgets")
    scores = {(r["rollouts_per_problem"], r["seed"]): r[metric] for r in last.iter_rows(named=True)}
    return [_paired(scores, prescribed, n) for n in baselines]


def _paired(scores: dict[tuple[int, int], float], prescribed: int, baseline: int) -> Comparison:
    if baseline == prescribed:
        return Comparison(
            prescribed=prescribed, baseline=baseline, differences=(), mean=None, interval=None, verdict="same"
        )
    seeds = sorted(s for n, s in scores if n == prescribed and (baseline, s) in scores)
    differences = np.array([scores[prescribed, s] - scores[baseline, s] for s in seeds])
    mean = float(differences.mean()) if len(seeds) else None
    interval, verdict = None, "unresolved"
    if mean is not None and len(seeds) >= 2:
        half = float(stats.t.ppf(0.975, len(seeds) - 1) * differences.std(ddof=1) / np.sqrt(len(seeds)))
        interval = (mean - half, mean + half)
        verdict = "won" if interval[0] > 0 else "lost" if interval[1] < 0 else "unresolved"
    return Comparison(
        prescribed=prescribed, baseline=baseline, differences=tuple(differences.tolist()), mean=mean,
        interval=interval, verdict=verdict,
    )  # fmt: skip

"""How a fitted curve did beyond its cut (ScaleRL, section 4)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from ..data.curves import Array
from ..fitting.forms import Parameters
from ..fitting.intervals import LEVEL, TAILS


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """How the fitted curve did beyond its cut.

    Attributes:
        points: Points beyond the cut.
        rmse: Root mean squared error.
        bias: Mean of prediction minus measurement; above 0 where the fit was too optimistic.
        coverage: Share of the points inside the 95 % prediction interval.
        verdict: ``held`` when at least as many of them are as of independent points in 95 % of cases; ``failed`` when
            fewer are than in 95 % of extensions drawn from the fit itself, in which one wrong curve moves all
            points; otherwise ``unresolved``.
    """

    points: int
    rmse: float
    bias: float
    coverage: float
    verdict: str

    @property
    def failed(self) -> bool:
        """Whether the later points contradict the forecast."""
        return self.verdict == "failed"

    def as_dict(self) -> dict[str, Any]:
        """As ``predict --json`` writes it."""
        return asdict(self)


def extension_of(
    parameters: Parameters, drawn: Array, reward: Array, compute: Array, residual_sd: float, seed: int
) -> Extension | None:
    """Compare what came after a cut with the curve fitted before it; None where nothing came.

    Args:
        parameters: The fitted curve.
        drawn: Rewards of its refits at the later evaluations, shape ``(refits, points)``.
        reward: The rewards measured there, shape ``(points,)``.
        compute: Compute of the later evaluations, shape ``(points,)``.
        residual_sd: Standard deviation of the residuals before the cut.
        seed: Fixes the noise of the prediction interval.
    """
    if not len(compute):
        return None
    noise = np.random.default_rng(seed + 1).standard_normal(drawn.shape) * residual_sd
    runs = drawn + noise
    low, high = np.quantile(runs, TAILS, axis=0)
    miss = parameters(compute) - reward
    inside = int(((reward >= low) & (reward <= high)).sum())
    expected = ((runs >= low) & (runs <= high)).sum(axis=1)
    verdict = "failed" if inside < np.quantile(expected, 1 - LEVEL, method="inverted_cdf") else "unresolved"
    if inside >= stats.binom.ppf(1 - LEVEL, len(compute), LEVEL):
        verdict = "held"
    return Extension(
        points=len(compute), rmse=float(np.sqrt((miss**2).mean())), bias=float(miss.mean()),
        coverage=inside / len(compute), verdict=verdict,
    )  # fmt: skip

"""How a fitted curve did beyond its cut (ScaleRL, section 4)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from ..data.curves import Array
from ..fitting.forms import Parameters
from ..fitting.intervals import LEVEL, ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """How the fitted curve did beyond its cut.

    Attributes:
        points: Points beyond the cut.
        rmse: Root mean squared error.
        bias: Mean of prediction minus measurement; above 0 where the fit was too optimistic.
        coverage: Share of the points inside the 95 % prediction interval.
        verdict: ``held`` when the number of points inside is at least the 5 % quantile of Binomial(points, 0.95), the
            count expected of independent points; else ``failed`` when it is below the 5 % quantile of that count in
            extensions simulated from the fit, whose points move together; else ``unresolved``.
    """

    points: int
    rmse: float
    bias: float
    coverage: float
    verdict: str

    @property
    def contradicted(self) -> bool:
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
        drawn: Rewards of its refits at the later evaluations, shape ``(refits, points)``.
        reward: The rewards measured there, shape ``(points,)``.
        compute: Compute of the later evaluations, shape ``(points,)``.
        residual_sd: Standard deviation of the residuals before the cut.
    """
    if not len(compute):
        return None
    noise = np.random.default_rng(seed + 1).standard_normal(drawn.shape) * residual_sd
    runs = drawn + noise
    low, high = ends(runs)
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

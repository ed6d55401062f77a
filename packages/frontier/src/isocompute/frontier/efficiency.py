"""ScaleRL's leave-one-out view: recipes compared by the slope of F(R) against compute (section 4 there).

With one asymptote held for all recipes, F(R) = (R − R0)/(A − R) = (C/C_mid)^B is a line of slope B in logarithms, and
the steeper one is the more efficient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats
from scipy.optimize import least_squares, minimize_scalar

from .curves import Array
from .errors import FrontierError
from .forms import SHAPES, Parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """One recipe with the shared asymptote.

    Attributes:
        name: The recipe.
        parameters: Its curve, A and R0 held.
        intervals: 95 % intervals of ``B`` and ``C_mid``, within the run.
        compute: Compute of the points fitted.
        reward: Their reward.
    """

    name: str
    parameters: Parameters
    intervals: dict[str, tuple[float, float]]
    compute: Array
    reward: Array

    def as_dict(self) -> dict[str, Any]:
        """As ``predict --json`` writes it."""
        return {
            "series": self.name, "params": self.parameters.named(),
            "intervals": {k: list(v) for k, v in self.intervals.items()},
        }  # fmt: skip


def efficiency(parameters: Parameters, compute: Array, reward: Array) -> tuple[Array, Array]:
    """F(R) = (R − R0)/(A − R) against C, a line of slope B in logarithms.

    Points outside (R0, A), where F has no logarithm, are left out.

    Returns:
        Compute and F of the points kept.
    """
    inside = (reward > parameters.start) & (reward < parameters.asymptote) & (compute > 0)
    kept = reward[inside]
    return compute[inside], (kept - parameters.start) / (parameters.asymptote - kept)


def leave_one_out(
    series: Mapping[str, tuple[Array, Array]], *, r0: float, asymptote: float | None = None
) -> list[Efficiency]:
    """Compare recipes at one asymptote, the most efficient first.

    Args:
        series: Recipe to its compute and reward.
        r0: Reward before training, the same for all.
        asymptote: A held for all; by default the one that fits all together best.

    Raises:
        FrontierError: A recipe has fewer than five points, or the asymptote is not above their rewards' start.
    """
    clean = {}
    for name, (compute, reward) in series.items():
        kept = compute > 0
        if len(np.unique(compute[kept])) < 5:
            raise FrontierError(f"{name} has {int(kept.sum())} points after the start; a fit needs 5 or more")
        clean[name] = (compute[kept], reward[kept])
    if asymptote is None:
        # What fits all together best: a mean would let one recipe that fails decide for the others.
        best = minimize_scalar(
            lambda a: sum(_fitted(c, r, r0, float(a)).cost for c, r in clean.values()),
            bounds=(max(r0, max(float(np.median(r)) for _, r in clean.values())) + 1e-3, 1.0), method="bounded",
            options={"xatol": 1e-4},
        )  # fmt: skip
        asymptote = float(best.x)
    if not r0 < asymptote <= 1:
        raise FrontierError(f"the asymptote is {asymptote:g}; it has to lie above r0 = {r0:g} and not above 1")
    found = [_held(name, c, r, r0, asymptote) for name, (c, r) in clean.items()]
    return sorted(found, key=lambda e: -e.parameters.shape)


def _curve(x: Array, r0: float, asymptote: float) -> Parameters:
    return Parameters(form="hill", start=r0, gain=asymptote - r0, scale=float(np.exp(x[0])), shape=float(np.exp(x[1])))


def _fitted(compute: Array, reward: Array, r0: float, asymptote: float) -> Any:
    """Least squares of log C_mid and log B alone."""
    low, high = SHAPES["hill"]
    begin = np.array([np.log(np.median(compute)), 0.3])
    bounds = (np.log([compute.min() / 100, low]), np.log([compute.max() * 100, high]))
    return least_squares(lambda x: _curve(x, r0, asymptote)(compute) - reward, begin, bounds=bounds)


def _held(name: str, compute: Array, reward: Array, r0: float, asymptote: float) -> Efficiency:
    """One recipe, with t intervals that count autocorrelated points for what they are worth."""
    best = _fitted(compute, reward, r0, asymptote)
    residual, freedom = best.fun, max(len(reward) - 2, 1)
    squares = float((residual**2).sum())
    lag = float((residual[1:] * residual[:-1]).sum()) / squares if squares > 0 else 0.0
    phi = float(np.clip((lag * len(reward) + 1.5) / max(len(reward) - 4, 1), 0.0, 0.9))
    worth = max(freedom * (1 - phi) / (1 + phi), 1.0)
    covariance = np.linalg.pinv(best.jac.T @ best.jac) * squares / freedom * (1 + phi) / (1 - phi)
    half = np.minimum(stats.t.ppf(0.975, worth) * np.sqrt(np.diag(covariance)), 20.0)
    # An interval ends where the search does.
    ends = {"C_mid": (compute.min() / 100, compute.max() * 100), "B": SHAPES["hill"]}
    spans = {
        key: (max(float(np.exp(best.x[i] - half[i])), low), min(float(np.exp(best.x[i] + half[i])), high))
        for i, (key, (low, high)) in enumerate(ends.items())
    }
    parameters = _curve(best.x, r0, asymptote)
    return Efficiency(name=name, parameters=parameters, intervals=spans, compute=compute, reward=reward)

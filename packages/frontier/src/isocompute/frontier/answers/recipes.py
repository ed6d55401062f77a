"""ScaleRL's own method (arXiv 2510.13786): its sigmoid fitted on its grid, and recipes compared at one asymptote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import least_squares, minimize_scalar

from ..data.curves import Array, not_beyond
from ..errors import FrontierError
from ..fitting.intervals import t_quantile
from ..fitting.point import FORMS, Parameters

STEP = 0.005
MIDPOINTS = 100
STEEPNESS = np.geomspace(0.3, 6.0, 241)


def fit_scalerl(compute: Array, reward: Array, r0: float) -> Parameters:
    """Fit the hill form like ScaleRL: a grid over asymptote and midpoint, with the steepness fitted at each.

    The asymptote is on the paper's grid of 0.005. The midpoint has a hundred candidates, log-spaced over the data; the
    paper's are fixed to its own runs.

    Args:
        compute: Above 0.
        r0: Reward before training.
    """
    asymptotes = np.arange(np.ceil((r0 + STEP) / STEP), np.floor(1.0 / STEP) + 1) * STEP
    midpoints = np.geomspace(compute.min() / 3, compute.max() * 10, MIDPOINTS)
    best = (np.inf, 0.0, 0.0, 1.0)
    for middle in midpoints:
        # Compute all steepnesses and asymptotes of one midpoint at once: (steepness, points), then squares in closed
        # form.
        share = 1.0 / (1.0 + (middle / compute[None, :]) ** STEEPNESS[:, None])
        target = reward - r0
        yy, hy, hh = (target**2).sum(), share @ target, (share**2).sum(axis=1)
        gain = asymptotes[None, :] - r0
        squares = yy - 2 * gain * hy[:, None] + gain**2 * hh[:, None]
        k, a = np.unravel_index(squares.argmin(), squares.shape)
        if squares[k, a] < best[0]:
            best = (float(squares[k, a]), float(asymptotes[a]), float(middle), float(STEEPNESS[k]))
    _, asymptote, middle, steepness = best
    return Parameters(form="hill", start=r0, gain=asymptote - r0, scale=middle, shape=steepness)


FREE = 2
"""Number of free parameters once A and R0 are held: C_mid and B."""
FARTHEST_EXTRAPOLATION = 4.0
"""Multiple of a recipe's largest compute beyond which its line is not extrapolated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """One recipe at the shared asymptote.

    Attributes:
        parameters: Its curve, with A and R0 held.
        intervals: 95 % intervals of ``B`` and ``C_mid``, within the run.
        target: The reward at which recipes are compared.
        needed: Compute that this recipe needs to reach it. If refused, the largest compute not refused: it needs more.
        needed_interval: 95 % interval of ``needed``, within the run; without upper end if refused.
        standing: ``measured`` if the data reach that compute, ``extrapolated`` beyond, ``refused`` beyond four times
            the data.
    """

    name: str
    parameters: Parameters
    intervals: dict[str, tuple[float, float]]
    compute: Array
    reward: Array
    target: float
    needed: float
    needed_interval: tuple[float, float | None]
    standing: str

    def as_dict(self) -> dict[str, Any]:
        """The recipe as ``predict --json`` writes it."""
        same = {name: getattr(self, name) for name in ("intervals", "target", "needed", "needed_interval", "standing")}
        return {"series": self.name, "params": self.parameters.named(), **same}


def efficiency(parameters: Parameters, compute: Array, reward: Array) -> tuple[Array, Array]:
    """F(R) = (R − R0)/(A − R) against C, a line of slope B in logarithms.

    Points outside (R0, A) are dropped, since F has no logarithm there.
    """
    inside = (reward > parameters.start) & (reward < parameters.asymptote) & (compute > 0)
    kept = reward[inside]
    return compute[inside], (kept - parameters.start) / (parameters.asymptote - kept)


def leave_one_out(
    series: Mapping[str, tuple[Array, Array]], *, r0: float, asymptote: float | None = None, target: float | None = None
) -> list[Efficiency]:
    """Compare recipes at one asymptote, the one that needs least compute for the target first (ScaleRL, section 4).

    With a common asymptote, F(R) = (R − R0)/(A − R) = (C/C_mid)^B is a line of slope B in logarithms. A steeper line is
    not always more efficient: it may lie farther to the right. So recipes are compared by the compute at which their
    lines reach a reward, C(R) = C_mid · F(R)^(1/B). Some recipe must have reached this reward, and no recipe is
    extrapolated beyond four times its data.

    Args:
        r0: Reward before training, the same for all.
        asymptote: A held for all; by default the one that fits all recipes together best.
        target: Reward at which they are compared; by default the highest that the fits of at least half of the recipes
            reach at their last compute.

    Raises:
        FrontierError: A recipe has fewer than five points, the asymptote is not above r0 or cannot be fitted below 1,
            or the target does not lie between R0 and A or was reached by no recipe.
    """
    clean = {}
    for name, (compute, reward) in series.items():
        kept = compute > 0
        if len(np.unique(compute[kept])) < 5:
            raise FrontierError(f"{name} has {int(kept.sum())} points after the start; a fit needs 5 or more")
        clean[name] = (compute[kept], reward[kept])
    if asymptote is None:
        # Use the asymptote that fits all together best: a mean would let one failing recipe decide for the others.
        least = max(r0, max(float(np.median(r)) for _, r in clean.values())) + 1e-3
        if least >= 1:
            raise FrontierError("R0 or the median reward of a recipe is so near to 1 that no asymptote can be fitted")
        best = minimize_scalar(
            lambda a: sum(_fitted(c, r, r0, float(a)).cost for c, r in clean.values()),
            bounds=(least, 1.0),
            method="bounded",
            options={"xatol": 1e-4},
        )
        asymptote = float(best.x)
    if not r0 < asymptote <= 1:
        raise FrontierError(f"the asymptote is {asymptote:g}; it must lie above r0 = {r0:g} and not above 1")
    fits = {name: _fitted(c, r, r0, asymptote) for name, (c, r) in clean.items()}
    ends = {name: float(_curve(fit.x, r0, asymptote)(clean[name][0].max())) for name, fit in fits.items()}
    highest = max(ends, key=lambda name: ends[name])
    if target is None:
        target = sorted(ends.values())[(len(ends) - 1) // 2]
    if not r0 < target < asymptote:
        raise FrontierError(f"the reward compared at is {target:g}; it must lie between r0 = {r0:g} and {asymptote:g}")
    if target > ends[highest]:
        raise FrontierError(
            f"no recipe reached {target:g}: of the rewards fitted at the last compute the highest, "
            f"{ends[highest]:.4g}, is of {highest}; compare at a reward that was reached"
        )
    found = [_recipe(name, *clean[name], fit, r0, asymptote, target) for name, fit in fits.items()]
    return sorted(found, key=lambda e: (e.standing == "refused", e.needed))


def _curve(x: Array, r0: float, asymptote: float) -> Parameters:
    return Parameters(form="hill", start=r0, gain=asymptote - r0, scale=float(np.exp(x[0])), shape=float(np.exp(x[1])))


def _fitted(compute: Array, reward: Array, r0: float, asymptote: float) -> Any:
    """Least squares of log C_mid and log B only."""
    low, high = FORMS["hill"].shapes
    begin = np.array([np.log(np.median(compute)), 0.3])
    bounds = (np.log([compute.min() / 100, low]), np.log([compute.max() * 100, high]))
    return least_squares(lambda x: _curve(x, r0, asymptote)(compute) - reward, begin, bounds=bounds)


def _recipe(
    name: str, compute: Array, reward: Array, best: Any, r0: float, asymptote: float, target: float
) -> Efficiency:
    """One recipe, with t intervals that allow for autocorrelated points."""
    residual = best.fun
    squares, lagged = float((residual**2).sum()), float((residual[1:] * residual[:-1]).sum())
    phi = 0.0
    if squares > 0:
        # The residuals' autocorrelation is lower by about (p − 1/2 + 4φ)/N, since a curve follows part of the noise.
        raised = (lagged / squares * len(reward) + FREE - 0.5) / max(len(reward) - 4.0, 1.0)
        phi = float(np.clip(raised, 0.0, 0.9))
    freedom = max(len(reward) * (1 - phi) / (1 + phi) - FREE, 1.0)
    # Residual variance per effective degree of freedom, given the autocorrelation.
    covariance = np.linalg.pinv(best.jac.T @ best.jac) * squares / freedom
    quantile = t_quantile(freedom)
    half = np.minimum(quantile * np.sqrt(np.diag(covariance)), 20.0)
    # An interval ends at the limits of the search.
    ends = {"C_mid": (compute.min() / 100, compute.max() * 100), "B": FORMS["hill"].shapes}
    spans = {
        key: (max(float(np.exp(best.x[i] - half[i])), low), min(float(np.exp(best.x[i] + half[i])), high))
        for i, (key, (low, high)) in enumerate(ends.items())
    }
    # ln C(R) = ln C_mid + ln F / B, with its error by the delta method.
    way = float(np.log((target - r0) / (asymptote - target)) / np.exp(best.x[1]))
    gradient = np.array([1.0, -way])
    error = min(quantile * float(np.sqrt(gradient @ covariance @ gradient)), 20.0)
    needed, last = float(np.exp(best.x[0] + way)), float(compute.max())
    interval: tuple[float, float | None] = (needed * float(np.exp(-error)), needed * float(np.exp(error)))
    standing = "measured" if not_beyond(needed, last) else "extrapolated"
    if not not_beyond(needed, FARTHEST_EXTRAPOLATION * last):
        needed, standing = FARTHEST_EXTRAPOLATION * last, "refused"
        interval = (needed, None)
    return Efficiency(
        name=name,
        parameters=_curve(best.x, r0, asymptote),
        intervals=spans,
        compute=compute,
        reward=reward,
        target=target,
        needed=needed,
        needed_interval=interval,
        standing=standing,
    )

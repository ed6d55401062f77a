"""The log2-sigmoid of n*(C): log2 n = L / (1 + exp(−k (log10 C − x0))) + b (IsoCompute Playbook, Figure 7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from ..data.curves import Array
from ..errors import MEANING, Flag, FrontierError
from .intervals import ends

PRINTED = {"L": 6.09, "k": 4.75, "x0": 5.84, "b": 2.73}
"""The paper's own parameters, from Figure 7 for Easy at B_p = 32: n* saturates at 2^8.82, or 452."""
PRINTED_TO = "10M"
"""Rollouts at the end of that figure's axis."""
BOUNDS = {"L": (0.0, 20.0), "k": (0.1, 50.0), "x0": (-2.0, 20.0), "b": (-2.0, 12.0)}
"""Bounds of each parameter, in fitting order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sigmoid:
    """A fitted log2-sigmoid.

    Attributes:
        params: L, k, x0, b; None if there is nothing to fit (n* never changes, or too few points).
        intervals: 95 % interval of each, from resampled points; empty for an envelope, which has none.
        constant: n* if one n is best at every supported compute, else None.
    """

    params: dict[str, float] | None
    intervals: dict[str, tuple[float, float]]
    flags: tuple[Flag, ...]
    constant: int | None = None

    @property
    def plateau(self) -> float | None:
        """The n* at saturation, 2^(L + b), or the one n that is best everywhere.

        None without either, and also if the largest n that was run is best at the end: n* does not saturate there.
        """
        if Flag.AT_LARGEST_N in self.flags:
            return None
        return 2.0 ** (self.params["L"] + self.params["b"]) if self.params else self.constant

    def at(self, compute: Array) -> Array:
        """n* at the given compute.

        Raises:
            FrontierError: Nothing was fitted, so there is no n*.
        """
        if self.params is None and self.constant is None:
            raise FrontierError("there is no n*(C): no curve, or too few points, could be fitted")
        if self.params is None:
            return np.full(np.shape(compute), float(self.constant or 0))
        return np.asarray(2.0 ** sigmoid(np.log10(compute), self.params))

    def as_dict(self) -> dict[str, Any]:
        """The sigmoid as in ``fits.json``."""
        return {
            "params": self.params,
            "plateau": self.plateau,
            "intervals": {k: list(v) for k, v in self.intervals.items()},
            "flags": [str(f) for f in self.flags],
            "constant": self.constant,
        }

    def summary(self, *, last: str = "") -> str:
        """The parameters with their intervals, as text.

        Args:
            last: Rollouts at which the data end, to print the paper's parameters for comparison.
        """
        notes = [f"  note: {MEANING[flag]}" for flag in self.flags]
        if self.params is None:
            said = f"n* is {self.constant} everywhere: there is no transition" if self.constant else "no fit"
            return "\n".join([said, *notes])
        lines = ["log2 n* = L / (1 + exp(-k (log10 C - x0))) + b" + "      paper, Easy" * bool(last)]
        for name, value in self.params.items():
            span = self.intervals.get(name)
            beside = f"{PRINTED[name]:47.3f}" if last else ""
            lines.append(
                f"  {name:2} {value:8.3f}{beside}" + (f"  (95 %: {span[0]:.3f} to {span[1]:.3f})" if span else "")
            )
        said = "n* does not saturate" if self.plateau is None else f"n* saturates at {self.plateau:,.0f}"
        if last:
            printed = f"{2 ** (PRINTED['L'] + PRINTED['b']):,.0f}"
            said += f"; these data end at {last}, the paper's at {PRINTED_TO}, where n* saturates at {printed}"
        return "\n".join([*lines, said, *notes])


def sigmoid(log10_compute: Array, params: Mapping[str, float | Array]) -> Array:
    """log2 n* at the given log10 compute, of any shape; ``params`` are L, k, x0 and b."""
    z = np.clip(-params["k"] * (log10_compute - params["x0"]), -500, 500)
    return np.asarray(params["L"] / (1.0 + np.exp(z)) + params["b"])


def fit_sigmoid(
    log10_compute: Array, log2_n: Array, begin_at: dict[str, float] | None = None
) -> dict[str, float] | None:
    """Least-squares fit, or None for fewer than four points or a constant n*.

    Args:
        log2_n: log2 n* at each compute, shape ``(points,)``.
        begin_at: Initial parameters, for example for a refit; by default several.
    """
    if len(log2_n) < 4 or np.ptp(log2_n) == 0:
        return None
    low, high = np.array([*BOUNDS.values()]).T

    def residuals(x: Array) -> Array:
        return sigmoid(log10_compute, dict(zip(BOUNDS, x, strict=True))) - log2_n

    starts = [
        (float(np.ptp(log2_n)), steepness, float(np.quantile(log10_compute, quantile)), float(log2_n.min()))
        for steepness in (2.0, 5.0, 15.0)
        for quantile in (0.25, 0.5, 0.75)
    ]
    if begin_at:
        starts = [(begin_at["L"], begin_at["k"], begin_at["x0"], begin_at["b"])]
    ends = [
        least_squares(residuals, np.clip(start, low + 1e-9, high - 1e-9), bounds=(low, high), max_nfev=100)
        for start in starts
    ]
    best = min(ends, key=lambda end: float(end.cost))
    return dict(zip(BOUNDS, best.x.tolist(), strict=True))


def fit_points(compute: Array, n: Array, *, refits: int = 200, seed: int = 0) -> Sigmoid:
    """Fit the sigmoid to points (C, n*) from a figure or elsewhere.

    Args:
        compute: Compute of each point, above 0.
        n: Best rollouts per problem at each point.
        refits: Number of resamples of the points for the intervals.

    Raises:
        FrontierError: Fewer than four points, a value that is not positive, or a negative seed.
    """
    if len(n) < 4:
        raise FrontierError(f"there are {len(n)} points; a sigmoid of four parameters needs 4 or more")
    if (compute <= 0).any() or (n <= 0).any():
        raise FrontierError("compute and n must be above 0: the sigmoid is in their logarithms")
    if seed < 0:
        raise FrontierError(f"the seed is {seed}; it must be 0 or more")
    found, x, y = fit_n_star(compute, n), np.log10(compute), np.log2(n)
    if (params := found.params) is None:
        return found
    rng = np.random.default_rng(seed)
    draws = []
    for _ in range(refits):
        rows = rng.integers(0, len(x), len(x))
        again = fit_sigmoid(x[rows], y[rows], begin_at=params)
        if again:
            draws.append(again)
    intervals = {}
    if len(draws) >= 20:
        low, high = ends(np.array([[d[k] for k in params] for d in draws]))
        intervals = dict(zip(params, zip(low.tolist(), high.tolist(), strict=True), strict=True))
    at_bound = (Flag.AT_BOUND,) if BOUNDS["k"][1] - params["k"] < 1e-3 else ()
    return replace(found, intervals=intervals, flags=(*found.flags, *at_bound))


def fit_n_star(compute: Array, n: Array) -> Sigmoid:
    """Fit the sigmoid to n*(C), both of shape ``(points,)``, without intervals."""
    distinct = np.unique(n)
    flags = (Flag.K_UNIDENTIFIED,) if len(distinct) < 4 else ()
    if len(distinct) == 1:
        return Sigmoid(params=None, intervals={}, flags=flags, constant=int(distinct[0]))
    return Sigmoid(params=fit_sigmoid(np.log10(compute), np.log2(n)), intervals={}, flags=flags)

"""The log2-sigmoid of n*(C): log2 n = L / (1 + exp(−k (log10 C − x0))) + b (IsoCompute Playbook, Figure 7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from .curves import Array
from .errors import Flag

BOUNDS = {"L": (0.0, 20.0), "k": (0.1, 50.0), "x0": (-2.0, 20.0), "b": (-2.0, 12.0)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sigmoid:
    """A fitted log2-sigmoid.

    Attributes:
        params: L, k, x0, b; None when there is nothing to fit (n* never changes, or too few points).
        intervals: 95 % interval of each, from the refits.
        flags: Why to read it with care.
        constant: n* when one n is best at every supported compute, else None.
    """

    params: dict[str, float] | None
    intervals: dict[str, tuple[float, float]]
    flags: tuple[Flag, ...]
    constant: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """As in ``fits.json``."""
        return {
            "params": self.params,
            "intervals": {k: list(v) for k, v in self.intervals.items()},
            "flags": [str(f) for f in self.flags],
            "constant": self.constant,
        }


def sigmoid(log10_compute: Array, params: dict[str, float]) -> Array:
    """log2 n* at some log10 compute."""
    z = np.clip(-params["k"] * (log10_compute - params["x0"]), -500, 500)
    return np.asarray(params["L"] / (1.0 + np.exp(z)) + params["b"])


def fit_sigmoid(
    log10_compute: Array, log2_n: Array, begin_at: dict[str, float] | None = None
) -> dict[str, float] | None:
    """Least-squares fit, or None for fewer than four points or a constant n*.

    It starts from several places, or in a refit from the point fit alone.
    """
    if len(log2_n) < 4 or np.ptp(log2_n) == 0:
        return None
    low = np.array([BOUNDS[k][0] for k in ("L", "k", "x0", "b")])
    high = np.array([BOUNDS[k][1] for k in ("L", "k", "x0", "b")])

    def residuals(x: Array) -> Array:
        return sigmoid(log10_compute, dict(zip(("L", "k", "x0", "b"), x, strict=True))) - log2_n

    starts = [
        (float(np.ptp(log2_n)), steepness, float(np.quantile(log10_compute, quantile)), float(log2_n.min()))
        for steepness in (2.0, 5.0, 15.0)
        for quantile in (0.25, 0.5, 0.75)
    ]
    if begin_at is not None:
        starts = [(begin_at["L"], begin_at["k"], begin_at["x0"], begin_at["b"])]
    ends = [
        least_squares(residuals, np.clip(start, low + 1e-9, high - 1e-9), bounds=(low, high), max_nfev=100)
        for start in starts
    ]
    best = min(ends, key=lambda end: float(end.cost))
    return {name: float(v) for name, v in zip(("L", "k", "x0", "b"), best.x, strict=True)}

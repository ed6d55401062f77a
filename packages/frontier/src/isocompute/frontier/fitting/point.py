"""The point fit of one curve for the papers' own methods: forms of reward against compute, and a grid search.

R(C) = R0 + G · rise(C), with a rise from 0 to 1 that never falls:

* ``exp``: rise = 1 − exp(−C/τ), so R = A − D·exp(−C/τ) (the form in the IsoCompute Playbook's figures).
* ``hill``: rise = 1 / (1 + (C_mid/C)^B), R0 fixed at the reward before training (ScaleRL, equation 1).
* ``power``: rise = 1 − (1 + C/τ)^−β.

``scale`` is τ or C_mid, ``shape`` is B or β (1 for ``exp``, unused). A = R0 + G is the asymptote. To add a form, add an
entry to ``FORMS``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from ..data.curves import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Definition of a form of reward against compute.

    Attributes:
        shapes: Search range for the shape; two equal ends if the form has none.
        rise: Share of the gain made, from 0 to 1 and never falling, as a function of compute, scale and shape;
            broadcasts.
        names: Names in results for the gain or the start (``D`` or ``R0``), the scale and the shape.
    """

    shapes: tuple[float, float]
    rise: Callable[[Array, Array, Array], Array]
    names: tuple[str, str, str]

    @property
    def has_shape(self) -> bool:
        """Return whether the shape is fitted."""
        return self.shapes[0] < self.shapes[1]


FORMS = {
    "exp": Form(
        shapes=(1.0, 1.0),
        names=("D", "tau", ""),
        rise=lambda compute, scale, _: -np.expm1(-compute / scale),
    ),
    "hill": Form(
        shapes=(0.3, 6.0),
        names=("R0", "C_mid", "B"),
        rise=lambda compute, scale, shape: 1.0 / (1.0 + (scale / compute) ** shape),
    ),
    "power": Form(
        shapes=(0.1, 5.0),
        names=("D", "tau", "beta"),
        rise=lambda compute, scale, shape: 1.0 - (1.0 + compute / scale) ** -shape,
    ),
}
"""Every form by its name on the command line and in results."""


def rise(form: str, compute: Array, scale: Array, shape: Array) -> Array:
    """Share of the gain made at the given compute; broadcasts over its arguments."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(FORMS[form].rise(compute, scale, shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """One fitted curve.

    Attributes:
        start: R0, reward at zero compute.
        gain: G = A − R0, zero or more.
        scale: τ or C_mid, in the unit of compute.
        shape: B or β.
    """

    form: str
    start: float
    gain: float
    scale: float
    shape: float

    @property
    def asymptote(self) -> float:
        """A = R0 + G."""
        return self.start + self.gain

    def __call__(self, compute: Array | float) -> Array:
        """Reward at the given compute."""
        c = np.asarray(compute, dtype=np.float64)
        return self.start + self.gain * rise(self.form, c, np.asarray(self.scale), np.asarray(self.shape))

    def named(self) -> dict[str, float]:
        """The parameters under the papers' names."""
        level, scale, shape = FORMS[self.form].names
        found = {"A": self.asymptote, level: self.start if level == "R0" else self.gain, scale: self.scale}
        return {**found, shape: self.shape} if shape else found


STARTS = 4
"""Number of candidates to refine."""
SEARCHED = 4096
"""Most points used to compare candidates."""


def fit_form(form: str, compute: Array, reward: Array, standard_error: Array, start: float | None) -> Parameters:
    """Fit one form to the points of a curve.

    Args:
        standard_error: Standard error of the reward, which scales the residuals. They are summed, never averaged (a
            mean stops optimisers early).
        start: R0 if it is fixed.
    """
    scale, shape = grid(form, compute)
    # The search only finds a starting point: a subset of very many points is enough.
    some = np.argsort(compute, kind="stable")[:: -(-len(compute) // SEARCHED)]
    share = rise(form, compute[None, some], scale[:, None], shape[:, None])
    first, gain, squares = project(share, reward[some], standard_error[some] ** -2, start)
    order = np.argsort(squares, kind="stable")
    picks = [order[0], *(k for k in order[1:200:40])][:STARTS]
    (low, high), has_shape = FORMS[form].shapes, FORMS[form].has_shape
    # Gain, log scale, start, log shape: only the free ones, since a direction without effect stops an optimiser.
    is_free = np.array([True, True, start is None, has_shape])
    least = np.array([0.0, np.log(scale.min()), 0.0, np.log(low) - 1e-9])[is_free]
    most = np.array([1.0, np.log(scale.max()), 1.0, np.log(high) + 1e-9])[is_free]

    def curve(x: Array) -> Parameters:
        every = np.zeros(4)
        every[is_free] = x
        begin = start if start is not None else float(every[2])
        # Keep the asymptote below 1 during the search: clipping it afterwards would leave another curve's scale and
        # shape.
        held = min(float(every[0]), 1.0 - begin)
        tail = float(np.exp(every[3])) if has_shape else low
        return Parameters(form=form, start=begin, gain=held, scale=float(np.exp(every[1])), shape=tail)

    def residuals(x: Array) -> Array:
        return np.asarray((reward - curve(x)(compute)) / standard_error)

    ends = []
    for k in picks:
        candidate = np.array([gain[k], np.log(scale[k]), first[k], np.log(shape[k])])[is_free]
        begin = np.clip(candidate, least + 1e-9, most - 1e-9)
        # Huber's threshold of 3 standard errors affects only outliers.
        ends.append(least_squares(residuals, begin, bounds=(least, most), loss="huber", f_scale=3.0, max_nfev=200))
    return curve(min(ends, key=lambda end: float(end.cost)).x)


def grid(form: str, compute: Array) -> tuple[Array, Array]:
    """Candidate scales and shapes of a form: scales from a tenth of the first compute to 30 times the last."""
    positive, found = compute[compute > 0], FORMS[form]
    # The grid is finer for one free parameter than for two.
    scales = np.geomspace(positive.min() / 10, positive.max() * 30, 60 if found.has_shape else 160)
    shapes = np.geomspace(*found.shapes, 24) if found.has_shape else np.array(found.shapes[:1])
    scale, shape = np.meshgrid(scales, shapes, indexing="ij")
    return scale.ravel(), shape.ravel()


def project(basis: Array, reward: Array, weights: Array, start: float | None) -> tuple[Array, Array, Array]:
    """Best start and gain of every candidate (variable projection).

    For a given scale and shape, start and gain are a linear problem with a closed-form solution, so a whole grid of
    scales and shapes takes a few matrix products. Gain and start are kept at 0 or more, and the asymptote at 1 or less.

    Args:
        basis: Rise of K candidates at N points, shape ``(K, N)``.
        reward: Shape ``(N,)``.
        weights: Shape ``(N,)``.
        start: R0, or None if it is free.

    Returns:
        Start, gain and weighted sum of squares, each of shape ``(K,)``.
    """
    total, s_h, s_hh = float(weights.sum()), basis @ weights, (basis**2) @ weights
    s_y, s_yy, s_hy = float(reward @ weights), float(reward**2 @ weights), basis @ (reward * weights)
    if start is None:
        spread = np.maximum(total * s_hh - s_h**2, 1e-12 * total * np.maximum(s_hh, 1e-300))
        gain = np.maximum((total * s_hy - s_h * s_y) / spread, 0.0)
        first = (s_y - gain * s_h) / total
        # Above 1: hold A = 1, so that R = 1 − G·(1 − rise), and solve for G alone.
        left_hh = total - 2 * s_h + s_hh
        left_hy = (total - s_y) - (s_h - s_hy)
        held = np.maximum(left_hy / np.maximum(left_hh, 1e-300), 0.0)
        above = first + gain > 1.0
        gain, first = np.where(above, held, gain), np.where(above, 1.0 - held, first)
        # Below 0: hold R0 = 0, so that R = G·rise.
        below = first < 0.0
        gain = np.where(below, np.clip(s_hy / np.maximum(s_hh, 1e-300), 0.0, 1.0), gain)
        first = np.where(below, 0.0, first)
    else:
        first = np.full_like(s_hy, start)
        gain = np.clip((s_hy - first * s_h) / np.maximum(s_hh, 1e-300), 0.0, np.maximum(1.0 - first, 0.0))
    squares = s_yy - 2 * first * s_y - 2 * gain * s_hy + first**2 * total + 2 * first * gain * s_h + gain**2 * s_hh
    return first, gain, np.maximum(squares, 0.0)

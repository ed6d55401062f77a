"""The point fit of one curve: forms of reward against compute, a grid search, and refits of synthetic runs.

R(C) = R0 + G · rise(C), with a rise from 0 to 1 that never falls:

* ``exp``: rise = 1 − exp(−C/τ), so R = A − D·exp(−C/τ) (what the figures of the IsoCompute Playbook draw).
* ``hill``: rise = 1 / (1 + (C_mid/C)^B), R0 fixed at the reward before training (ScaleRL, equation 1).
* ``power``: rise = 1 − (1 + C/τ)^−β.

``scale`` is τ or C_mid, ``shape`` is B or β (1 for ``exp``, unused). A = R0 + G is the asymptote. Another form
is an entry of ``FORMS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares
from scipy.signal import lfilter
from scipy.stats import norm

from ..data.curves import Array
from ..errors import FrontierError


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A form of reward against compute: all that is known of it.

    Attributes:
        name: What it is called on the command line and in results.
        shapes: Range searched for the shape; two equal ends where the form has none.
        rise: Share of the gain made, from 0 to 1 and never falling, of compute, scale and shape; broadcasts.
        half: Compute at which half of the gain is made, in scales, of the shape.
        names: What results call the gain or the start (``D`` or ``R0``), the scale and the shape.
        start_is_measured: Whether R0 is held at the reward at zero compute where there is one.
    """

    name: str
    shapes: tuple[float, float]
    rise: Callable[[Array, Array, Array], Array]
    half: Callable[[float], float]
    names: tuple[str, str, str]
    start_is_measured: bool = False

    @property
    def has_shape(self) -> bool:
        """Return whether the shape is searched for."""
        return self.shapes[0] < self.shapes[1]

    @property
    def free_parameters(self) -> int:
        """Parameters that the data decide, R0 among them, whether it is searched for or measured."""
        return 4 if self.has_shape else 3


FORMS = {
    form.name: form
    for form in (
        Form(
            name="exp",
            shapes=(1.0, 1.0),
            names=("D", "tau", ""),
            half=lambda _: float(np.log(2.0)),
            rise=lambda compute, scale, _: -np.expm1(-compute / scale),
        ),
        Form(
            name="hill",
            shapes=(0.3, 6.0),
            names=("R0", "C_mid", "B"),
            half=lambda _: 1.0,
            start_is_measured=True,
            rise=lambda compute, scale, shape: 1.0 / (1.0 + (scale / compute) ** shape),
        ),
        Form(
            name="power",
            shapes=(0.1, 5.0),
            names=("D", "tau", "beta"),
            half=lambda shape: float(2.0 ** (1.0 / shape) - 1.0),
            rise=lambda compute, scale, shape: 1.0 - (1.0 + compute / scale) ** -shape,
        ),
    )
}
"""Every form by its name."""


def form_of(name: str) -> Form:
    """Look up a form.

    Raises:
        FrontierError: There is no such form.
    """
    if name not in FORMS:
        raise FrontierError(f"the form {name!r} is unknown; it must be one of {', '.join(FORMS)}")
    return FORMS[name]


def rise(form: str, compute: Array, scale: Array, shape: Array) -> Array:
    """Share of the gain made at some compute; broadcasts over its arguments.

    Args:
        scale: τ or C_mid, in the unit of compute.
        shape: B or β; unused by ``exp``.

    Raises:
        FrontierError: There is no such form.
    """
    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(form_of(form).rise(compute, scale, shape))


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

    @classmethod
    def of(cls, form: str, named: Mapping[str, float]) -> Parameters:
        """The curve of the parameters that ``named`` gives.

        Raises:
            FrontierError: There is no such form.
            KeyError: A parameter is missing.
        """
        level, scale, shape = form_of(form).names
        gain = named["A"] - named[level] if level == "R0" else named[level]
        return cls(
            form=form, start=named["A"] - gain, gain=gain, scale=named[scale], shape=named[shape] if shape else 1.0
        )

    @property
    def asymptote(self) -> float:
        """A = R0 + G."""
        return self.start + self.gain

    def __call__(self, compute: Array | float) -> Array:
        """Reward at some compute."""
        c = np.asarray(compute, dtype=np.float64)
        return self.start + self.gain * rise(self.form, c, np.asarray(self.scale), np.asarray(self.shape))

    @property
    def half_compute(self) -> float:
        """Compute at which half of the gain is made."""
        return self.scale * form_of(self.form).half(self.shape)

    def named(self) -> dict[str, float]:
        """The parameters by the names of the papers."""
        level, scale, shape = form_of(self.form).names
        found = {"A": self.asymptote, level: self.start if level == "R0" else self.gain, scale: self.scale}
        return {**found, shape: self.shape} if shape else found


# Three counts of parameters, each behind degrees of freedom of another kind:
# Form.free_parameters   those that the data of one curve decide, R0 among them: 3 or 4. AICc, the profile interval and
#                        the variance about one fitted curve use it.
# SEARCHED               those of the simplest case, whatever the form: 3. The autocorrelation pooled over curves of any
#                        form and the scatter of a forecast's single run use it.
# FREE                   those left where A and R0 are held for all recipes, C_mid and B: 2. leave_one_out uses it.
SEARCHED = 3
"""Parameters that a fit searches for in its simplest case, whatever the form: ``hill`` with R0 held, or ``exp``."""
FREE = 2
"""Parameters searched for where A and R0 are held: C_mid and B."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointFit:
    """The best fit of one form.

    Attributes:
        residual_sd: Standard deviation of the residuals in reward.
        at_bound: Whether scale or shape lies on the edge of the grid.
        starts_disagree: Whether starts that end about as good end at asymptotes 0.05 apart or more.
    """

    parameters: Parameters
    residual_sd: float
    at_bound: bool
    starts_disagree: bool


def fit_form(
    form: str, compute: Array, reward: Array, standard_error: Array, start: float | None, *, starts: int = 4
) -> PointFit:
    """Fit one form to the points of a curve.

    Args:
        standard_error: Its standard error, which scales the residuals; they are summed, never averaged
            (a mean stops optimisers early).
        start: R0 when it is fixed.
        starts: Candidates refined; 1 for a fit that is only compared with.
    """
    candidates = grid(form, compute)
    weights = standard_error**-2
    fixed = None if start is None else np.array([start])
    first, gain, squares = project(candidates, reward[None, :], weights, fixed)
    order = np.argsort(squares[0], kind="stable")
    picks = [order[0], *(k for k in order[1:200:40])][:starts]
    ends = [
        _refine(form, candidates, int(k), float(first[0, k]), float(gain[0, k]), compute, reward, standard_error, start)
        for k in picks
    ]
    best = min(ends, key=lambda end: end[1])
    rivals = [p.asymptote for p, cost in ends if cost <= best[1] * 1.001 + 1e-9]
    parameters = best[0]
    residuals = reward - parameters(compute)
    (low, high), has_shape = form_of(form).shapes, form_of(form).has_shape
    edge = (
        parameters.scale <= candidates.scale.min() * 1.01
        or parameters.scale >= candidates.scale.max() * 0.99
        or (has_shape and not low * 1.01 < parameters.shape < high * 0.99)
    )
    return PointFit(
        parameters=parameters,
        residual_sd=standard_deviation((residuals**2).sum(), len(reward), form_of(form).free_parameters),
        at_bound=bool(edge and parameters.gain > 1e-9),
        starts_disagree=max(rivals) - min(rivals) >= 0.05,
    )


def _refine(
    form: str,
    candidates: Grid,
    k: int,
    first: float,
    gain: float,
    compute: Array,
    reward: Array,
    error: Array,
    start: float | None,
) -> tuple[Parameters, float]:
    """Refine one candidate to a curve and its robust cost."""
    (low, high), has_shape = form_of(form).shapes, form_of(form).has_shape
    span = candidates.scale.min(), candidates.scale.max()
    # Gain, log scale, start, log shape: only those that are free, as a direction without effect stops an optimiser.
    is_free = np.array([True, True, start is None, has_shape])
    usual = np.array([gain, np.log(candidates.scale[k]), first, np.log(candidates.shape[k])])

    def curve(x: Array) -> Parameters:
        every = usual.copy()
        every[is_free] = x
        begin = start if start is not None else float(every[2])
        shape = float(np.exp(every[3])) if has_shape else low
        # Held below 1 while it searches: cut off afterwards, scale and shape would be those of another curve.
        gain = min(float(every[0]), 1.0 - begin)
        return Parameters(form=form, start=begin, gain=gain, scale=float(np.exp(every[1])), shape=shape)

    def residuals(x: Array) -> Array:
        return np.asarray((reward - curve(x)(compute)) / error)

    bounds = (
        np.array([0.0, np.log(span[0]), 0.0, np.log(low) - 1e-9])[is_free],
        np.array([1.0, np.log(span[1]), 1.0, np.log(high) + 1e-9])[is_free],
    )
    begin = np.clip(usual[is_free], bounds[0] + 1e-9, bounds[1] - 1e-9)
    # Huber's threshold of 3 standard errors leaves all but outliers as they are.
    found = least_squares(residuals, begin, bounds=bounds, loss="huber", f_scale=3.0, max_nfev=200)
    return curve(found.x), float(found.cost)


def standard_deviation(squares: float, points: int, parameters: int) -> float:
    """Standard deviation of the residuals of a fit."""
    return float(np.sqrt(squares / max(points - parameters, 1)))


STEP = 0.005
MIDPOINTS = 100
STEEPNESS = np.geomspace(0.3, 6.0, 241)


def fit_scalerl(compute: Array, reward: Array, r0: float) -> Parameters:
    """Fit the hill form as ScaleRL does: a grid over asymptote and midpoint, the steepness fitted at each.

    The asymptote is on the paper's grid of 0.005. The midpoint's hundred candidates are log-spaced over the data,
    where the paper's are fixed to its own runs.

    Args:
        compute: Compute of each point, above 0.
        r0: Reward before training.
    """
    asymptotes = np.arange(np.ceil((r0 + STEP) / STEP), np.floor(1.0 / STEP) + 1) * STEP
    midpoints = np.geomspace(compute.min() / 3, compute.max() * 10, MIDPOINTS)
    best = (np.inf, 0.0, 0.0, 1.0)
    for middle in midpoints:
        # All steepnesses and asymptotes of one midpoint at once: (steepness, points), then squares in closed form.
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


LARGEST_AUTOCORRELATION = 0.95
BLOCK = 2000
LEVELS = 9
"""Equally likely values of the autocorrelation, used in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refits:
    """Refitted curves, one per synthetic run; every array has the shape ``(refits,)``.

    Attributes:
        form: Name of their form.
        start: R0.
        gain: G = A − R0.
        scale: τ or C_mid, in the unit of compute.
        shape: B or β; 1 for ``exp``.
    """

    form: str
    start: Array
    gain: Array
    scale: Array
    shape: Array

    def at(self, compute: Array) -> Array:
        """Rewards of every refit at some compute, shape ``(refits, points)``."""
        share = rise(self.form, compute[None, :], self.scale[:, None], self.shape[:, None])
        return np.asarray(self.start[:, None] + self.gain[:, None] * share)


def refit(
    fitted: Parameters,
    compute: Array,
    error: Array,
    noise: Scatter,
    *,
    start: float | None,
    least: float,
    count: int,
    rng: np.random.Generator,
) -> Refits:
    """Refit synthetic runs: a parametric bootstrap of one run, which knows nothing of other seeds.

    A synthetic run is the fitted curve plus AR(1) noise of the size of the residuals. Its size and autocorrelation are
    drawn for every refit from their sampling distributions, so few evaluations give intervals as wide as Student's t.

    Args:
        compute: Of the evaluations, shape ``(points,)``.
        start: R0 where it is held.
        least: Least factor; 1 where the standard error is that of sampling responses.
    """
    degrees = max(noise.effective_points - form_of(fitted.form).free_parameters, 1.0)
    # Within a factor of ten: one degree of freedom has no mean.
    spread = np.minimum(np.sqrt(degrees / rng.chisquare(degrees, count)), 10.0)
    size = np.maximum(noise.factor * spread, least)
    synthetic = fitted(compute) + _autocorrelated(noise, count, rng) * error * size[:, None]
    searched = closer_grid(fitted, compute)
    held = None if start is None else np.full(count, start)
    parts = []
    # In blocks, for the memory that a dense grid takes.
    for block in np.array_split(np.arange(count), -(-count // BLOCK)):
        first, gain, squares = project(searched, synthetic[block], error**-2, None if held is None else held[block])
        best, rows = squares.argmin(axis=1), np.arange(len(block))
        parts.append((first[rows, best], gain[rows, best], searched.scale[best], searched.shape[best]))
    starts, gains, scales, shapes = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Refits(form=fitted.form, start=starts, gain=gains, scale=scales, shape=shapes)


def _autocorrelated(noise: Scatter, count: int, rng: np.random.Generator) -> Array:
    """AR(1) noise of unit variance, shape ``(count, points)``; φ is known only to within its error."""
    shocks = rng.standard_normal((count, noise.points))
    error = np.sqrt((1 - noise.autocorrelation**2) / noise.points)
    levels = noise.autocorrelation + norm.ppf((np.arange(LEVELS) + 0.5) / LEVELS) * error
    for turn, phi in enumerate(np.clip(levels, 0.0, LARGEST_AUTOCORRELATION)):
        own = shocks[turn::LEVELS] * np.sqrt(1 - phi**2)
        own[:, 0] = shocks[turn::LEVELS, 0]
        shocks[turn::LEVELS] = lfilter([1.0], [1.0, -phi], own, axis=1)
    return shocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """Noise within one run.

    Attributes:
        factor: Its standard deviation, in standard errors of the points.
        autocorrelation: φ, at lag 1.
    """

    factor: float
    autocorrelation: float
    points: int

    @property
    def effective_points(self) -> float:
        """Independent points that they are worth."""
        return effective_points(self.points, self.autocorrelation)


def scatter_of(residuals: Array, form: str) -> Scatter:
    """Noise within a run, from what a fit leaves.

    Args:
        residuals: In standard errors, in the order of compute, shape ``(points,)``.
    """
    squares = float((residuals**2).sum())
    lagged = float((residuals[1:] * residuals[:-1]).sum())
    phi = autocorrelation_of(lagged, squares, points=len(residuals), parameters=SEARCHED)
    independent = effective_points(len(residuals), phi)
    degrees = max(independent - form_of(form).free_parameters, 1.0)
    factor = float(np.sqrt(squares / len(residuals) * independent / degrees))
    return Scatter(factor=factor, autocorrelation=phi, points=len(residuals))


def effective_points(points: float, autocorrelation: float) -> float:
    """Independent points that autocorrelated ones are worth: N(1−φ)/(1+φ), at least 1.

    Args:
        points: N.
        autocorrelation: φ, at lag 1.
    """
    return max(points * (1 - autocorrelation) / (1 + autocorrelation), 1.0)


def autocorrelation_of(lagged: float, squares: float, *, points: float, parameters: int) -> float:
    """Lag-1 autocorrelation of the noise, from the residuals of a fitted curve.

    That of the residuals is lower by about (p − 1/2 + 4φ)/N, since a curve follows part of the noise.

    Args:
        lagged: Sum of the products of neighbouring residuals.
        points: N.
    """
    if squares <= 0:
        return 0.0
    raised = (lagged / squares * points + parameters - 0.5) / max(points - 4.0, 1.0)
    return float(np.clip(raised, 0.0, 0.9))


MOST_DISTINCT = 4096
"""Distinct values of compute that a grid is evaluated at; more are merged with their neighbours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Scales and shapes searched, flattened.

    Attributes:
        scale: Shape ``(candidates,)``.
        shape: Shape ``(candidates,)``.
        rise: At each distinct compute, shape ``(candidates, distinct)``.
        order: Points sorted by compute, or None where every point has a column of its own.
        first: Where each distinct compute begins in that order.
    """

    scale: Array
    shape: Array
    rise: Array
    order: np.ndarray | None
    first: np.ndarray

    def summed(self, values: Array) -> Array:
        """Sum values of points, shape ``(..., points)``, over those of one compute."""
        if self.order is None:
            return values
        return np.asarray(np.add.reduceat(values[..., self.order], self.first, axis=-1))


def grid(form: str, compute: Array, *, scales: Array | None = None, shapes: Array | None = None) -> Grid:
    """Candidates for a form: scales from a tenth of the first compute to 30 times the last, by logarithm.

    Args:
        shapes: Other shapes to search.
    """
    usual = _searched(form, compute)
    chosen = (usual[0] if scales is None else scales, usual[1] if shapes is None else shapes)
    scale, shape = (a.ravel() for a in np.meshgrid(*chosen, indexing="ij"))
    distinct, order, first = _distinct(compute)
    share = rise(form, distinct[None, :], scale[:, None], shape[:, None])
    return Grid(scale=scale, shape=shape, rise=share, order=order, first=first)


def closer_grid(fitted: Parameters, compute: Array) -> Grid:
    """The whole grid of a form, and a finer one around a fit: where most refits of it end.

    Args:
        compute: Compute of each point, shape ``(points,)``.
    """
    scales, shapes = _searched(fitted.form, compute)
    near = np.clip(np.geomspace(fitted.scale / 1.8, fitted.scale * 1.8, 31), scales[0], scales[-1])
    scales = np.unique(np.concatenate([scales, near]))
    if not form_of(fitted.form).has_shape:
        return grid(fitted.form, compute, scales=scales)
    near = np.clip(np.geomspace(fitted.shape / 1.5, fitted.shape * 1.5, 11), shapes[0], shapes[-1])
    return grid(fitted.form, compute, scales=scales, shapes=np.unique(np.concatenate([shapes, near])))


def _searched(form: str, compute: Array) -> tuple[Array, Array]:
    positive = compute[compute > 0]
    found = form_of(form)
    # Finer for one free parameter than for two.
    scales = np.geomspace(positive.min() / 10, positive.max() * 30, 60 if found.has_shape else 160)
    return scales, np.geomspace(*found.shapes, 24) if found.has_shape else np.array(found.shapes[:1])


def _distinct(compute: Array) -> tuple[Array, np.ndarray | None, np.ndarray]:
    """Distinct values of compute, the order that sorts the points by them, and where each begins in it."""
    distinct, counts = np.unique(compute, return_counts=True)
    if len(distinct) == len(compute) and len(distinct) <= MOST_DISTINCT:
        return compute, None, np.arange(len(compute))
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    if len(distinct) > MOST_DISTINCT:
        picks = np.unique(np.linspace(0, len(distinct), MOST_DISTINCT, endpoint=False).astype(np.int64))
        means = np.add.reduceat(distinct * counts, picks) / np.add.reduceat(counts, picks)
        distinct, first = means, first[picks]
    return distinct, np.argsort(compute, kind="stable"), first


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Weighted sums over the points, all that a linear fit needs of them.

    Attributes:
        total: Of the weights.
        h: Of the rise, shape ``(candidates,)``.
        hh: Of its square, shape ``(candidates,)``.
        y: Of the rewards, shape ``(sets,)``.
        yy: Of their squares, shape ``(sets,)``.
        hy: Of rise times reward, shape ``(sets, candidates)``.
    """

    total: float
    h: Array
    hh: Array
    y: Array
    yy: Array
    hy: Array


def sums(candidates: Grid, rewards: Array, weights: Array) -> Sums:
    """Weighted sums over the points, for rewards of shape ``(sets, points)`` and weights of shape ``(points,)``."""
    basis, mass = candidates.rise, candidates.summed(weights)
    return Sums(
        total=float(weights.sum()),
        h=basis @ mass,
        hh=(basis**2) @ mass,
        y=rewards @ weights,
        yy=(rewards**2) @ weights,
        hy=candidates.summed(rewards * weights) @ basis.T,
    )


def project(candidates: Grid, rewards: Array, weights: Array, start: Array | None) -> tuple[Array, Array, Array]:
    """Best start and gain for every candidate and every set of rewards (variable projection).

    For a given scale and shape, start and gain are a linear problem, solved in closed form; so a whole grid of scales
    and shapes, for many rewards at once, is a few matrix products.

    The gain is kept at 0 or more, the start too, and the asymptote at 1 or less.

    Args:
        candidates: K candidates over N points.
        rewards: Shape ``(sets, N)``.
        weights: Shape ``(N,)``.
        start: R0 of each set, shape ``(sets,)``, or None when it is free.

    Returns:
        Start, gain and weighted sum of squares, each of shape ``(sets, K)``.
    """
    found = sums(candidates, rewards, weights)
    total, s_h, s_hh, s_y, s_yy, s_hy = found.total, found.h, found.hh, found.y, found.yy, found.hy
    if start is None:
        spread = np.maximum(total * s_hh - s_h**2, 1e-12 * total * np.maximum(s_hh, 1e-300))
        gain = np.maximum((total * s_hy - s_h * s_y[:, None]) / spread, 0.0)
        first = (s_y[:, None] - gain * s_h) / total
        # Above 1: hold A = 1, so that R = 1 − G·(1 − rise), and solve for G alone.
        left_hh = total - 2 * s_h + s_hh
        left_hy = (total - s_y)[:, None] - (s_h - s_hy)
        held = np.maximum(left_hy / np.maximum(left_hh, 1e-300), 0.0)
        above = first + gain > 1.0
        gain = np.where(above, held, gain)
        first = np.where(above, 1.0 - held, first)
        # Below 0: hold R0 = 0, so that R = G·rise.
        below = first < 0.0
        gain = np.where(below, np.clip(s_hy / np.maximum(s_hh, 1e-300), 0.0, 1.0), gain)
        first = np.where(below, 0.0, first)
    else:
        first = np.broadcast_to(start[:, None], s_hy.shape)
        gain = (s_hy - first * s_h) / np.maximum(s_hh, 1e-300)
        gain = np.clip(gain, 0.0, np.maximum(1.0 - first, 0.0))
    squares = (
        s_yy[:, None]
        - 2 * first * s_y[:, None]
        - 2 * gain * s_hy
        + first**2 * total
        + 2 * first * gain * s_h
        + gain**2 * s_hh
    )
    return first, gain, np.maximum(squares, 0.0)

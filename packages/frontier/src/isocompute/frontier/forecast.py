"""Fit one curve up to a cut, extend it, and compare with what came later (ScaleRL, sections 3 and 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from .curves import Array, Curve
from .errors import MEANING, Flag, FrontierError
from .fitting import fit_form, project
from .fitting import grid as candidates_of
from .forms import FORMS, Parameters
from .noise import estimate_noise, scatter
from .precision import binomial_errors
from .scalerl import fit_scalerl
from .uncertainty import Draws, Resampling, refit

LEVEL = 0.95
METHODS = ("projection", "scalerl")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastConfig:
    """How a curve is fitted and extended.

    Attributes:
        form: ``exp``, ``hill`` or ``power``.
        r0: Reward before training; None fits it (``exp``, ``power``) or takes the points at zero compute.
        fit_min: Least compute fitted.
        fit_max: Most compute fitted; what lies beyond is the extension.
        method: ``projection``, or ``scalerl`` for that paper's grid procedure (form ``hill``).
        bootstrap: Refits behind the intervals.
        seed: Fixes them.

    Raises:
        FrontierError: A value is refused.
    """

    form: str = "hill"
    r0: float | None = None
    fit_min: float = 0.0
    fit_max: float = float("inf")
    method: str = "projection"
    bootstrap: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise FrontierError(f"the form {self.form!r} is unknown; it has to be one of {', '.join(FORMS)}")
        if self.method not in METHODS:
            raise FrontierError(f"the method {self.method!r} is unknown; it has to be one of {', '.join(METHODS)}")
        if self.method == "scalerl" and self.form != "hill":
            raise FrontierError("the method scalerl fits the form hill")
        if self.r0 is not None and not 0 <= self.r0 < 1:
            raise FrontierError(f"r0 is {self.r0}; a reward before training lies within 0 to 1")
        if not self.fit_min < self.fit_max:
            raise FrontierError(f"fit_min ({self.fit_min:g}) has to be below fit_max ({self.fit_max:g})")
        if self.bootstrap < 20:
            raise FrontierError(f"bootstrap is {self.bootstrap}; an interval needs 20 refits or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """How the fitted curve did beyond its cut.

    Attributes:
        points: Points beyond the cut.
        rmse: Root mean squared error.
        bias: Mean of prediction minus measurement; above 0 the fit promised too much.
        coverage: Share of the points inside the 95 % prediction interval.
        verdict: ``held`` when no fewer of them are than independent points leave by chance (once in twenty);
            ``failed`` when fewer are than in 95 % of extensions drawn from the fit itself, in which one wrong curve
            moves all points; between the two ``unresolved``.
    """

    points: int
    rmse: float
    bias: float
    coverage: float
    verdict: str

    @property
    def failed(self) -> bool:
        """Whether what came later left the forecast."""
        return self.verdict == "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A fitted curve and its extension.

    Attributes:
        parameters: The curve.
        intervals: 95 % interval of each parameter.
        residual_sd: Standard deviation of the residuals.
        autocorrelation: Lag-1, of the residuals.
        effective_points: N(1−φ)/(1+φ).
        fitted: Points fitted.
        support: Least and most compute fitted.
        extension: What came later, or None when nothing did.
        flags: Why to read it with care.
        band: The refits, or None.
    """

    parameters: Parameters
    intervals: dict[str, tuple[float, float]]
    residual_sd: float
    autocorrelation: float
    effective_points: float
    fitted: int
    support: tuple[float, float]
    extension: Extension | None
    flags: tuple[Flag, ...]
    band: Draws | None = None

    def as_dict(self) -> dict[str, Any]:
        """As ``predict --json`` writes it."""
        extension = self.extension
        return {
            "form": self.parameters.form,
            "params": self.parameters.named(),
            "intervals": {k: list(v) for k, v in self.intervals.items()},
            "residual_sd": self.residual_sd,
            "autocorrelation": self.autocorrelation,
            "effective_points": self.effective_points,
            "fitted": self.fitted,
            "support": list(self.support),
            "flags": [str(f) for f in self.flags],
            "extension": None if extension is None else {
                "points": extension.points, "rmse": extension.rmse, "bias": extension.bias,
                "coverage": extension.coverage, "verdict": extension.verdict,
            },
        }  # fmt: skip

    def summary(self) -> str:
        """For people: parameters with intervals, the extension, and what the flags mean."""
        low, high = self.support
        lines = [f"{self.parameters.form}, {self.fitted} points from {low:,.6g} to {high:,.6g}"]
        for name, value in self.parameters.named().items():
            span = self.intervals.get(name)
            lines.append(
                f"  {name:6} {value:.5g}" + (f"  (95 %: {span[0]:.5g} to {span[1]:.5g})" if span else "  fixed")
            )
        if self.extension is not None:
            e = self.extension
            verdict = "FAILED" if e.failed else e.verdict
            lines.append(
                f"  extension {verdict}: {e.points} later points, rmse {e.rmse:.4f}, bias {e.bias:+.4f}, "
                f"{e.coverage:.0%} inside the 95 % prediction interval"
            )
        lines += [f"  note: {MEANING[flag]}" for flag in self.flags]
        return "\n".join(lines)


def forecast(compute: Array, reward: Array, config: ForecastConfig, *, trials: Array | None = None) -> Forecast:
    """Fit one run up to a cut and judge its extension.

    Args:
        compute: Compute of each evaluation.
        reward: Its reward, within 0 to 1.
        config: How.
        trials: Responses behind each reward, for its binomial error; by default the scatter about the fit is
            the error.

    Raises:
        FrontierError: Fewer than five points lie in the window, or they do not differ in compute or reward.
    """
    order = np.argsort(compute, kind="stable")
    compute, reward = compute[order], reward[order]
    zero = compute == 0
    r0 = config.r0
    if r0 is None and config.form == "hill" and zero.any():
        r0 = float(reward[zero].mean())
    inside = (compute >= config.fit_min) & (compute <= config.fit_max) & (compute > 0)
    later = compute > config.fit_max
    x, y = compute[inside], reward[inside]
    if len(np.unique(x)) < 5:
        raise FrontierError(
            f"{len(np.unique(x))} points at different compute lie from {config.fit_min:g} to {config.fit_max:g}; "
            "a fit needs 5 or more"
        )
    if np.ptp(y) == 0:
        raise FrontierError(f"the reward is {y[0]:g} at every point: there is no curve to fit")
    error = _errors(config.form, x, y, r0, None if trials is None else trials[order][inside])
    parameters, at_bound, disagree = _point(config, x, y, error, r0)
    curve = Curve(
        rollouts_per_problem=1, problems_per_batch=1, compute=x, reward=y, standard_error=error,
        seed=np.zeros(len(x), dtype=np.int64), error_is_known=trials is not None,
    )  # fmt: skip
    noise = estimate_noise([curve], [parameters])
    within = scatter(curve, parameters, noise)
    residual_sd = _sd(y - parameters(x), 3)
    draws = refit(
        Resampling(
            curve=curve, fitted=parameters, likely={parameters: 1.0}, noise=noise, scatter=within,
            effects=np.zeros((config.bootstrap, 1, 2)), start=r0,
        ),
        (config.form,), rng=np.random.default_rng(config.seed),
    )  # fmt: skip
    intervals = _intervals(config.form, draws, () if r0 is None else ("R0",))
    extension = _extension(
        parameters, draws.at(compute[later]), reward[later], compute[later], residual_sd, config.seed
    )
    flags = _flags(parameters, intervals, extension, x, at_bound=at_bound, disagree=disagree)
    phi = noise.autocorrelation
    return Forecast(
        parameters=parameters, intervals=intervals, residual_sd=residual_sd, autocorrelation=phi,
        effective_points=within.effective_points, fitted=len(x), support=(float(x[0]), float(x[-1])),
        extension=extension, flags=flags, band=draws,
    )  # fmt: skip


def forecasts_over_cuts(
    compute: Array, reward: Array, config: ForecastConfig, cuts: Sequence[float]
) -> list[tuple[float, Forecast | FrontierError]]:
    """The same forecast from several cuts; a cut with too few points is its reason instead."""
    from dataclasses import replace

    found: list[tuple[float, Forecast | FrontierError]] = []
    for cut in cuts:
        try:
            found.append((cut, forecast(compute, reward, replace(config, fit_max=cut))))
        except FrontierError as error:
            found.append((cut, error))
    return found


def _intervals(form: str, draws: Draws, held: Sequence[str]) -> dict[str, tuple[float, float]]:
    """95 % intervals of the parameters by their papers' names, but of those held."""
    named = [
        Parameters(form=form, start=float(a), gain=float(b), scale=float(c), shape=float(d)).named()
        for a, b, c, d in zip(draws.start, draws.gain, draws.scale, draws.shape, strict=True)
    ]
    return {name: _interval(np.array([d[name] for d in named])) for name in named[0] if name not in held}


def _errors(form: str, x: Array, y: Array, r0: float | None, trials: Array | None) -> Array:
    """Standard error of each point: binomial where trials are known, else the scatter about a first fit."""
    if trials is not None:
        return binomial_errors(y, trials)
    candidates = candidates_of(form, x)
    fixed = None if r0 is None else np.array([r0])
    _, _, squares = project(candidates, y[None, :], np.ones_like(y), fixed)
    spread = float(np.sqrt(squares.min() / max(len(y) - 3, 1)))
    return np.full_like(y, max(spread, 1e-6))


def _point(config: ForecastConfig, x: Array, y: Array, error: Array, r0: float | None) -> tuple[Parameters, bool, bool]:
    if config.method == "scalerl":
        if r0 is None:
            raise FrontierError("the method scalerl needs the reward before training: give r0")
        return fit_scalerl(x, y, r0), False, False
    best = fit_form(config.form, x, y, error, r0)
    return best.parameters, best.at_bound, best.starts_disagree


def _extension(
    parameters: Parameters, drawn: Array, reward: Array, compute: Array, residual_sd: float, seed: int
) -> Extension | None:
    if not len(compute):
        return None
    noise = np.random.default_rng(seed + 1).standard_normal(drawn.shape) * residual_sd
    runs = drawn + noise
    low, high = np.quantile(runs, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
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


def _flags(
    parameters: Parameters, intervals: dict[str, tuple[float, float]], extension: Extension | None, x: Array,
    *, at_bound: bool, disagree: bool,
) -> tuple[Flag, ...]:  # fmt: skip
    found = []
    if at_bound:
        found.append(Flag.AT_BOUND)
    if disagree:
        found.append(Flag.STARTS_DISAGREE)
    if len(x) < 8:
        found.append(Flag.TOO_FEW_POINTS)
    if x[-1] < 1.5 * parameters.half_compute:
        found.append(Flag.SUPPORT_TOO_SHORT)
    low, high = intervals["A"]
    if high - low > 0.15 or high > 0.999:
        found.append(Flag.ASYMPTOTE_NOT_IDENTIFIED)
    if extension is not None and extension.failed:
        found.append(Flag.EXTENSION_FAILED)
    found.append(Flag.WITHIN_RUN_ONLY)
    return tuple(found)


def _sd(residuals: Array, parameters: int) -> float:
    return float(np.sqrt((residuals**2).sum() / max(len(residuals) - parameters, 1)))


def _interval(values: Array) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)

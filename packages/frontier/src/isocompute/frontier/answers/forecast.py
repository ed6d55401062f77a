"""Fit one curve up to a cut, extend it, and compare with what came later (ScaleRL, sections 3 and 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..data.curves import Array
from ..data.precision import binomial_errors
from ..data.units import counted
from ..errors import MEANING, Flag, FrontierError
from ..fitting.forms import SEARCHED, Parameters, form_of
from ..fitting.intervals import interval
from ..fitting.point import fit_form, standard_deviation
from ..fitting.projection import grid, project
from ..fitting.refits import Refits, refit, scatter_of
from ..fitting.scalerl import fit_scalerl
from .extension import Extension, extension_of

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
        FrontierError: The form or the method is unknown, ``r0`` lies outside 0 to 1, the window is empty, there are
            fewer than 20 refits, or the seed is negative.
    """

    form: str = "hill"
    r0: float | None = None
    fit_min: float = 0.0
    fit_max: float = float("inf")
    method: str = "projection"
    bootstrap: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        form_of(self.form)
        if self.method not in METHODS:
            raise FrontierError(f"the method {self.method!r} is unknown; it must be one of {', '.join(METHODS)}")
        if self.method == "scalerl" and self.form != "hill":
            raise FrontierError("the method scalerl fits the form hill")
        if self.r0 is not None and not 0 <= self.r0 < 1:
            raise FrontierError(f"r0 is {self.r0}; a reward before training lies within 0 to 1")
        if not self.fit_min < self.fit_max:
            raise FrontierError(f"fit_min ({self.fit_min:g}) must be below fit_max ({self.fit_max:g})")
        if self.bootstrap < 20:
            raise FrontierError(f"bootstrap is {self.bootstrap}; an interval needs 20 refits or more")
        if self.seed < 0:
            raise FrontierError(f"the seed is {self.seed}; it must be 0 or more")


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
    band: Refits | None = None

    def as_dict(self) -> dict[str, Any]:
        """As ``predict --json`` writes it."""
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
            "extension": None if self.extension is None else self.extension.as_dict(),
        }

    def summary(self) -> str:
        """To be printed: parameters with intervals, the extension, and what the flags mean."""
        low, high = self.support
        lines = [f"{self.parameters.form}, {self.fitted} points from {low:,.6g} to {high:,.6g}"]
        for name, value in self.parameters.named().items():
            span = self.intervals.get(name)
            lines.append(
                f"  {name:6} {value:.5g}" + (f"  (95 %: {span[0]:.5g} to {span[1]:.5g})" if span else "  fixed")
            )
        if self.extension is not None:
            e = self.extension
            verdict = "FAILED" if e.contradicted else e.verdict
            lines.append(
                f"  extension {verdict}: {counted(e.points, 'later point')}, rmse {e.rmse:.4f}, bias {e.bias:+.4f}, "
                f"{e.coverage:.0%} inside the 95 % prediction interval"
            )
        lines += [f"  note: {MEANING[flag]}" for flag in self.flags]
        return "\n".join(lines)


def forecast(compute: Array, reward: Array, config: ForecastConfig, *, trials: Array | None = None) -> Forecast:
    """Fit one run up to a cut and judge its extension.

    Args:
        reward: Its reward, within 0 to 1.
        trials: Responses behind each reward, for its binomial error; by default the scatter about the fit is
            the error.

    Raises:
        FrontierError: Fewer than five points lie in the window, or they do not differ in compute or reward.
    """
    order = np.argsort(compute, kind="stable")
    compute, reward = compute[order], reward[order]
    zero = compute == 0
    r0 = config.r0
    if r0 is None and form_of(config.form).start_is_measured and zero.any():
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
    noise = scatter_of((y - parameters(x)) / error, config.form)
    residual_sd = standard_deviation(((y - parameters(x)) ** 2).sum(), len(y), SEARCHED)
    draws = refit(
        parameters, x, error, noise, start=r0, least=0.0 if trials is None else 1.0, count=config.bootstrap,
        rng=np.random.default_rng(config.seed),
    )  # fmt: skip
    intervals = _intervals(draws, () if r0 is None else ("R0",))
    extension = extension_of(
        parameters, draws.at(compute[later]), reward[later], compute[later], residual_sd, config.seed
    )
    flags = _flags(parameters, intervals, extension, x, at_bound=at_bound, disagree=disagree)
    return Forecast(
        parameters=parameters, intervals=intervals, residual_sd=residual_sd,
        autocorrelation=noise.autocorrelation,
        effective_points=noise.effective_points, fitted=len(x), support=(float(x[0]), float(x[-1])),
        extension=extension, flags=flags, band=draws,
    )  # fmt: skip


def forecasts_over_cuts(
    compute: Array, reward: Array, config: ForecastConfig, cuts: Sequence[float]
) -> list[tuple[float, Forecast | FrontierError]]:
    """The same forecast from several cuts.

    Args:
        compute: Compute of each evaluation, shape ``(points,)``.
        reward: Its reward, within 0 to 1.
        cuts: Most compute fitted, one value per forecast.

    Returns:
        Each cut with its forecast, or with the error where too few points lie before it.
    """
    found: list[tuple[float, Forecast | FrontierError]] = []
    for cut in cuts:
        try:
            found.append((cut, forecast(compute, reward, replace(config, fit_max=cut))))
        except FrontierError as error:
            found.append((cut, error))
    return found


def _intervals(draws: Refits, held: Sequence[str]) -> dict[str, tuple[float, float]]:
    """95 % intervals of the parameters that are not held, by the names of the papers."""
    named = [
        Parameters(form=draws.form, start=float(a), gain=float(b), scale=float(c), shape=float(d)).named()
        for a, b, c, d in zip(draws.start, draws.gain, draws.scale, draws.shape, strict=True)
    ]
    return {name: interval(np.array([d[name] for d in named])) for name in named[0] if name not in held}


def _errors(form: str, x: Array, y: Array, r0: float | None, trials: Array | None) -> Array:
    """Standard error of each point: binomial where trials are known, else the scatter about a first fit."""
    if trials is not None:
        return binomial_errors(y, trials)
    candidates = grid(form, x)
    fixed = None if r0 is None else np.array([r0])
    _, _, squares = project(candidates, y[None, :], np.ones_like(y), fixed)
    spread = standard_deviation(squares.min(), len(y), SEARCHED)
    return np.full_like(y, max(spread, 1e-6))


def _point(config: ForecastConfig, x: Array, y: Array, error: Array, r0: float | None) -> tuple[Parameters, bool, bool]:
    if config.method == "scalerl":
        if r0 is None:
            raise FrontierError("the method scalerl needs the reward before training: give r0")
        return fit_scalerl(x, y, r0), False, False
    best = fit_form(config.form, x, y, error, r0)
    return best.parameters, best.at_bound, best.starts_disagree


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
    if extension is not None and extension.contradicted:
        found.append(Flag.EXTENSION_FAILED)
    found.append(Flag.WITHIN_RUN_ONLY)
    return tuple(found)

"""Forecasts of single runs, recipes compared by their fits, and prescriptions compared with fixed n.

A forecast fits one curve up to a cut, extends it, and is judged by what came later (ScaleRL, sections 3 and 4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import numpy as np
import polars as pl
from scipy import stats
from scipy.optimize import least_squares, minimize_scalar

from ..data.curves import Array, binomial_errors, not_beyond
from ..data.reading import counted
from ..errors import MEANING, Flag, FrontierError
from ..fitting.intervals import LEVEL, ends, interval, t_quantile
from ..fitting.point import (
    FREE,
    SEARCHED,
    Parameters,
    Refits,
    autocorrelation_of,
    effective_points,
    fit_form,
    fit_scalerl,
    form_of,
    grid,
    project,
    refit,
    scatter_of,
    standard_deviation,
)

METHODS = ("projection", "scalerl")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastConfig:
    """Settings of a forecast.

    Attributes:
        r0: Reward before training; None fits it (``exp``, ``power``) or takes the points at zero compute.
        fit_max: Most compute fitted; what lies beyond is the extension.
        method: ``projection``, or ``scalerl`` for that paper's grid procedure (form ``hill``).
        bootstrap: Refits behind the intervals.

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
        intervals: 95 % interval of each parameter.
        autocorrelation: Lag-1, of the residuals.
        effective_points: N(1−φ)/(1+φ).
        fitted: Points fitted.
        support: Least and most compute fitted.
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
        """Lines to be printed: parameters with intervals, the extension, and the meaning of the flags."""
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
        parameters,
        x,
        error,
        noise,
        start=r0,
        least=0.0 if trials is None else 1.0,
        count=config.bootstrap,
        rng=np.random.default_rng(config.seed),
    )
    intervals = _intervals(draws, () if r0 is None else ("R0",))
    extension = extension_of(
        parameters, draws.at(compute[later]), reward[later], compute[later], residual_sd, config.seed
    )
    flags = _flags(parameters, intervals, extension, x, at_bound=at_bound, disagree=disagree)
    return Forecast(
        parameters=parameters,
        intervals=intervals,
        residual_sd=residual_sd,
        autocorrelation=noise.autocorrelation,
        effective_points=noise.effective_points,
        fitted=len(x),
        support=(float(x[0]), float(x[-1])),
        extension=extension,
        flags=flags,
        band=draws,
    )


def forecasts_over_cuts(
    compute: Array, reward: Array, config: ForecastConfig, cuts: Sequence[float]
) -> list[tuple[float, Forecast | FrontierError]]:
    """The same forecast from several cuts.

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


def _intervals(draws: Refits, held: Sequence[str]) -> dict[str, tuple[float, float]]:
    """95 % intervals of the parameters that are not held, by the names of the papers."""
    named = [
        Parameters(form=draws.form, start=float(a), gain=float(b), scale=float(c), shape=float(d)).named()
        for a, b, c, d in zip(draws.start, draws.gain, draws.scale, draws.shape, strict=True)
    ]
    return {name: interval(np.array([d[name] for d in named])) for name in named[0] if name not in held}


def _flags(
    parameters: Parameters,
    intervals: dict[str, tuple[float, float]],
    extension: Extension | None,
    x: Array,
    *,
    at_bound: bool,
    disagree: bool,
) -> tuple[Flag, ...]:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """A fitted curve compared with what came beyond its cut (ScaleRL, section 4).

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
        """Return whether the later points contradict the forecast."""
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
        points=len(compute),
        rmse=float(np.sqrt((miss**2).mean())),
        bias=float(miss.mean()),
        coverage=inside / len(compute),
        verdict=verdict,
    )


FARTHEST_EXTRAPOLATION = 4.0
"""Multiple of the largest compute of a recipe's data beyond which its line is not followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """One recipe with the shared asymptote.

    Attributes:
        parameters: Its curve, A and R0 held.
        intervals: 95 % intervals of ``B`` and ``C_mid``, within the run.
        target: The reward at which recipes are compared.
        needed: Compute that this one needs for it, or where that is refused the most that is not: it needs more.
        needed_interval: 95 % interval of that, within the run; open above where it is refused.
        standing: ``measured`` where its data reach that compute, ``extrapolated`` beyond, ``refused`` beyond four times
            its data.
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
        """As ``predict --json`` writes it."""
        return {
            "series": self.name,
            "params": self.parameters.named(),
            "intervals": {k: list(v) for k, v in self.intervals.items()},
            "target": self.target,
            "needed": self.needed,
            "needed_interval": list(self.needed_interval),
            "standing": self.standing,
        }


def efficiency(parameters: Parameters, compute: Array, reward: Array) -> tuple[Array, Array]:
    """F(R) = (R − R0)/(A − R) against C, a line of slope B in logarithms.

    Points outside (R0, A), where F has no logarithm, are left out.

    Args:
        compute: Compute of each point, shape ``(points,)``.

    Returns:
        Compute and F of the points kept.
    """
    inside = (reward > parameters.start) & (reward < parameters.asymptote) & (compute > 0)
    kept = reward[inside]
    return compute[inside], (kept - parameters.start) / (parameters.asymptote - kept)


def leave_one_out(
    series: Mapping[str, tuple[Array, Array]], *, r0: float, asymptote: float | None = None, target: float | None = None
) -> list[Efficiency]:
    """Compare recipes at one asymptote, the one that needs least compute for the target first (ScaleRL, section 4).

    With one asymptote for all, F(R) = (R − R0)/(A − R) = (C/C_mid)^B is a line of slope B in logarithms. A steeper line
    is not always the more efficient one: it may lie farther to the right. What is compared is therefore the compute at
    which a line reaches a reward, C(R) = C_mid · F(R)^(1/B): a reward that some recipe reached, and for the others no
    compute beyond four times their data.

    Args:
        r0: Reward before training, the same for all.
        asymptote: A held for all; by default the one that fits all recipes together best.
        target: Reward that they are compared at; by default the highest that the fits of at least half of the recipes
            reach at their last compute.

    Raises:
        FrontierError: A recipe has fewer than five points, the asymptote is not above their rewards' start or
            cannot be fitted below 1, or the target does not lie between R0 and A or was reached by no recipe.
    """
    clean = {}
    for name, (compute, reward) in series.items():
        kept = compute > 0
        if len(np.unique(compute[kept])) < 5:
            raise FrontierError(f"{name} has {int(kept.sum())} points after the start; a fit needs 5 or more")
        clean[name] = (compute[kept], reward[kept])
    if asymptote is None:
        # The one that fits all together best: a mean would let one recipe that fails decide for the others.
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
    """Least squares of log C_mid and log B alone."""
    low, high = form_of("hill").shapes
    begin = np.array([np.log(np.median(compute)), 0.3])
    bounds = (np.log([compute.min() / 100, low]), np.log([compute.max() * 100, high]))
    return least_squares(lambda x: _curve(x, r0, asymptote)(compute) - reward, begin, bounds=bounds)


def _recipe(
    name: str, compute: Array, reward: Array, best: Any, r0: float, asymptote: float, target: float
) -> Efficiency:
    """One recipe, with t intervals that count autocorrelated points for what they are worth."""
    residual = best.fun
    squares = float((residual**2).sum())
    lagged = float((residual[1:] * residual[:-1]).sum())
    phi = autocorrelation_of(lagged, squares, points=len(reward), parameters=FREE)
    freedom = max(effective_points(len(reward), phi) - FREE, 1.0)
    # Squares of as many independent points as these are worth.
    covariance = np.linalg.pinv(best.jac.T @ best.jac) * squares / freedom
    quantile = t_quantile(freedom)
    half = np.minimum(quantile * np.sqrt(np.diag(covariance)), 20.0)
    # An interval ends where the search does.
    ends = {"C_mid": (compute.min() / 100, compute.max() * 100), "B": form_of("hill").shapes}
    spans = {
        key: (max(float(np.exp(best.x[i] - half[i])), low), min(float(np.exp(best.x[i] + half[i])), high))
        for i, (key, (low, high)) in enumerate(ends.items())
    }
    # ln C(R) = ln C_mid + ln F / B, and its error by the delta method.
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


K = TypeVar("K")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The prescribed n against one fixed n at the same budget.

    Attributes:
        differences: Last evaluation of the prescribed n minus that of the baseline, seed by seed.
        mean: None without pairs.
        interval: 95 % t interval of the mean, of this comparison alone, or None with fewer than two pairs.
        p_value: Of no difference, adjusted for all the comparisons made (Holm), or None with fewer than two pairs.
        verdict: ``won`` or ``lost`` where the adjusted p is below 0.05, else ``unresolved``; ``same`` when the baseline
            is what was prescribed.
    """

    prescribed: int
    baseline: int
    differences: tuple[float, ...]
    mean: float | None
    interval: tuple[float, float] | None
    verdict: str
    p_value: float | None = None
    comparisons: int = 1

    def as_dict(self) -> dict[str, Any]:
        """The comparison as plain values."""
        plain = asdict(self)
        plain["differences"] = list(self.differences)
        plain["interval"] = list(self.interval) if self.interval else None
        return plain

    def summary(self) -> str:
        """One line to be printed."""
        head = f"n = {self.prescribed} against n = {self.baseline}"
        if self.verdict == "same":
            return f"{head}: the same allocation"
        if self.mean is None:
            return f"{head}: no seed was trained with both, unresolved"
        span = f" (95 % {self.interval[0]:+.3f} to {self.interval[1]:+.3f})" if self.interval else ""
        chance = "" if self.p_value is None else f", p = {self.p_value:.2g}"
        chance += f" with {self.comparisons} comparisons" if chance and self.comparisons > 1 else ""
        return f"{head}: {self.mean:+.3f}{span} over {counted(len(self.differences), 'seed')}{chance}, {self.verdict}"


def compare(
    evals: pl.DataFrame, *, prescribed: int, baselines: Sequence[int], metric: str = "avg_at_4"
) -> list[Comparison]:
    """Compare the last evaluations of runs at one budget.

    Where nothing differs, any verdict is ``won`` or ``lost`` in at most one comparison of twenty, however many
    baselines there are.

    Args:
        evals: An ``evals`` table of the runs, none of which the prescription was fitted to.

    Raises:
        FrontierError: The runs did not end at the same compute.
    """
    last = evals.sort("rollouts").group_by("rollouts_per_problem", "seed", maintain_order=True).last()
    if last["rollouts"].n_unique() > 1:
        spans = sorted(set(last["rollouts"].to_list()))
        raise FrontierError(f"the runs compared end at different rollouts ({spans}): compare equal budgets")
    scores = {(r["rollouts_per_problem"], r["seed"]): r[metric] for r in last.iter_rows(named=True)}
    return _with_verdicts([_comparison(scores, prescribed, n) for n in baselines])


def holm(ps: Mapping[K, float]) -> dict[K, float]:
    """Holm's adjusted p of each hypothesis of a family."""
    adjusted, largest = {}, 0.0
    for rank, (name, p) in enumerate(sorted(ps.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, (len(ps) - rank) * p))
        adjusted[name] = largest
    return adjusted


def _with_verdicts(found: list[Comparison]) -> list[Comparison]:
    """Holm's adjustment, and the verdicts that follow."""
    adjusted = holm({c.baseline: c.p_value for c in found if c.p_value is not None})
    return [
        c
        if c.p_value is None
        else replace(
            c,
            p_value=adjusted[c.baseline],
            comparisons=len(adjusted),
            verdict="unresolved" if adjusted[c.baseline] >= 0.05 else "won" if (c.mean or 0.0) > 0 else "lost",
        )
        for c in found
    ]


def _comparison(scores: dict[tuple[int, int], float], prescribed: int, baseline: int) -> Comparison:
    if baseline == prescribed:
        return Comparison(
            prescribed=prescribed, baseline=baseline, differences=(), mean=None, interval=None, verdict="same"
        )
    seeds = sorted(s for n, s in scores if n == prescribed and (baseline, s) in scores)
    differences = np.array([scores[prescribed, s] - scores[baseline, s] for s in seeds])
    mean = float(differences.mean()) if len(seeds) else None
    interval, p_value = None, None
    if mean is not None and len(seeds) >= 2:
        error = float(differences.std(ddof=1) / np.sqrt(len(seeds)))
        half = t_quantile(len(seeds) - 1) * error
        interval = (mean - half, mean + half)
        p_value = float(2 * stats.t.sf(abs(mean) / error, len(seeds) - 1)) if error > 0 else float(mean == 0)
    return Comparison(
        prescribed=prescribed,
        baseline=baseline,
        differences=tuple(differences.tolist()),
        mean=mean,
        interval=interval,
        p_value=p_value,
        verdict="unresolved",
    )

"""Fitting a whole sweep: curves with intervals and flags, envelope, n*(C)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from .curves import Array, Curve, curves, of_records
from .envelope import LEVEL, Crossover, crossovers, supported, winners
from .errors import Flag, FrontierError
from .fitting import PointFit, fit_form
from .forms import FORMS
from .nstar import Sigmoid, fit_sigmoid
from .results import CurveFit, Fits
from .uncertainty import Draws, Noise, estimate_noise, refit

GRID_POINTS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class FitConfig:
    """How a sweep is fitted.

    Attributes:
        form: ``exp``, ``hill``, ``power`` or ``auto``, which chooses by AICc, in every refit again.
        metric: Metric column fitted.
        unit: ``rollouts``, ``tokens`` or ``update_steps``.
        split: Split evaluated.
        problem_set: Problem set, needed when there are several.
        bootstrap: Refits.
        seed: Fixes the refits.
        points: ``all`` or ``records``: the points that break the record, which are biased upward.
        bin_width: Width of a record's bin of reward.
        problems_per_batch: Only curves of this B_p: n against M (section 4, first setting); None takes all.
        batch_rollouts: Only curves of this B = B_p·n: B_p against n (second setting); None takes all. With
            neither the fit is joint over B_p and n (third setting).

    Raises:
        FrontierError: The form or the points are unknown, or there are fewer than 20 refits.
    """

    form: str = "auto"
    metric: str = "avg_at_4"
    unit: str = "rollouts"
    split: str = "validation"
    problem_set: str | None = None
    bootstrap: int = 1000
    seed: int = 0
    points: str = "all"
    bin_width: float = 0.005
    problems_per_batch: int | None = None
    batch_rollouts: int | None = None

    def __post_init__(self) -> None:
        if self.form not in ("auto", *FORMS):
            raise FrontierError(f"the form {self.form!r} is unknown; it has to be auto or one of {', '.join(FORMS)}")
        if self.points not in ("all", "records"):
            raise FrontierError(f"points is {self.points!r}; it has to be all or records")
        if self.bootstrap < 20:
            raise FrontierError(f"bootstrap is {self.bootstrap}; an interval needs 20 refits or more")


def fit(evals: pl.DataFrame, config: FitConfig) -> Fits:
    """Fit every curve of a sweep, its envelope and n*(C).

    Args:
        evals: An ``evals`` table.
        config: How.

    Returns:
        The fits; a curve that cannot be fitted is a result with a reason.

    Raises:
        FrontierError: The table holds no curve at all, or mixes problem sets.
    """
    found = curves(evals, metric=config.metric, unit=config.unit, split=config.split, problem_set=config.problem_set)
    whole = found = _setting(found, config)
    if config.points == "records":
        found = [of_records(curve, bin_width=config.bin_width) for curve in whole]
    forms = FORMS if config.form == "auto" else (config.form,)
    # Every form is fitted, also where one is asked for: whether they agree is a property of the data.
    every = [_options(curve, FORMS, thorough=forms) for curve in found]
    options = [[o for o in fits_of_curve if o.parameters.form in forms] for fits_of_curve in every]
    usable = [i for i, o in enumerate(options) if o]
    chosen = {i: min(options[i], key=lambda p: p.criterion) for i in usable}
    noise = estimate_noise([found[i] for i in usable], [chosen[i].parameters for i in usable]) if usable else None
    rng = np.random.default_rng(config.seed)
    spread = _spread(noise, config.bootstrap, rng) if noise else np.zeros(config.bootstrap)
    results = []
    for i, curve in enumerate(found):
        if i not in chosen or noise is None:
            results.append(_failed(curve))
            continue
        best = chosen[i]
        draws = refit(
            curve, best.parameters, noise, best.residual_sd, forms,
            refits=config.bootstrap, rng=rng, spread=spread,
        )  # fmt: skip
        gap = _records_gap(whole[i], best, config.bin_width)
        results.append(_result(curve, best, every[i], draws, noise, gap))
    compute, point, refits, within, labels = _on_grid(results)
    return Fits(
        unit=config.unit,
        metric=config.metric,
        curves=tuple(results),
        compute=compute,
        crossovers=tuple(_crossovers(compute, point, refits, within, labels)),
        n_star=_n_star(compute, point, refits, within, labels),
        probability=_frequencies(refits, within, len(labels)),
        envelope=_envelope(point, refits, within),
        points=config.points,
        alike=_alike(refits, within, labels),
    )


def _setting(found: list[Curve], config: FitConfig) -> list[Curve]:
    """The curves of one of the three settings of section 4.

    Raises:
        FrontierError: No curve is in it.
    """
    size, batch = config.problems_per_batch, config.batch_rollouts
    kept = [
        c for c in found
        if size in (None, c.problems_per_batch) and batch in (None, c.problems_per_batch * c.rollouts_per_problem)
    ]  # fmt: skip
    if not kept:
        known = ", ".join(f"({c.problems_per_batch}, {c.rollouts_per_problem})" for c in found)
        raise FrontierError(f"no curve has B_p = {size or 'any'} and B = {batch or 'any'}; the (B_p, n) are {known}")
    return kept


def _options(curve: Curve, forms: Sequence[str], *, thorough: Sequence[str] = ()) -> list[PointFit]:
    """A point fit per form, or none when there are too few points to fit any."""
    if (curve.compute > 0).sum() < 3 or len(np.unique(curve.compute)) < 3:
        return []
    zero = curve.compute == 0
    start = float(curve.reward[zero].mean()) if zero.any() else None
    return [
        fit_form(
            f, curve.compute, curve.reward, curve.standard_error, start if f == "hill" else None,
            starts=4 if f in thorough else 1,
        )
        for f in forms
    ]  # fmt: skip


def _records_gap(curve: Curve, best: PointFit, bin_width: float) -> float | None:
    """How far above all points a fit of the records lies at the end of the run; None where there is no such fit."""
    chosen = of_records(curve, bin_width=bin_width)
    options = _options(chosen, (best.parameters.form,))
    if not options:
        return None
    end = curve.support[1]
    everything = best if len(chosen.compute) != len(curve.compute) else options[0]
    return float(options[0].parameters(end) - everything.parameters(end))


def _alike(refits: Array, within: Array, labels: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Pairs of curves that cannot be told apart: the 95 % band of their difference holds 0 wherever both have data."""
    pairs = []
    for a in range(len(labels)):
        for b in range(a + 1, len(labels)):
            both = within[a] & within[b]
            if not both.any():
                continue
            # The upper half of the shared range: where runs begin, all curves are alike.
            shared = np.flatnonzero(both)
            upper = shared[len(shared) // 2 :]
            low, high = np.quantile(refits[:, b][:, upper] - refits[:, a][:, upper], [0.025, 0.975], axis=0)
            if ((low <= 0) & (high >= 0)).all():
                pairs.append((a, b))
    return tuple(pairs)


def _spread(noise: Noise, refits: int, rng: np.random.Generator) -> Array:
    """Between-seed standard deviation of each refit, from its sampling distribution."""
    if noise.degrees == 0:
        return np.zeros(refits)
    # Kept within a factor of ten: one degree of freedom has no mean.
    factor = np.sqrt(noise.degrees / rng.chisquare(noise.degrees, refits))
    return np.asarray(noise.between_seeds * np.minimum(factor, 10.0))


def _interval(values: Array) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _failed(curve: Curve) -> CurveFit:
    return CurveFit(
        curve=curve, parameters=None, intervals={}, residual_sd=None, draws=None, asymptote_interval=None,
        records_gap=None, flags=(Flag.FIT_FAILED, Flag.TOO_FEW_POINTS),
        reason="fewer than three evaluations at different compute",
    )  # fmt: skip


def _result(
    curve: Curve, best: PointFit, options: Sequence[PointFit], draws: Draws, noise: Noise, records_gap: float | None
) -> CurveFit:
    parameters = best.parameters
    asymptote = _interval(draws.asymptote)
    same = draws.form == parameters.form
    scale = _interval(draws.scale[same]) if same.sum() >= 20 else None
    intervals = {"A": asymptote}
    if scale:
        intervals["C_mid" if parameters.form == "hill" else "tau"] = scale
    flags = []
    if best.at_bound:
        flags.append(Flag.AT_BOUND)
    if len(np.unique(curve.compute[curve.compute > 0])) < 5:
        flags.append(Flag.TOO_FEW_POINTS)
    if parameters.gain > 1e-6 and curve.support[1] < 1.5 * parameters.half_compute:
        flags.append(Flag.SUPPORT_TOO_SHORT)
    # A form that fits about as well and levels off elsewhere: the data do not choose between the two asymptotes.
    rivals = [o for o in options if o.criterion <= best.criterion + 4.0]
    disagree = max((abs(o.parameters.asymptote - parameters.asymptote) for o in rivals), default=0.0) > 0.05
    if disagree or asymptote[1] - asymptote[0] > 0.15 or asymptote[1] > 0.999:
        flags.append(Flag.ASYMPTOTE_NOT_IDENTIFIED)
    if disagree:
        flags.append(Flag.FORMS_DISAGREE)
    if best.starts_disagree:
        flags.append(Flag.STARTS_DISAGREE)
    if _falling(curve):
        flags.append(Flag.TAIL_FALLING)
    if noise.degrees == 0 or curve.seeds == 1:
        flags.append(Flag.WITHIN_RUN_ONLY)
    return CurveFit(
        curve=curve, parameters=parameters, intervals=intervals, residual_sd=best.residual_sd, draws=draws,
        asymptote_interval=asymptote, flags=tuple(flags), reason="", records_gap=records_gap,
    )  # fmt: skip


def _falling(curve: Curve) -> bool:
    """Whether the last quarter lies below the quarter before it by more than two standard errors."""
    grid = np.unique(curve.compute[curve.compute > 0])
    quarter = len(grid) // 4
    if quarter < 2:
        return False
    last = curve.compute >= grid[-quarter]
    before = (curve.compute >= grid[-2 * quarter]) & ~last
    drop = curve.reward[before].mean() - curve.reward[last].mean()
    error = np.sqrt(
        (curve.standard_error[last] ** 2).mean() / last.sum()
        + (curve.standard_error[before] ** 2).mean() / before.sum()
    )
    return bool(drop > 2 * error)


def _on_grid(
    results: Sequence[CurveFit],
) -> tuple[Array, Array, Array, Array, list[tuple[int, int]]]:
    """Grid of compute, fitted and refitted rewards, support, and (n, B_p) of each curve that was fitted."""
    fitted = [r for r in results if r.parameters is not None and r.draws is not None]
    if not fitted:
        return np.zeros(0), np.zeros((0, 0)), np.zeros((0, 0, 0)), np.zeros((0, 0), dtype=bool), []
    supports = np.array([r.curve.support for r in fitted])
    compute = np.geomspace(supports[:, 0].min(), supports[:, 1].max(), GRID_POINTS)
    point = np.stack([r.parameters(compute) for r in fitted if r.parameters])
    refits = np.stack([r.draws.at(compute) for r in fitted if r.draws], axis=1)
    labels = [(r.curve.rollouts_per_problem, r.curve.problems_per_batch) for r in fitted]
    return compute, point, refits, supported(compute, supports), labels


def _crossovers(
    compute: Array, point: Array, refits: Array, within: Array, labels: list[tuple[int, int]]
) -> list[Crossover]:
    return crossovers(compute, point, refits, within, [n for n, _ in labels]) if len(compute) else []


def _frequencies(refits: Array, within: Array, count: int) -> Array:
    """How often each curve is best at each compute, shape ``(curves, points)``."""
    if not count:
        return np.zeros((0, 0))
    best = winners(refits, within)
    return np.stack([(best == i).mean(axis=0) for i in range(count)])


def _envelope(point: Array, refits: Array, within: Array) -> Array:
    """Reward of the envelope and its 95 % interval, shape ``(3, points)``."""
    if not point.size:
        return np.zeros((3, 0))
    top = np.where(within, refits, -np.inf).max(axis=1)
    low, high = np.quantile(top, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return np.stack([np.where(within, point, -np.inf).max(axis=0), low, high])


def _n_star(compute: Array, point: Array, refits: Array, within: Array, labels: list[tuple[int, int]]) -> Sigmoid:
    if not len(compute):
        return Sigmoid(params=None, intervals={}, flags=(Flag.FIT_FAILED,))
    n = np.array([label[0] for label in labels], dtype=np.float64)
    best = winners(point, within)
    known = best >= 0
    x = np.log10(compute[known])
    values = np.log2(n[best[known]])
    distinct = np.unique(values)
    flags = (Flag.K_UNIDENTIFIED,) if len(distinct) < 4 else ()
    if len(distinct) == 1:
        return Sigmoid(params=None, intervals={}, flags=flags, constant=int(2 ** distinct[0]))
    params = fit_sigmoid(x, values)
    draws = []
    # A refit of the sigmoid costs far more than one of a curve; a hundred give its interval.
    # Two levels say where n* steps, not how steeply: a sigmoid's interval would mean nothing.
    for row in winners(refits, within)[:100] if params and len(distinct) > 2 else ():
        again = fit_sigmoid(x, np.log2(n[row[known]]), begin_at=params)
        if again:
            draws.append(again)
    intervals = {}
    if params and len(draws) >= 20:
        intervals = {k: _interval(np.array([d[k] for d in draws])) for k in params}
    return Sigmoid(params=params, intervals=intervals, flags=flags)

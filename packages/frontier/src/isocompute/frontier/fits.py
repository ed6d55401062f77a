"""Fitting a whole sweep: curves with intervals and flags, envelope, n*(C)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from .curves import Array, Curve, of_records
from .differences import differences
from .envelope import LEVEL, crossovers, supported, winners
from .errors import Flag, FrontierError
from .forms import FORMS
from .grouping import curves
from .judging import failed, records_gap
from .nstar import Sigmoid, fit_sigmoid, fit_sigmoids
from .pooling import best_shares
from .population import population
from .questions import question_effects
from .results import CurveFit, Fits, who
from .saturation import saturation
from .selection import CRITERIA, nearest, options

GRID_POINTS = 120
SMOOTHING = 5
"""Points of the running mean behind the gap of smoothed records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitConfig:
    """How a sweep is fitted.

    Attributes:
        form: ``exp``, ``hill``, ``power`` or ``auto``, which chooses by ``selection``, in every refit again.
        selection: ``aicc``, or ``tail``: the error of a fit to the first three quarters of a run on the last
            (AICc where a run has fewer than seven evaluations).
        metric: Metric column fitted.
        unit: ``rollouts``, ``tokens``, ``update_steps`` or ``gpu_hours`` (join ``timings`` for these).
        split: Split evaluated.
        problem_set: Problem set, needed when there are several.
        bootstrap: Refits.
        seed: Fixes the refits.
        points: ``all`` or ``records``: the points that break the record, which are biased upward.
        bin_width: Width of a record's bin of reward.
        window: Points of a centred running mean before records are sought; 1 takes them raw.
        group: A further column of the table; runs that differ in it are curves of their own.
        problems_per_batch: Only curves of this B_p: n against M (section 4, first setting); None takes all.
        batch_rollouts: Only curves of this B = B_p·n: B_p against n (second setting); None takes all. With
            neither the fit is joint over B_p and n (third setting).

    Raises:
        FrontierError: The form, the selection or the points are unknown, a width or window cannot be, or there
            are fewer than 20 refits.
    """

    form: str = "auto"
    selection: str = "aicc"
    metric: str = "avg_at_4"
    unit: str = "rollouts"
    split: str = "validation"
    problem_set: str | None = None
    bootstrap: int = 1000
    seed: int = 0
    points: str = "all"
    bin_width: float = 0.005
    window: int = 1
    group: str | None = None
    problems_per_batch: int | None = None
    batch_rollouts: int | None = None

    def __post_init__(self) -> None:
        if self.form not in ("auto", *FORMS):
            raise FrontierError(f"the form {self.form!r} is unknown; it has to be auto or one of {', '.join(FORMS)}")
        if self.selection not in CRITERIA:
            raise FrontierError(f"selection is {self.selection!r}; it has to be one of {', '.join(CRITERIA)}")
        if not (np.isfinite(self.bin_width) and self.bin_width >= 0):
            raise FrontierError(f"bin_width is {self.bin_width}; it has to be 0 or more")
        if self.window < 1 or self.window % 2 == 0:
            raise FrontierError(f"window is {self.window}; it has to be 1, 3, 5, …")
        if self.points not in ("all", "records"):
            raise FrontierError(f"points is {self.points!r}; it has to be all or records")
        if self.bootstrap < 20:
            raise FrontierError(f"bootstrap is {self.bootstrap}; an interval needs 20 refits or more")


def fit(evals: pl.DataFrame, config: FitConfig, *, pass_rates: pl.DataFrame | None = None) -> Fits:
    """Fit every curve of a sweep, its envelope and n*(C).

    Args:
        evals: An ``evals`` table.
        config: How.
        pass_rates: A ``pass_rates`` table of the same evaluations: with it errors are those of the metric, question by
            question, and intervals include the luck of which questions are asked.

    Returns:
        The fits; a curve that cannot be fitted is a result with a reason.

    Raises:
        FrontierError: The table holds no curve at all, or mixes problem sets, or the pass rates are of others.
    """
    found = curves(
        evals, metric=config.metric, unit=config.unit, split=config.split, problem_set=config.problem_set,
        group=config.group, pass_rates=pass_rates,
    )  # fmt: skip
    whole = found = _setting(found, config)
    if config.points == "records":
        found = [of_records(curve, bin_width=config.bin_width, window=config.window) for curve in whole]
    results = _fitted(found, whole, config)
    compute, point, refits, within, labels = _on_grid(results)
    n = np.array([size for size, _ in labels], dtype=np.float64)
    apart = differences(point, refits, within) if len(compute) else []
    own = [r.curve for r in results if r.parameters is not None]
    names = [who(c, own) for c in own]
    degrees = degrees_of(results)
    probability = best_shares(point, refits, within, degrees) if len(compute) else np.zeros((0, 0))
    # n*(C), everywhere: the n of the cell that is best most often.
    best = np.where(within.any(axis=0), probability.argmax(axis=0), -1) if len(compute) else np.zeros(0, dtype=int)
    return Fits(
        unit=config.unit,
        metric=config.metric,
        curves=tuple(results),
        compute=compute,
        crossovers=tuple(
            crossovers(compute, point, refits, within, apart, [size for size, _ in labels], names)
            if len(compute)
            else []
        ),
        n_star=_n_star(compute, best, refits, within, labels),
        probability=probability,
        degrees=degrees,
        envelope=_envelope(point, refits, within),
        carried=_carried(point, within),
        points=config.points,
        apart=tuple(apart),
        saturation=saturation(compute, best, refits, within, n) if len(compute) else None,
        selection=config.selection if config.form == "auto" else None,
        bin_width=config.bin_width,
        questions_sampled=pass_rates is not None,
    )


def _fitted(found: list[Curve], whole: list[Curve], config: FitConfig) -> list[CurveFit]:
    """Fit and refit every curve; ``whole`` are all points of those in ``found``."""
    forms = FORMS if config.form == "auto" else (config.form,)
    # Every form is fitted, also where one is asked for: whether they agree is a property of the data.
    every = [options(curve, FORMS, thorough=forms) for curve in found]
    results = [failed(curve) for curve in found]
    rng = np.random.default_rng(config.seed)
    usable = [i for i in range(len(found)) if every[i]]
    # Jointly for all curves: they ask the same questions.
    basis = [nearest(found[i], every[i]) for i in usable]
    asked = question_effects([found[i] for i in usable], basis, refits=config.bootstrap, rng=rng) if usable else None
    by_curve = None if asked is None else dict(zip(usable, asked, strict=True))
    # Curves of one value of the grouping column are one population: noise is never pooled over recipes.
    for group in dict.fromkeys(curve.group for curve in found):
        own = [i for i in usable if found[i].group == group]
        if own:
            fitted = population(
                [found[i] for i in own], [every[i] for i in own], forms, selection=config.selection,
                refits=config.bootstrap, rng=rng, questions=None if by_curve is None else [by_curve[i] for i in own],
            )  # fmt: skip
            for i, result in zip(own, fitted, strict=True):
                raw, smoothed = _gaps(whole[i], result, config)
                results[i] = replace(result, records_gap=raw, smoothed_records_gap=smoothed)
    return results


def _gaps(whole: Curve, result: CurveFit, config: FitConfig) -> tuple[float | None, float | None]:
    """How far above a fit of all points one of the records lies, raw and smoothed."""
    assert result.parameters is not None
    everything = result.parameters
    if config.points == "records":
        everything = options(whole, (everything.form,))[0].parameters
    return tuple(records_gap(whole, everything, config.bin_width, window) for window in (1, SMOOTHING))  # type: ignore[return-value]


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


def _interval(values: Array) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


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


def degrees_of(results: Sequence[CurveFit]) -> float:
    """Degrees of freedom behind the errors of differences: runs less curves, or with one seed those within the runs."""
    between = sum(r.curve.seeds - 1 for r in results if r.parameters is not None)
    return float(between or max(sum(r.degrees for r in results), 1.0))


def _envelope(point: Array, refits: Array, within: Array) -> Array:
    """Reward of the envelope and its 95 % interval, shape ``(3, points)``.

    Where the best curve's data end, its last reward is carried on: a run can be stopped before its budget is.
    """
    if not point.size:
        return np.zeros((3, 0))
    top = np.maximum.accumulate(np.where(within, refits, -np.inf).max(axis=1), axis=1)
    low, high = np.quantile(top, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return np.stack([np.maximum.accumulate(np.where(within, point, -np.inf).max(axis=0)), low, high])


def _carried(point: Array, within: Array) -> NDArray[np.bool_]:
    """Where the envelope is above every curve with data: a reward reached at less compute."""
    if not point.size:
        return np.zeros(0, dtype=np.bool_)
    own = np.where(within, point, -np.inf).max(axis=0)
    return np.asarray(own < np.maximum.accumulate(own), dtype=np.bool_)


def _n_star(compute: Array, best: np.ndarray, refits: Array, within: Array, labels: list[tuple[int, int]]) -> Sigmoid:
    if not len(compute):
        return Sigmoid(params=None, intervals={}, flags=(Flag.FIT_FAILED,))
    n = np.array([label[0] for label in labels], dtype=np.float64)
    known = best >= 0
    x = np.log10(compute[known])
    values = np.log2(n[best[known]])
    distinct = np.unique(values)
    flags = (Flag.K_UNIDENTIFIED,) if len(distinct) < 4 else ()
    if len(distinct) == 1:
        return Sigmoid(params=None, intervals={}, flags=flags, constant=int(2 ** distinct[0]))
    params = fit_sigmoid(x, values)
    intervals, draws = {}, {}
    # Two levels say where n* steps, not how steeply: a sigmoid's interval would mean nothing.
    if params and len(distinct) > 2:
        draws = fit_sigmoids(x, np.log2(n[winners(refits, within)[:, known]]), params)
        intervals = {k: _interval(v) for k, v in draws.items()}
    return Sigmoid(params=params, intervals=intervals, flags=flags, draws=draws)

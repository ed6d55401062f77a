"""Fitting a whole sweep: curves with intervals and flags, envelope, n*(C)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from ..data.curves import Array, Curve
from ..data.grouping import curves
from ..data.records import of_records
from ..errors import Flag, FrontierError
from ..fitting.crossovers import crossovers
from ..fitting.curve_fit import CurveFit, without_fit
from ..fitting.differences import differences
from ..fitting.envelope import CurvesOnGrid, envelope, on_grid
from ..fitting.forms import FORMS
from ..fitting.nstar import Sigmoid, fit_n_star
from ..fitting.pooling import best_shares
from ..fitting.population import fit_population
from ..fitting.questions import question_effects
from ..fitting.record_bias import records_gap
from ..fitting.saturation import saturation
from ..fitting.selection import CRITERIA, nearest, point_fits
from .frontier import FrontierPoint
from .results import Fits

SMOOTHING = 5
"""Points of the running mean behind the gap of smoothed records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitConfig:
    """How a sweep is fitted.

    Attributes:
        form: ``exp``, ``hill``, ``power`` or ``auto``, which chooses by ``selection``, again in every refit.
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
        FrontierError: The form, the selection or the points are unknown, the bin width is negative, the window is
            not a positive odd number, there are fewer than 20 refits, or the seed is negative.
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
            raise FrontierError(f"the form {self.form!r} is unknown; it must be auto or one of {', '.join(FORMS)}")
        if self.selection not in CRITERIA:
            raise FrontierError(f"selection is {self.selection!r}; it must be one of {', '.join(CRITERIA)}")
        if not (np.isfinite(self.bin_width) and self.bin_width >= 0):
            raise FrontierError(f"bin_width is {self.bin_width}; it must be 0 or more")
        if self.window < 1 or self.window % 2 == 0:
            raise FrontierError(f"window is {self.window}; it must be 1, 3, 5, …")
        if self.points not in ("all", "records"):
            raise FrontierError(f"points is {self.points!r}; it must be all or records")
        if self.bootstrap < 20:
            raise FrontierError(f"bootstrap is {self.bootstrap}; an interval needs 20 refits or more")
        if self.seed < 0:
            raise FrontierError(f"the seed is {self.seed}; it must be 0 or more")


def fit(evals: pl.DataFrame, config: FitConfig, *, pass_rates: pl.DataFrame | None = None) -> Fits:
    """Fit every curve of a sweep, its envelope and n*(C).

    Args:
        evals: An ``evals`` table.
        pass_rates: A ``pass_rates`` table of the same evaluations: with it errors are those of the metric, question by
            question, and intervals include the luck of which questions are asked.

    Returns:
        The fits; a curve that cannot be fitted is in them with the reason.

    Raises:
        FrontierError: The table holds no curve at all, or mixes problem sets, or the pass rates are of other
            evaluations.
    """
    found = curves(
        evals, metric=config.metric, unit=config.unit, split=config.split, problem_set=config.problem_set,
        group=config.group, pass_rates=pass_rates,
    )  # fmt: skip
    whole = found = of_setting(found, config)
    if config.points == "records":
        found = [of_records(curve, bin_width=config.bin_width, window=config.window) for curve in whole]
    results = _fitted(found, whole, config)
    fits = Fits(
        unit=config.unit, metric=config.metric, curves=tuple(results), frontier=(), crossovers=(),
        n_star=Sigmoid(params=None, intervals={}, flags=(Flag.FIT_FAILED,)), degrees=degrees_of(results),
        points=config.points, selection=config.selection if config.form == "auto" else None,
        bin_width=config.bin_width, questions_sampled=pass_rates is not None,
    )  # fmt: skip
    return _with_frontier(fits) if fits.fitted else fits


def _with_frontier(fits: Fits) -> Fits:
    """Add what the fitted curves say together: the envelope, its crossovers, n*(C) and where that levels off."""
    grid = on_grid(fits.fitted)
    compute, point, refits, within = grid.compute, grid.point, grid.refits, grid.within
    n = [c.curve.rollouts_per_problem for c in fits.fitted]
    names = [fits.named(i) for i in range(len(n))]
    apart = differences(point, refits, within)
    shares = best_shares(point, refits, np.isfinite(point), fits.degrees)
    # n*(C), everywhere: the n of the cell that is best most often.
    best = shares.argmax(axis=0)
    ns = np.array(n, dtype=np.float64)
    return replace(
        fits,
        frontier=_frontier(grid, shares),
        crossovers=tuple(crossovers(compute, point, refits, within, apart, n, names)),
        n_star=fit_n_star(compute, best, refits, ns),
        apart=tuple(apart),
        saturation=saturation(compute, best, refits, within, ns),
    )


def _frontier(grid: CurvesOnGrid, shares: Array) -> tuple[FrontierPoint, ...]:
    """The envelope as rows; ``shares`` has the shape ``(curves, points)``."""
    rewards = envelope(grid.point, grid.refits)
    lasting = ~grid.within[grid.best, np.arange(len(grid.compute))]
    return tuple(
        FrontierPoint(
            compute=float(compute), reward=float(reward), reward_low=float(low), reward_high=float(high),
            carried=bool(kept), shares=tuple(share.tolist()),
        )
        for compute, (reward, low, high), kept, share in zip(grid.compute, rewards.T, lasting, shares.T, strict=True)
    )  # fmt: skip


def _fitted(found: list[Curve], whole: list[Curve], config: FitConfig) -> list[CurveFit]:
    """Fit and refit every curve; ``whole`` are all points of those in ``found``."""
    forms = tuple(FORMS) if config.form == "auto" else (config.form,)
    # Every form is fitted, also where one is asked for: whether they agree is a property of the data.
    every = [point_fits(curve, tuple(FORMS), thorough=forms) for curve in found]
    results = [without_fit(curve) for curve in found]
    rng = np.random.default_rng(config.seed)
    usable = [i for i in range(len(found)) if every[i]]
    # Jointly for all curves: they ask the same questions.
    courses = [nearest(found[i], every[i]) for i in usable]
    asked = question_effects([found[i] for i in usable], courses, refits=config.bootstrap, rng=rng) if usable else None
    by_curve = None if asked is None else dict(zip(usable, asked, strict=True))
    # Curves of one value of the grouping column are one population: noise is never pooled over recipes.
    for group in dict.fromkeys(curve.group for curve in found):
        own = [i for i in usable if found[i].group == group]
        if own:
            fitted = fit_population(
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
        everything = point_fits(whole, (everything.form,))[0].parameters
    return tuple(records_gap(whole, everything, config.bin_width, window) for window in (1, SMOOTHING))  # type: ignore[return-value]


def of_setting(found: list[Curve], config: FitConfig) -> list[Curve]:
    """The curves of one of the three settings of section 4.

    Raises:
        FrontierError: No curve belongs to it.
    """
    problems, batch = config.problems_per_batch, config.batch_rollouts
    kept = [
        c for c in found
        if problems in (None, c.problems_per_batch) and batch in (None, c.problems_per_batch * c.rollouts_per_problem)
    ]  # fmt: skip
    if not kept:
        known = ", ".join(f"({c.problems_per_batch}, {c.rollouts_per_problem})" for c in found)
        raise FrontierError(
            f"no curve has B_p = {problems or 'any'} and B = {batch or 'any'}; the (B_p, n) are {known}"
        )
    return kept


def degrees_of(results: Sequence[CurveFit]) -> float:
    """Degrees of freedom of the errors of differences: runs minus curves, or with one seed those within the runs."""
    between = sum(r.curve.seeds - 1 for r in results if r.parameters is not None)
    return float(between or max(sum(r.degrees for r in results), 1.0))

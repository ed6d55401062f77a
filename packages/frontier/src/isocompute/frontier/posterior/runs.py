"""The runs of a sweep: one record each and all as padded arrays, with the errors and the noise of their evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.optimize import brentq, isotonic_regression
from scipy.stats import norm

from ..data.curves import (
    UNITS,
    Array,
    Mask,
    answers_of,
    binomial_error,
    binomial_errors,
    chosen_rows,
    refuse_one_seed,
    response_variance,
    trials_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting of a sweep.

    Attributes:
        learning_rate: The rate at the end of warm-up; None if the runs do not say.
        group: Value of the grouping column, or empty without one.
    """

    rollouts_per_problem: int
    problems_per_batch: int
    learning_rate: float | None = None
    group: str = ""

    @property
    def batch_rollouts(self) -> int:
        """B = B_p · n."""
        return self.problems_per_batch * self.rollouts_per_problem

    @property
    def key(self) -> tuple[int, int, str]:
        """Identity of the setting apart from its learning rate; settings are listed in this order."""
        return self.rollouts_per_problem, self.problems_per_batch, self.group


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """All runs of one posterior.

    Attributes:
        cells: The distinct settings.
        cell: Index of each run's cell, shape ``(runs,)``.
        compute: Compute of each evaluation, ascending, padded by 1, shape ``(runs, points)``.
        reward: The metric, padded by 0.
        error: Standard error within the run, padded by 1.
        seen: False for padding.
        trials: Responses behind an evaluation, same shape as ``compute``; None if the error is not binomial.
        error_is_known: True if noise is at least ``error``; otherwise only ratios of errors are meaningful.
        base: Index of each run's base, shape ``(runs,)``.
        bases: What the runs are draws of: base models, or base models with their problem sets.
    """

    cells: tuple[Setting, ...]
    cell: NDArray[np.int64]
    compute: Array
    reward: Array
    error: Array
    seen: Mask
    base: NDArray[np.int64]
    trials: Array | None = None
    error_is_known: bool = True
    bases: tuple[str, ...] = ("",)

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Runs:
        """Collect one or more runs; trials are used only if all have them."""
        cells = tuple(dict.fromkeys(run.cell for run in runs))
        bases = tuple(dict.fromkeys(run.base for run in runs))
        trials = [run.trials for run in runs if run.trials is not None]
        lengths = np.array([len(run.compute) for run in runs])
        return cls(
            cells=cells,
            cell=np.array([cells.index(run.cell) for run in runs], dtype=np.int64),
            compute=padded([run.compute for run in runs], 1.0),
            reward=padded([run.reward for run in runs], 0.0),
            error=padded([run.error for run in runs], 1.0),
            seen=np.arange(lengths.max()) < lengths[:, None],
            trials=padded(trials, 1.0) if len(trials) == len(runs) else None,
            error_is_known=all(run.error_is_known for run in runs),
            bases=bases,
            base=np.array([bases.index(run.base) for run in runs], dtype=np.int64),
        )

    @property
    def last(self) -> Array:
        """Compute of each run's last evaluation, shape ``(runs,)``."""
        return np.asarray(np.where(self.seen, self.compute, 0.0).max(axis=1))

    def only(self, which: NDArray[np.int64]) -> Runs:
        """A subset of the runs, with only their settings and base models."""
        cells, cell = np.unique(self.cell[which], return_inverse=True)
        bases, base = np.unique(self.base[which], return_inverse=True)
        return replace(
            self,
            cells=tuple(self.cells[k] for k in cells),
            cell=cell,
            bases=tuple(self.bases[k] for k in bases),
            base=base,
            **_parts(self, ("compute", "reward", "error", "seen", "trials"), which),
        )

    def with_errors_at(self, reward: Array) -> Runs:
        """The same runs, with binomial errors computed at the fitted reward instead of the measured one."""
        if self.trials is None:
            return self
        return replace(self, error=np.where(self.seen, _error_at(reward, self.trials), 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """The curves of a sweep: one for each cell of each base model that has runs.

    Attributes:
        base: Index of each curve's base model, shape ``(curves,)``.
        cell: Index of its cell.
        of_run: Index of each run's curve, shape ``(runs,)``.
        members: Membership of runs in curves, as ones and zeros, shape ``(runs, curves)``.
        of_base: Membership of curves in base models, shape ``(curves, bases)``.
        of_cell: Membership of curves in cells, shape ``(curves, cells)``.
    """

    base: NDArray[np.int64]
    cell: NDArray[np.int64]
    of_run: NDArray[np.int64]
    members: Array
    of_base: Array
    of_cell: Array

    @classmethod
    def of(cls, runs: Runs) -> Curves:
        """The curves of the given runs."""
        every = np.stack([runs.base, runs.cell], axis=1)
        pairs, of_run = np.unique(every, axis=0, return_inverse=True)
        (base, cell), of_run = pairs.T, of_run.reshape(-1)
        return cls(
            base=base,
            cell=cell,
            of_run=of_run,
            members=members(of_run, len(cell)),
            of_base=members(base, len(runs.bases)),
            of_cell=members(cell, len(runs.cells)),
        )


def members(index: NDArray[np.int64], count: int) -> Array:
    """Membership of items in groups, as ones and zeros, shape ``(items, groups)``."""
    return np.asarray((index[:, None] == np.arange(count)).astype(np.float64))


def padded(rows: Sequence[Array], fill: float) -> Array:
    """Rows of any length as one array, shape ``(rows, longest)``, padded with ``fill``."""
    whole = np.full((len(rows), max(map(len, rows))), fill)
    for row, values in zip(whole, rows, strict=True):
        row[: len(values)] = values
    return whole


CELL = ("problems_per_batch", "rollouts_per_problem", "learning_rate")
POPULATION = ("base_model",)
"""Columns whose values are draws from a population: a decision should hold for another value like them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The evaluations of one run, sorted by compute.

    Attributes:
        name: For display, such as ``n = 8, seed 1``; includes other settings if they differ in the sweep.
        compute: In the unit of the fit, shape ``(evaluations,)``.
        reward: The metric. It may lie outside 0 to 1 if a run was logged in another unit.
        error: Standard error of each evaluation, at the measured reward.
        trials: Number of independent responses that each evaluation is worth; None if its error is not binomial.
        error_is_known: True if the error is that of sampling responses; otherwise only ratios of errors are meaningful.
        base: The draw that it belongs to, such as its base model; empty if there is only one.
        answers: Each question's contribution to each evaluation, shape ``(evaluations, questions)``; None without pass
            rates.
    """

    name: str
    run_id: str | None
    cell: Setting
    seed: int
    compute: Array
    reward: Array
    error: Array
    trials: Array | None = None
    error_is_known: bool = True
    base: str = ""
    answers: Array | None = None

    @property
    def last(self) -> float:
        """Compute of the last evaluation."""
        return float(self.compute[-1])

    def error_at(self, rate: Array) -> Array:
        """Standard errors of its evaluations if these were their true rewards: a share of 0 has an error too."""
        if self.trials is None:
            return self.error
        return _error_at(rate, self.trials)

    def without(self, dropped: Sequence[int]) -> Run:
        """The run without some of its evaluations."""
        kept = np.delete(np.arange(len(self.compute)), list(dropped))
        return replace(self, **_parts(self, ("compute", "reward", "error", "trials", "answers"), kept))


def _error_at(rate: Array, trials: Array) -> Array:
    return binomial_error(np.clip(rate, 0.5 / trials, 1 - 0.5 / trials), trials)


def _parts(whole: Run | Runs, names: Sequence[str], which: NDArray[np.int64]) -> dict[str, Any]:
    """Select rows of those named arrays that are not None."""
    arrays = {name: getattr(whole, name) for name in names}
    return {name: values[which] for name, values in arrays.items() if values is not None}


def runs_of(
    evals: pl.DataFrame,
    *,
    metric: str,
    unit: str,
    split: str,
    problem_set: str | None = None,
    group: str | None = None,
    population: Sequence[str] = POPULATION,
    pass_rates: pl.DataFrame | None = None,
) -> list[Run]:
    """The runs of an ``evals`` table, sorted by base model, cell and seed.

    Args:
        problem_set: Problem set, needed if there are several and they are not part of the population.
        population: Columns whose values are draws; absent ones are ignored.
        group: A further column, such as the recipe: runs that differ in it belong to different cells.
        pass_rates: A ``pass_rates`` table of the runs, for the metric's errors, question by question.

    Raises:
        FrontierError: As for ``chosen_rows``; or two runs share cell and seed, or the pass rates do not belong to the
            evaluations.
    """
    rows = chosen_rows(
        evals,
        metric=metric,
        unit=unit,
        split=split,
        problem_set=problem_set,
        group=group,
        mixed="problem_set" in population,
    )
    if "learning_rate" not in rows.columns:
        rows = rows.with_columns(learning_rate=pl.lit(None, dtype=pl.Float64))
    rows = rows.with_columns(pl.col("learning_rate").cast(pl.Float64))
    error, known, trials, answers = _errors(rows, metric, pass_rates)
    named = group if group not in (None, *CELL) else None
    draws = [c for c in population if c in rows.columns and rows[c].n_unique() > 1]
    keys = [*CELL, *([named] if named else []), *draws, "seed"]
    varying = [k for k in keys[:-1] if rows[k].n_unique() > 1]
    others = [k for k in keys[:-1] if k != "learning_rate"]
    if rows.select(keys[:-1]).n_unique() == rows.select(others).n_unique():
        # A rate that follows from the other settings does not distinguish runs.
        varying = [k for k in varying if k != "learning_rate"]
    refuse_one_seed(rows, keys)
    runs = []
    for key, part in rows.with_row_index("row").group_by(keys, maintain_order=True):
        own = part.sort(UNITS[unit], metric)
        values: dict[str, Any] = dict(zip(keys, key, strict=True))
        ids = own["run_id"].drop_nulls().to_list() if "run_id" in own.columns else []
        where, reward = own["row"].to_numpy(), own[metric].to_numpy().astype(np.float64)
        runs.append(
            Run(
                name=_name(values, varying),
                run_id=str(ids[0]) if ids else None,
                cell=Setting(
                    **{column: values[column] for column in CELL}, group=f"{named} = {values[named]}" if named else ""
                ),
                seed=values["seed"],
                compute=own[UNITS[unit]].to_numpy().astype(np.float64),
                reward=reward,
                error=_scatter(reward) if error is None else error[where],
                trials=None if trials is None else trials[where],
                error_is_known=known,
                base=", ".join(str(values[c]) for c in draws),
                answers=None if answers is None else answers[where],
            )
        )
    return sorted(runs, key=_order)


def _errors(
    rows: pl.DataFrame, metric: str, pass_rates: pl.DataFrame | None
) -> tuple[Array | None, bool, Array | None, Array | None]:
    """Standard errors of evaluations, whether they are known, the equivalent trials, and the answers."""
    reward = rows[metric].to_numpy().astype(np.float64)
    columns = [rows[c] for c in ("questions", "samples") if c in rows.columns]
    trials, known = None, False
    if len(columns) == 2 and not any(column.null_count() for column in columns):
        trials, known = trials_of(metric, *(column.to_numpy() for column in columns))
    if pass_rates is None:
        # A run in percent is judged later; its error is meaningless, but must be a number.
        return None if trials is None else binomial_errors(reward.clip(0, 1), trials), known, trials, None
    answers, rates, samples = answers_of(pass_rates, rows, metric, reward)
    error = np.sqrt(response_variance(metric, rates, samples) / answers.shape[1])
    if trials is not None:
        # Questions of unequal difficulty are worth more responses than were sampled.
        rate = (reward * trials + 0.5) / (trials + 1)
        trials = rate * (1 - rate) / error**2
    return error, True, trials, answers


def _scatter(reward: Array) -> Array:
    """Error if nothing is known about the questions: the typical difference between neighbouring evaluations."""
    steps = np.abs(np.diff(reward))
    # The median of |N(0, 2σ²)| is 0.954 σ.
    return np.full(len(reward), max(float(np.median(steps)) / 0.954 if len(steps) else 0.0, 1e-4))


def _name(values: dict[str, Any], varying: Sequence[str]) -> str:
    parts = [f"n = {values['rollouts_per_problem']}"]
    for column in varying:
        value = values[column]
        if column == "problems_per_batch":
            parts.append(f"B_p = {value}")
        elif column == "learning_rate":
            parts.append("no learning rate" if value is None else f"learning rate {value:.3g}")
        elif column in POPULATION:
            parts.append(f"{column.replace('_', ' ')} {value}")
        elif column != "rollouts_per_problem":
            parts.append(f"{column} = {value}")
    return ", ".join([*parts, f"seed {values['seed']}"])


def _order(run: Run) -> tuple[object, ...]:
    cell = run.cell
    rate = -1.0 if cell.learning_rate is None else cell.learning_rate
    return run.base, cell.problems_per_batch, cell.rollouts_per_problem, rate, cell.group, run.seed


SPIKE = 5.0
"""An evaluation is a spike beyond this many standard deviations from both neighbours. Of 1,000 evaluations with normal
noise none lies there, and noise is known to about a tenth."""
OUTSIDE = 0.5
"""A spike lies outside the range of its neighbours by more than this share of that range: in a steep rise, even a good
evaluation is far from the line between them."""
LOST, AGREEING = 0.5, 3.0
"""The last evaluation is a spike if it lost this share of the gain, and this multiple of the loss just before."""
OWN_SCATTER = 8
"""Evaluations needed to estimate a run's noise from its own scatter."""


def spikes(run: Run, factor: float) -> Mask:
    """Single evaluations, or two in a row, that lie far outside the range of their neighbours.

    The worst is removed first, and the others are judged again without it: a good evaluation between two bad ones is as
    far from its neighbours as they are. Low ones go first, since a broken evaluation is nearly always too low. The last
    evaluation is a spike if it alone lost half of the gain: a collapse would need a second one.
    """
    if len(run.reward) >= OWN_SCATTER:
        # A spike spoils three differences, so a run with several spikes is judged by its smaller differences.
        factor = max(factor, excess([run], 0.25))
    left, kept = run, np.arange(len(run.reward))
    while True:
        for below, length in ((True, 1), (True, 2), (False, 1), (False, 2)):
            worst = _worst(left, factor, length, below)
            if len(worst):
                left, kept = left.without(worst.tolist()), np.delete(kept, worst)
                break
        else:
            kept = kept[: len(kept) - _falls_at_end(left, factor)]
            return np.isin(np.arange(len(run.reward)), kept, invert=True)


def _worst(run: Run, factor: float, length: int, below: bool) -> NDArray[np.int64]:
    """Indices of the stretch farthest below or above its neighbours; empty if no stretch is far."""
    usual = expected_error(run)
    off, spread = off_neighbours(position(run.compute), run.reward, usual, length)
    inner = np.arange(len(off))[:, None] + 1 + np.arange(length)
    for j in range(length):
        # Use the error at the reward that the evaluation should have had: at a share of 0 it would be almost none.
        rate = run.reward.copy()
        rate[inner[:, j]] -= off[:, j]
        spread[:, j] = np.maximum(spread[:, j], run.error_at(rate)[inner[:, j]])
    own, ends = run.reward[inner], run.reward[np.stack([inner[:, 0] - 1, inner[:, -1] + 1], axis=1)]
    low, high = ends.min(axis=1, keepdims=True), ends.max(axis=1, keepdims=True)
    outside = low - own if below else own - high
    far = (outside > OUTSIDE * (high - low)) & (outside > 0) & (np.abs(off) > SPIKE * factor * spread)
    size = np.where(far.all(axis=1), np.abs(off / spread).min(axis=1), 0.0)
    return inner[int(np.argmax(size))] if size.any() else inner[:0].ravel()


def _falls_at_end(run: Run, factor: float) -> bool:
    """Return whether the last evaluation alone lost half of the run's gain."""
    if len(run.reward) < 4:
        return False
    first, before, level, last = (float(run.reward[i]) for i in (0, -3, -2, -1))
    usual = (before + level) / 2
    # The error at the reward that it should have had, combined with that of the two before it.
    error = float(run.error_at(np.full(len(run.reward), usual))[-1]) * float(np.sqrt(1.5))
    drop = usual - last
    return drop > max(SPIKE * factor * error, LOST * (usual - min(first, last)), AGREEING * (before - level))


def excess(runs: Sequence[Run], level: float = 0.5) -> float:
    """Ratio of noise to stated errors, from differences between neighbouring evaluations; robust to a few bad runs.

    Runs with few evaluations are ignored: between distant neighbours, the curve itself bends.

    Args:
        level: Quantile of the differences used for the estimate.
    """
    several = [run for run in runs if len(run.reward) >= OWN_SCATTER]
    units = [units_off(run.compute, run.reward, expected_error(run)) for run in several]
    usual = float(norm.ppf((1 + level) / 2))
    factor = float(np.quantile(np.concatenate(units), level)) / usual if units else 1.0
    return max(factor, 1.0 if all(run.error_is_known for run in runs) else 0.1)


def units_off(compute: Array, reward: Array, error: Array) -> Array:
    """Distance of each inner evaluation from the line through its neighbours, in standard errors."""
    off, spread = off_neighbours(position(compute), reward, error)
    return np.asarray(np.abs(off[:, 0]) / spread[:, 0])


def off_neighbours(at: Array, reward: Array, error: Array, length: int = 1) -> tuple[Array, Array]:
    """Distances of stretches of evaluations from the line between the evaluations before and after.

    Returns:
        The differences and their standard deviations, both ``(stretches, length)``.
    """
    count = len(reward) - length - 1
    if count < 1:
        return np.zeros((0, length)), np.zeros((0, length))
    inner = np.arange(count)[:, None] + 1 + np.arange(length)
    before, after = np.arange(count)[:, None], np.arange(count)[:, None] + length + 1
    share = (at[inner] - at[before]) / np.maximum(at[after] - at[before], 1e-12)
    off = reward[inner] - reward[before] * (1 - share) - reward[after] * share
    spread = np.sqrt(error[inner] ** 2 + ((1 - share) * error[before]) ** 2 + (share * error[after]) ** 2)
    return off, spread


def expected_error(run: Run) -> Array:
    """Standard errors at the local median reward of an evaluation and its neighbours."""
    return np.array(run.error_at(local_median(run.reward)))


def local_median(reward: Array) -> Array:
    """The median of each value and its neighbours; at the ends, of the three nearest values."""
    if len(reward) < 3:
        return reward
    inner = np.median(np.lib.stride_tricks.sliding_window_view(reward, 3), axis=1)
    return np.concatenate([inner[:1], inner, inner[-1:]])


def position(compute: Array) -> Array:
    """Positions of evaluations in log compute, ascending; finite for the start."""
    positive = compute[compute > 0]
    return np.log1p(compute / (positive[0] if len(positive) else 1.0))


POINTS = 50
"""Most evaluations of a run that are fitted individually: a curve has four numbers and bends once."""
REACH = 3
"""Number of bins on either side that a bin is compared with."""


def binned(run: Run) -> Run:
    """The run in bins of equal width in log compute; evaluations at compute 0 form their own point.

    Thousands of evaluations within one doubling of compute share the slow wander of the run, so a bin's mean is less
    certain than that of as many independent evaluations. Its uncertainty is estimated from the differences between
    neighbouring bins.
    """
    if len(run.compute) <= POINTS:
        return run
    started = run.compute > 0
    positive = run.compute[started]
    edges = np.geomspace(positive[0], positive[-1], POINTS)[1:-1]
    own = np.where(started, 1 + np.searchsorted(edges, run.compute, side="right"), 0)
    _, own, members = np.unique(own, return_inverse=True, return_counts=True)
    compute, reward = (np.bincount(own, values) / members for values in (run.compute, run.reward))
    # Before bins are compared, use the errors of independent evaluations.
    sampled = np.sqrt(np.bincount(own, run.error_at(local_median(run.reward)) ** 2)) / members
    variance = sampled**2
    later = compute > 0
    if not run.error_is_known:
        variance = _within(run, own, members)
    variance[later] += wander(np.log(compute[later]), reward[later], variance[later])
    rate = np.clip(reward, 0.5 / members, 1 - 0.5 / members)
    return replace(
        run,
        compute=compute,
        reward=reward,
        error=np.sqrt(variance),
        trials=None if run.trials is None else np.maximum(rate * (1 - rate) / variance, 1.0),
    )


def _within(run: Run, own: NDArray[np.int64], members: NDArray[np.int64]) -> Array:
    """Variance of each bin's mean for independent evaluations, from the scatter within all bins."""
    steps = np.diff(run.reward)[np.diff(own) == 0]
    # The difference of neighbours has twice their variance, and excludes the trend.
    variance = (np.median(np.abs(steps)) / 0.6745) ** 2 / 2 if len(steps) else float(run.error[0]) ** 2
    return np.asarray(np.maximum(variance, 1e-8) / members)


def wander(at: Array, reward: Array, variance: Array) -> float:
    """Variance by which bins scatter beyond that of independent evaluations.

    It is the larger of two estimates. The scatter about a parabola through the neighbours measures changes from bin to
    bin. The scatter about the best rising curve measures slower changes: a run that falls and rises again wanders.

    Args:
        at: Position of each bin, ascending.
        variance: Variance of each bin's mean, for independent evaluations.
    """
    if len(reward) < 2 * REACH + 2:
        return 0.0
    off, own, scale = [], [], []
    for i in range(len(reward)):
        near = np.arange(max(0, i - REACH), min(len(reward), i + REACH + 1))
        near = near[near != i]
        # The value of the parabola at the bin itself, as weights of its neighbours.
        weights = np.linalg.pinv(np.vander(at[near] - at[i], 3))[-1]
        off.append(reward[i] - weights @ reward[near])
        own.append(variance[i] + (weights**2) @ variance[near])
        scale.append(1 + (weights**2).sum())
    rising = isotonic_regression(reward, weights=1 / (variance + np.median(variance))).x
    return max(
        between(np.array(off), np.array(own), np.array(scale)), between(reward - rising, variance, np.ones(len(reward)))
    )


def between(off: Array, variance: Array, scale: Array) -> float:
    """The b ≥ 0 for which off²/(variance + b·scale) is 1 on average (Paule and Mandel, 1982)."""

    def left(b: float) -> float:
        return float(np.mean(off**2 / (variance + b * scale))) - 1.0

    most = float(np.max(off**2 / scale))
    if left(0.0) <= 0:
        return 0.0
    return float(brentq(left, 0.0, most))

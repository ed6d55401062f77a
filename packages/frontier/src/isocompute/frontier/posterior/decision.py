"""Decisions: the setting of least expected regret at a budget, n* over compute, failure rates, and what to run next.

R_k(d) is the reward that setting k is expected to reach at a budget in draw d, failures included. The regret of k is
the mean of max_j R_j − R_k: the average gain if the truth were known. The setting of least regret is the one with the
highest mean, so a wide interval is no advantage. All settings enter the maximum and P(best), even those about which
little is known at the budget; such a setting is not chosen while there is another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from ..data.curves import Array, Mask
from .posterior import Posterior
from .runs import OWN_SCATTER, Runs, Setting, units_off

TIE = 0.001
"""Expected regrets within this reward count as equal: no evaluation resolves less."""
NEAR = 0.005
"""Mean reward that a setting may lose and still count as equally good in practice."""
DECIDED = 0.775
"""P(best) from which on an n is no longer called undecided: rounded to 5 points it prints as 80 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One setting at a budget.

    Attributes:
        reward: Mean reward of a run that does not fail.
        interval: Its 95 % interval.
        known: Whether enough is known about it at the budget to choose it.
        regret: Expected loss relative to the best setting, if that were known.
        loss: Mean loss relative to the chosen setting; 0 for the chosen one.
        loss_interval: Its 95 % interval.
        probability_best: Share of the draws in which it is best.
        failure: Probability that the next run fails.
        reach: The budget over the compute of its last evaluation; above 1 it is extrapolated.
    """

    cell: Setting
    reward: float
    interval: tuple[float, float]
    regret: float
    loss: float
    loss_interval: tuple[float, float]
    probability_best: float
    failure: float
    reach: float
    known: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """All settings at one budget.

    Attributes:
        options: The chosen one first, then the others by regret.
    """

    compute: float
    options: tuple[Option, ...]

    @property
    def chosen(self) -> Option:
        """The setting of least regret among the known ones."""
        return self.options[0]

    @property
    def unknown(self) -> tuple[Setting, ...]:
        """Settings about which too little is known at the budget to choose them."""
        return tuple(o.cell for o in self.options if not o.known)

    def probability_of(self, cell: Setting) -> float:
        """P(best) of an n (and B_p and group), at any learning rate."""
        return sum(o.probability_best for o in self.options if o.cell.key == cell.key)

    @property
    def rivals(self) -> list[Option]:
        """For each other n, the option of least regret, sorted by regret."""
        return [o for o in at_best_rates(self.options) if o.cell.key != self.chosen.cell.key]

    def near(self) -> list[Option]:
        """Settings that lose at most ``NEAR`` on average to the chosen one, which comes first."""
        return [o for o in self.options if o.loss <= NEAR]

    @property
    def known(self) -> bool:
        """Return whether one n is best with probability 95 %."""
        return self.probability_of(self.chosen.cell) >= 0.95

    @property
    def undecided(self) -> tuple[Option, ...]:
        """The chosen setting and the first other n if the data do not decide between them; otherwise empty.

        The data do not decide if P(best) of the chosen n is below 80 % and the interval of the other's loss contains 0.
        """
        if self.probability_of(self.chosen.cell) >= DECIDED or not self.rivals:
            return ()
        first = self.rivals[0]
        return (self.chosen, first) if first.loss_interval[0] <= 0 <= first.loss_interval[1] else ()


def at_best_rates(options: Sequence[Option]) -> list[Option]:
    """The first option of each n, B_p and group."""
    first: dict[tuple[int, int, str], Option] = {}
    for option in options:
        first.setdefault(option.cell.key, option)
    return list(first.values())


def decide(
    compute: float,
    cells: tuple[Setting, ...],
    whole: Array,
    rewards: Array,
    failing: Array,
    reach: Array,
    known: Mask,
) -> Decision:
    """Rank settings at one budget.

    Args:
        whole: Draws of the expected reward, failures included, shape ``(draws, cells)``.
        rewards: Draws of the reward of a run that does not fail, likewise.
        failing: Mean probability that a run fails, shape ``(cells,)``.
        reach: The budget over the compute of the last evaluation, shape ``(cells,)``.
        known: Which settings may be chosen, shape ``(cells,)``.
    """
    # Computed per draw, so that rounding makes no regret negative.
    regret = (whole.max(axis=1, keepdims=True) - whole).mean(axis=0)
    leads = np.bincount(whole.argmax(axis=1), minlength=len(cells)) / len(whole)
    first = _least(np.where(known, regret, np.inf), reach, cells)
    order = [first, *(k for k in np.argsort(regret, kind="stable").tolist() if k != first)]
    loss = whole[:, [first]] - whole
    low, high = np.quantile(rewards, [0.025, 0.975], axis=0)
    loss_low, loss_high = np.quantile(loss, [0.025, 0.975], axis=0)
    return Decision(
        compute=compute,
        options=tuple(
            Option(
                cell=cells[k],
                reward=float(rewards[:, k].mean()),
                interval=(float(low[k]), float(high[k])),
                regret=float(regret[k]),
                loss=float(loss[:, k].mean()),
                loss_interval=(float(loss_low[k]), float(loss_high[k])),
                probability_best=float(leads[k]),
                failure=float(failing[k]),
                reach=float(reach[k]),
                known=bool(known[k]),
            )
            for k in order
        ),
    )


def _least(regret: Array, reach: Array, cells: tuple[Setting, ...]) -> int:
    """Break ties in regret: prefer settings measured at this budget, then fewer steps."""
    tied = np.flatnonzero(regret <= regret.min() + TIE)
    return int(min(tied, key=lambda k: (reach[k] > 1, -cells[k].batch_rollouts, regret[k])))


POINTS = 48
"""Number of budgets on the path, uniform in logarithms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The point at which one setting takes over from another.

    Attributes:
        before: Index of the setting chosen below.
        after: Index of the setting chosen above.
        compute: Where the choice changes.
        interval: 90 % interval of the compute at which the second overtakes the first for the last time. An end is None
            if more than 5 % of the draws have no such compute on that side.
    """

    before: int
    after: int
    compute: float
    interval: tuple[float | None, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionPath:
    """The choice over a range of budgets.

    Attributes:
        compute: Budgets, shape ``(points,)``.
        chosen: Index of the setting chosen at each budget, shape ``(points,)``.
        probability_best: For each setting, shape ``(points, cells)``.
        changes: Where the choice changes for good.
    """

    compute: Array
    chosen: np.ndarray
    probability_best: Array
    changes: tuple[Change, ...]


def path_of(
    first: float,
    last: float,
    cells: tuple[Setting, ...],
    decide_at: Callable[[float], Decision],
    whole: Callable[[Array], Array],
) -> DecisionPath:
    """The path between two budgets.

    Args:
        whole: Returns draws of the rewards at given budgets, failures included, shape ``(draws, cells, points)``.
    """
    compute = np.geomspace(first, last, POINTS)
    decisions = [decide_at(float(c)) for c in compute]
    shares = [{option.cell: option.probability_best for option in d.options} for d in decisions]
    chosen = np.array([cells.index(d.chosen.cell) for d in decisions])
    rewards = whole(compute)
    changes = []
    for k in np.flatnonzero(chosen[1:] != chosen[:-1]):
        before, after = int(chosen[k]), int(chosen[k + 1])
        where = float(np.sqrt(compute[k] * compute[k + 1]))
        low, high = _overtakes(compute, rewards[:, after] - rewards[:, before])
        # Means may cross when most draws have crossed long before.
        interval = (low and min(low, where), high and max(high, where))
        changes.append(Change(before=before, after=after, compute=where, interval=interval))
    share = np.array([[own[cell] for cell in cells] for own in shares])
    return DecisionPath(compute=compute, chosen=chosen, probability_best=share, changes=tuple(changes))


def _overtakes(compute: Array, lead: Array) -> tuple[float | None, float | None]:
    """90 % interval of the compute from which each draw's lead, shape ``(draws, points)``, stays above 0."""
    ahead = lead > 0
    behind = ~ahead
    last_behind = ahead.shape[1] - 1 - behind[:, ::-1].argmax(axis=1)
    where = np.where(behind.any(axis=1), compute[np.minimum(last_behind + 1, len(compute) - 1)], -np.inf)
    where = np.where(ahead[:, -1], where, np.inf)
    low, high = np.quantile(where, [0.05, 0.95], method="inverted_cdf")
    return (float(low) if np.isfinite(low) else None, float(high) if np.isfinite(high) else None)


PRIOR = np.array([[-2.6, 0.0, 0.7], [1.0, 0.3, 1.0]])
"""Prior mean and standard deviation of b_0, b_n and b_rate: about 7 % before the data, and more at higher rates."""
DEPARTURES = (0.3, 0.8, 1.6, 3.0)
"""Grid for τ."""


def failure_rates(
    failed: NDArray[np.int64], runs: NDArray[np.int64], at: Array, *, draws: int, rng: np.random.Generator
) -> Array:
    """Draws of the probability that the next run of each setting fails, shape ``(draws, settings)``.

    A logistic regression on n and rate, with departures of single settings:

        logit P(fail) = b_0 + b_n·log2 n + b_rate·log2(rate over √B) + departure

    The priors are normal. Departures are normal; their deviation τ is drawn from a grid, weighted by the evidence from
    Laplace's method. Settings that share nothing keep their own counts, and one failure in four runs does not make a
    rate of a quarter.

    Args:
        failed: Failed runs of each setting, shape ``(settings,)``.
        runs: All runs of each setting; 0 for a setting that was not run.
        at: log2 n and log2 of the rate over √B of each setting, relative to their means, shape ``(settings, 2)``.
    """
    count = len(runs)
    design = np.concatenate([np.ones((count, 1)), at, np.eye(count)], axis=1)
    mean = np.concatenate([PRIOR[0], np.zeros(count)])
    evidence, drawn = [], []
    for deviation in DEPARTURES:
        precision = np.concatenate([PRIOR[1], np.full(count, deviation)]) ** -2.0
        top, hessian, value = _mode(design, failed, runs, mean, precision)
        _, determinant = np.linalg.slogdet(hessian)
        evidence.append(value + 0.5 * np.log(precision).sum() - 0.5 * determinant)
        root = np.linalg.cholesky(np.linalg.inv(hessian))
        drawn.append((top + rng.standard_normal((draws, len(top))) @ root.T) @ design.T)
    weights = np.exp(np.array(evidence) - max(evidence))
    which = rng.choice(len(DEPARTURES), size=draws, p=weights / weights.sum())
    return np.asarray(1 / (1 + np.exp(-np.stack(drawn)[which, np.arange(draws)])))


def _mode(
    design: Array, failed: NDArray[np.int64], runs: NDArray[np.int64], mean: Array, precision: Array
) -> tuple[Array, Array, float]:
    """Mode of the log-density by Newton's method, the curvature there, and its value there."""
    beta = mean.copy()
    for _ in range(50):
        rate = 1 / (1 + np.exp(-(design @ beta)))
        gradient = design.T @ (failed - runs * rate) - precision * (beta - mean)
        hessian = design.T @ (design * (runs * rate * (1 - rate))[:, None]) + np.diag(precision)
        step = np.linalg.solve(hessian, gradient)
        # A full step overshoots if all runs of a setting failed.
        beta = beta + step / max(1.0, float(np.abs(step).max()) / 2)
        if np.abs(step).max() < 1e-10:
            break
    line = design @ beta
    value = float((failed * line - runs * np.logaddexp(0, line)).sum() - 0.5 * (precision * (beta - mean) ** 2).sum())
    return beta, hessian, value


POWER = 2.8016
"""Sum of the normal quantiles at 97.5 % and at 80 %: 1.96 + 0.84."""
MOST_SEEDS = 25
"""More seeds per setting than this are impractical."""
SEEDS = 16
"""Draws of a measurement's noise over which its value is averaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A possible run.

    Attributes:
        kind: ``extend`` all runs of a setting, run another ``seed`` of it, or ``open`` one that was not run: another n,
            or the chosen n at another learning rate.
        until: Compute that its runs would reach.
        rollouts: Its cost, in the unit of the fit.
        value: Expected reduction of regret at the budget.
        hours: Its cost in GPU-hours, if timings are known.
    """

    kind: str
    cell: Setting
    until: float
    rollouts: float
    value: float
    hours: float | None = None

    @property
    def rate(self) -> float:
        """Expected reduction of regret per unit of compute."""
        return self.value / self.rollouts


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Ranked actions before a decision at one budget.

    Attributes:
        regret: Expected loss of deciding now, relative to the best setting if that were known.
        chosen: The setting that would be chosen now.
        actions: Sorted by expected reduction of regret per unit of compute, the best first.
        dominated: Settings with P(best) below 1 %, which can be stopped.
        pair: Settings to tell apart; None if there is only one setting.
        difference: Root mean square, over the draws, of the difference of their rewards.
        seeds: Seeds of each, including those that were run, that would tell the two apart in four sweeps of five if
            they differed by ``difference``; None if ``MOST_SEEDS`` would not suffice.
    """

    compute: float
    regret: float
    chosen: Setting
    actions: tuple[Action, ...]
    dominated: tuple[Setting, ...]
    pair: tuple[Setting, Setting] | None
    difference: float
    seeds: int | None
    same_hours: Decision | None = None

    @property
    def done(self) -> bool:
        """Whether no action is expected to gain as much as an evaluation resolves."""
        return all(action.value < TIE for action in self.actions)


def value_of(rewards: Array, measured: Array, noise: Array, *, rng: np.random.Generator) -> float:
    """Expected gain of choosing after a measurement over choosing now.

    This is the expected value of sample information (Raiffa and Schlaifer, 1961): the value of the best choice after
    the measurement, less that of the best choice now. Expected rewards given the measurement come from regressing the
    rewards on it over the draws (Strong, Oakley, Brennan and Breeze, 2015), so no refit is needed.

    Args:
        rewards: Draws of the reward of every setting at the budget, shape ``(draws, settings)``.
        measured: Draws of the noiseless measurement, shape ``(draws,)``.
        noise: Standard deviation of the measurement in each draw, shape ``(draws,)``.
    """
    now = float(rewards.mean(axis=0).max())
    shown = measured + noise * rng.standard_normal((SEEDS, len(measured)))
    shown = (shown - shown.mean()) / max(float(shown.std()), 1e-12)
    # A parabola: a reward that levels off is not linear in an earlier reward.
    basis = np.stack([np.ones_like(shown), shown, shown**2], axis=2).reshape(-1, 3)
    repeated = np.tile(rewards, (SEEDS, 1))
    solved, *_ = np.linalg.lstsq(basis, repeated, rcond=None)
    return max(float((basis @ solved).max(axis=1).mean()) - now, 0.0)


def seeds_to_tell(difference: float, deviation: float) -> int | None:
    """Seeds of each of two settings needed to tell them apart at 95 % with a power of 80 %.

        seeds = 2·((1.96 + 0.84)·σ / difference)²

    Args:
        deviation: σ, standard deviation of a run's reward over seeds and evaluations.

    Returns:
        None beyond ``MOST_SEEDS``.
    """
    if difference <= 0:
        return None
    count = math.ceil(2 * (POWER * deviation / difference) ** 2)
    return count if count <= MOST_SEEDS else None


DRAWS = 200
"""Draws averaged for the fitted curve."""
AT_ONCE = 10**6
"""Most evaluations times draws whose curves are in memory at once."""
LAST = 3
"""Evaluations at the end of a run that are averaged to judge it."""
MEAN_OF_LAST = 0.78
"""Ratio of the standard deviation of their mean to that of one: evaluations with an autocorrelation of ½."""
FAR = 4.0
"""A run's end misses its curve beyond this many standard deviations: one in 10,000 ends lies there."""
LARGEST = 6.0
"""The largest residual is not noise beyond this many standard deviations."""
STRETCH = 5
"""A stretch on one side of the curve is judged from this many consecutive evaluations on."""
LEAST = 0.02
"""A residual below this reward changes no decision, nor does one below this share of the run's gain:"""
SHARE = 0.1
WIDER = 2.5
"""The curves do not fit these runs if noise about the curves exceeds that among neighbours by this factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """A setting whose runs disagree with its curve.

    Attributes:
        evidence: What is wrong, as the end of a sentence that begins with the setting.
    """

    cell: Setting
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Where the runs of a setting were measured to end: the mean of their last evaluations.

    Attributes:
        interval: Its 95 % interval over seeds and evaluations.
        compute: Compute of the last evaluation.
    """

    cell: Setting
    reward: float
    interval: tuple[float, float]
    compute: float


def misfits(fit: Posterior) -> tuple[Misfit, ...]:
    """The settings whose curves miss their own runs, with one misfit each."""
    runs, model = fit.model.runs, fit.model
    fitted, spread = _curves(fit)
    factor = scatter(runs)
    if float(np.median(model.excess(fit.theta))) > WIDER * factor:
        times = float(np.median(model.excess(fit.theta))) / factor
        evidence = f"evaluations lie {times:.0f} times as far from the curves as from each other"
        return tuple(Misfit(cell=cell, evidence=evidence) for cell in runs.cells)
    found: dict[Setting, Misfit] = {}
    for k, cell in enumerate(runs.cell):
        own = runs.seen[k]
        residual, error = (runs.reward[k] - fitted[k])[own], factor * runs.error[k, own]
        least = max(LEAST, SHARE * float(np.ptp(fitted[k, own])))
        evidence = _evidence(residual, error, float(spread[k, own][-1]), least)
        if evidence:
            found.setdefault(runs.cells[cell], Misfit(cell=runs.cells[cell], evidence=evidence))
    return tuple(found.values())


def _curves(fit: Posterior) -> tuple[Array, Array]:
    """Mean and standard deviation of the curves at the evaluations, computed for a few draws at a time."""
    theta = fit.theta[:: max(1, len(fit.theta) // DRAWS)]
    first = fit.model.curves(theta[:1])[0]
    total, squares, some = np.zeros_like(first), np.zeros_like(first), max(1, AT_ONCE // first.size)
    for begin in range(0, len(theta), some):
        off = fit.model.curves(theta[begin : begin + some]) - first
        total += off.sum(axis=0)
        squares += (off**2).sum(axis=0)
    mean = total / len(theta)
    return first + mean, np.sqrt(np.maximum(squares / len(theta) - mean**2, 0.0))


def _evidence(residual: Array, error: Array, uncertain: float, least: float) -> str:
    """What is wrong with a run; empty if nothing is.

    Args:
        residual: Residual of each evaluation.
        error: Standard deviation of each evaluation's noise.
        uncertain: Standard deviation of the curve at the last evaluation.
        least: Residuals below this reward are ignored.
    """
    end = float(residual[-LAST:].mean())
    noise = MEAN_OF_LAST * float(np.sqrt((error[-LAST:] ** 2).mean()))
    if abs(end) > least and abs(end) > FAR * np.hypot(noise, uncertain):
        return f"its last evaluations lie {_off(end)} its curve"
    worst = int(np.abs(residual / error).argmax())
    if abs(residual[worst]) > max(2 * least, LARGEST * error[worst]):
        return f"an evaluation lies {_off(float(residual[worst]))} its curve"
    start = 0
    for _, stretch in groupby(residual > 0):
        end_of = start + len(list(stretch))
        mean, sd = float(residual[start:end_of].mean()), float(error[start:end_of].mean())
        if end_of - start >= STRETCH and abs(mean) > max(least, FAR * MEAN_OF_LAST * sd):
            return f"{end_of - start} evaluations in a row lie {_off(mean)} its curve on average"
        start = end_of
    return ""


def _off(residual: float) -> str:
    return f"{abs(residual):.2f} {'above' if residual > 0 else 'below'}"


def scatter(runs: Runs) -> float:
    """Ratio of noise to stated errors, from differences between neighbours; at least 1 if errors are known."""
    several = [(k, own) for k, own in enumerate(runs.seen) if own.sum() >= OWN_SCATTER]
    units = [units_off(runs.compute[k, own], runs.reward[k, own], runs.error[k, own]) for k, own in several]
    # The median of the absolute value of a standard normal number is 0.6745.
    usual = float(np.median(np.concatenate(units))) / 0.6745 if units else 1.0
    return max(usual, 1.0 if runs.error_is_known else 0.1)


def endings(fit: Posterior) -> tuple[Ending, ...]:
    """Where the runs of each setting were measured to end, the highest first."""
    runs = fit.model.runs
    factor = scatter(runs)
    assumed = fit.model.priors.seed_amplitude
    found = []
    for k, cell in enumerate(runs.cells):
        ends, errors, gains, last = [], [], [], 0.0
        for r in np.flatnonzero(runs.cell == k):
            own = runs.seen[r]
            ends.append(float(runs.reward[r, own][-LAST:].mean()))
            errors.append(factor * MEAN_OF_LAST * float(runs.error[r, own][-LAST:].mean()))
            gains.append(abs(ends[-1] - float(runs.reward[r, 0])))
            last = max(last, float(runs.last[r]))
        # Two seeds reveal little about how much seeds differ, so the prior's value is a lower bound.
        between = max(float(np.std(ends, ddof=1)) if len(ends) > 1 else 0.0, assumed * float(np.mean(gains)))
        error = float(np.hypot(between, np.mean(errors)) / np.sqrt(len(ends)))
        mean = float(np.mean(ends))
        found.append(Ending(cell=cell, reward=mean, interval=(mean - 1.96 * error, mean + 1.96 * error), compute=last))
    return tuple(sorted(found, key=lambda e: -e.reward))

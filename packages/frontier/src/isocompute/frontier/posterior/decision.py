"""Decisions: the setting of least expected regret at a budget, n* over compute, failure rates, and what to run next.

With draws d of the reward R_k(d) that setting k is expected to reach at a budget, failures included, the regret of k is
the mean of max_j R_j − R_k: the average gain if the truth were known. The setting of least regret is that of the
highest mean, so a wide interval is no advantage; P(best) stands beside it and decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..data.curves import Array
from .runs import Setting

TIE = 0.001
"""Reward within which expected regrets count as equal: below what any evaluation resolves."""
NEAR = 0.005
"""Reward that a setting may lose on average and still be as good for a reader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One setting at a budget.

    Attributes:
        reward: Mean reward of a run that does not fail.
        interval: Its 95 % interval.
        regret: Expected loss against the best setting, were that known.
        loss: Mean of what it loses to the setting that is chosen; 0 for that one.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """All settings at one budget.

    Attributes:
        options: Sorted by regret, the chosen one first.
        unknown: Settings whose runs end so early that nothing can be said of them here.
    """

    compute: float
    options: tuple[Option, ...]
    unknown: tuple[Setting, ...] = ()

    @property
    def chosen(self) -> Option:
        """The setting of least regret."""
        return self.options[0]

    def near(self, loss: float = NEAR) -> list[Option]:
        """Settings that lose on average no more than this to the chosen one, that one first."""
        return [o for o in self.options if o.loss <= loss]

    @property
    def known(self) -> bool:
        """Return whether one setting is best with a probability of 95 %."""
        return self.chosen.probability_best >= 0.95


def decide(
    compute: float, cells: tuple[Setting, ...], rewards: Array, failing: Array, failed_reward: Array, reach: Array
) -> Decision:
    """Rank settings at one budget.

    Args:
        rewards: Draws of the reward of a run that does not fail, shape ``(draws, cells)``.
        failing: Probability that a run fails, shape ``(cells,)``.
        failed_reward: Reward that a failed run ends at, shape ``(cells,)``.
        reach: The budget over the compute of the last evaluation, shape ``(cells,)``.
    """
    whole = rewards - failing * np.maximum(rewards - failed_reward, 0.0)
    best = whole.max(axis=1)
    regret = best.mean() - whole.mean(axis=0)
    leads = np.bincount(whole.argmax(axis=1), minlength=len(cells)) / len(whole)
    first = _least(regret, reach, cells)
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
            )
            for k in order
        ),
    )


def _least(regret: Array, reach: Array, cells: tuple[Setting, ...]) -> int:
    """Break ties in regret: prefer settings measured at this budget, then fewer steps."""
    tied = np.flatnonzero(regret <= regret.min() + TIE)
    return int(min(tied, key=lambda k: (reach[k] > 1 + 1e-9, -cells[k].batch_rollouts, regret[k])))


POINTS = 48
"""Budgets of the path, uniform in logarithms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The point at which one setting takes over from another.

    Attributes:
        before: Index of the setting chosen below.
        after: Index of the one chosen above.
        compute: Where the choice changes.
        interval: 90 % interval of where the second overtakes the first for the last time; an end is None where more
            than 5 % of the draws have no such compute on that side.
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
        chosen: Index of the setting chosen at each, shape ``(points,)``: that of a larger budget, where it loses no
            more than 0.005.
        near: Whether a setting loses no more than 0.005 to the chosen one on average, shape ``(points, cells)``.
        regret: Expected regret of each setting, infinite where nothing is known of it, shape ``(points, cells)``.
        probability_best: Shape ``(points, cells)``.
        changes: Where the choice changes for good.
    """

    compute: Array
    chosen: np.ndarray
    near: np.ndarray
    regret: Array
    probability_best: Array
    changes: tuple[Change, ...]

    def at(self, compute: float) -> int:
        """Index of the setting chosen at a budget, or at the nearest one of the path."""
        return int(self.chosen[np.abs(np.log(self.compute / compute)).argmin()])


def path_of(
    first: float,
    last: float,
    cells: tuple[Setting, ...],
    decide_at: Callable[[float], Decision],
    whole: Callable[[Array], Array],
) -> DecisionPath:
    """The path between two budgets.

    Args:
        last: Largest budget.
        whole: Draws of the rewards, failures included, at some budgets, shape ``(draws, cells, points)``.
    """
    compute = np.geomspace(first, last, POINTS)
    decisions = [decide_at(float(c)) for c in compute]
    share = np.zeros((POINTS, len(cells)))
    # A setting that is not known at a budget is not chosen there.
    regret, loss = np.full(share.shape, np.inf), np.full(share.shape, np.inf)
    for k, decision in enumerate(decisions):
        for option in decision.options:
            own = cells.index(option.cell)
            regret[k, own], share[k, own], loss[k, own] = option.regret, option.probability_best, option.loss
    chosen = _lasting(np.array([cells.index(d.chosen.cell) for d in decisions]), loss)
    rewards = whole(compute)
    changes = []
    for k in np.flatnonzero(chosen[1:] != chosen[:-1]):
        before, after = int(chosen[k]), int(chosen[k + 1])
        lead = rewards[:, after] - rewards[:, before]
        changes.append(
            Change(
                before=before,
                after=after,
                compute=float(np.sqrt(compute[k] * compute[k + 1])),
                interval=_overtakes(compute, lead),
            )
        )
    return DecisionPath(
        compute=compute, chosen=chosen, near=loss <= NEAR, regret=regret, probability_best=share, changes=tuple(changes)
    )


def _lasting(chosen: np.ndarray, loss: Array) -> np.ndarray:
    """The choices seen from the last budget: a setting is kept for less compute while it loses next to nothing."""
    kept = chosen.copy()
    for k in range(len(chosen) - 2, -1, -1):
        if loss[k, kept[k + 1]] <= NEAR:
            kept[k] = kept[k + 1]
    return kept


def _overtakes(compute: Array, lead: Array) -> tuple[float | None, float | None]:
    """90 % interval of the compute from which the lead of each draw, shape ``(draws, points)``, stays above 0."""
    ahead = lead > 0
    behind = ~ahead
    last_behind = ahead.shape[1] - 1 - behind[:, ::-1].argmax(axis=1)
    where = np.where(behind.any(axis=1), compute[np.minimum(last_behind + 1, len(compute) - 1)], -np.inf)
    where = np.where(ahead[:, -1], where, np.inf)
    low, high = np.quantile(where, [0.05, 0.95], method="inverted_cdf")
    return (float(low) if np.isfinite(low) else None, float(high) if np.isfinite(high) else None)


PRIOR = np.array([[-2.6, 0.0, 0.7], [1.0, 0.3, 1.0]])
"""Mean and deviation of b_0, b_n and b_rate: about 7 % before the data, and more at higher rates."""
DEPARTURES = (0.3, 0.8, 1.6, 3.0)
"""Grid of τ."""
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(21)


def failure_rates(failed: NDArray[np.int64], runs: NDArray[np.int64], at: Array) -> Array:
    """Probability that the next run of each setting fails, shape ``(settings,)``.

    A logistic regression on n and rate, with departures of single settings:

        logit P(fail) = b_0 + b_n·log2 n + b_rate·log2(rate over √B) + departure

    with normal priors; departures are normal, their deviation τ integrated over a grid by the evidence of Laplace's
    method. Settings that share nothing keep their own counts, and one failure of four is no rate of a quarter.

    Args:
        failed: Runs of each setting that failed, shape ``(settings,)``.
        runs: All of its runs; 0 for a setting that was not run.
        at: log2 n and log2 of the rate over √B of each setting, from their means, shape ``(settings, 2)``.
    """
    count = len(runs)
    design = np.concatenate([np.ones((count, 1)), at, np.eye(count)], axis=1)
    mean = np.concatenate([PRIOR[0], np.zeros(count)])
    evidence, rates = [], []
    for deviation in DEPARTURES:
        precision = np.concatenate([PRIOR[1], np.full(count, deviation)]) ** -2.0
        top, hessian, value = _mode(design, failed, runs, mean, precision)
        _, determinant = np.linalg.slogdet(hessian)
        evidence.append(value + 0.5 * np.log(precision).sum() - 0.5 * determinant)
        spread = np.sqrt(np.einsum("ij,jk,ik->i", design, np.linalg.inv(hessian), design))
        nodes = (design @ top)[:, None] + spread[:, None] * NODES
        rates.append((WEIGHTS / (1 + np.exp(-nodes))).sum(axis=1) / WEIGHTS.sum())
    weights = np.exp(np.array(evidence) - max(evidence))
    return np.asarray(weights @ np.array(rates) / weights.sum())


def _mode(
    design: Array, failed: NDArray[np.int64], runs: NDArray[np.int64], mean: Array, precision: Array
) -> tuple[Array, Array, float]:
    """Mode of the log-density by Newton's method, its curvature, and its value there."""
    beta = mean.copy()
    for _ in range(50):
        rate = 1 / (1 + np.exp(-(design @ beta)))
        gradient = design.T @ (failed - runs * rate) - precision * (beta - mean)
        hessian = design.T @ (design * (runs * rate * (1 - rate))[:, None]) + np.diag(precision)
        step = np.linalg.solve(hessian, gradient)
        # A full step overshoots where all runs of a setting failed.
        beta = beta + step / max(1.0, float(np.abs(step).max()) / 2)
        if np.abs(step).max() < 1e-10:
            break
    line = design @ beta
    value = float((failed * line - runs * np.logaddexp(0, line)).sum() - 0.5 * (precision * (beta - mean) ** 2).sum())
    return beta, hessian, value


POWER = 2.8016
"""Normal quantiles of 97.5 % and of 80 %, added: 1.96 + 0.84."""
MOST_SEEDS = 25
"""Nobody runs more seeds of a setting than this."""
SEEDS = 16
"""Draws of the noise of a measurement, over which its value is a mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something that could be run.

    Attributes:
        kind: ``extend`` all runs of a setting, run another ``seed`` of it, or ``open`` one that was not run: another
            n, or the chosen n at another learning rate.
        until: Compute that its runs would reach.
        rollouts: What that costs, in the unit of the fit.
        value: Expected fall of regret at the budget.
    """

    kind: str
    cell: Setting
    until: float
    rollouts: float
    value: float

    @property
    def rate(self) -> float:
        """Expected fall of regret for each unit of compute."""
        return self.value / self.rollouts


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Ranked actions before a decision at one budget.

    Attributes:
        actions: Sorted by expected fall of regret per unit of compute, the best first.
        dominated: Settings that are best with less than 1 % and can be stopped.
        pair: Settings to be told apart; None where there is one setting.
        difference: Of their rewards, the root mean square over the draws.
        seeds: Seeds of each, those that were run included, that would tell the two apart in four sweeps of five, were
            they to differ by that; None where ``MOST_SEEDS`` would not.
    """

    compute: float
    actions: tuple[Action, ...]
    dominated: tuple[Setting, ...]
    pair: tuple[Setting, Setting] | None
    difference: float
    seeds: int | None


def value_of(rewards: Array, measured: Array, noise: Array, *, rng: np.random.Generator) -> float:
    """Expected gain of choosing after a measurement over choosing now.

    The value of an action is that of the sample it gives (Raiffa and Schlaifer, 1961): the worth of the best choice
    after it, less that of the best choice now. The rewards expected given the measurement are their regression on it
    over the draws (Strong, Oakley, Brennan and Breeze, 2015), so nothing is fitted again.

    Args:
        rewards: Draws of the reward of every setting at the budget, shape ``(draws, settings)``.
        measured: Draws of what a measurement without noise would show, shape ``(draws,)``.
        noise: Standard deviation of the measurement in each draw, shape ``(draws,)``.
    """
    now = float(rewards.mean(axis=0).max())
    shown = measured + noise * rng.standard_normal((SEEDS, len(measured)))
    shown = (shown - shown.mean()) / max(float(shown.std()), 1e-12)
    # A parabola: a reward that levels off is no line of an earlier one.
    basis = np.stack([np.ones_like(shown), shown, shown**2], axis=2).reshape(-1, 3)
    repeated = np.tile(rewards, (SEEDS, 1))
    solved, *_ = np.linalg.lstsq(basis, repeated, rcond=None)
    return max(float((basis @ solved).max(axis=1).mean()) - now, 0.0)


def seeds_to_tell(difference: float, deviation: float) -> int | None:
    """Seeds of each of two settings that tell them apart at 95 % with a power of 80 %.

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

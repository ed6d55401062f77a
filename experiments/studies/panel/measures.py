"""The numbers of one unit: what plan.md asks, read off its posterior, with the interval of the unit alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from isocompute.frontier import Frontier, FrontierError
from isocompute.frontier.notebook import Fit
from isocompute.frontier.posterior.runs import Setting

from .statistics import TAIL, Array, vertex
from .whole import Whole

LEAST_UPDATES = 64
"""No number rests on a point with fewer update steps."""
STEPS = 65
"""Budgets among which a crossing is sought, log-uniform."""
Number = tuple[float, float, float]
"""Of a unit: its value, and the ends of its own 95 % interval."""


def summary(draws: Array) -> Number:
    """Median and interval of draws."""
    low, middle, high = np.quantile(draws, [TAIL, 0.5, 1 - TAIL])
    return float(middle), float(low), float(high)


@dataclass(frozen=True, kw_only=True)
class Posteriors:
    """The posterior of a unit's constant rates, and the vertices that are read off it."""

    whole: Whole

    @cached_property
    def fit(self) -> Fit:
        """Of the trunks and their further seeds."""
        return Frontier(self._of("trunk", "seed")).fit()

    @cached_property
    def quarter(self) -> Fit:
        """The same up to C_max/4."""
        return Frontier(self._of("trunk", "seed").filter(pl.col("rollouts") <= self.whole.budget / 4)).fit()

    def _of(self, *kinds: str) -> pl.DataFrame:
        return self.whole.evals.filter(pl.col("kind").is_in(kinds)).drop("kind", "factor")

    def cells(self, factor: float) -> list[Setting]:
        """The setting of each n at a factor on the √B rule."""
        own = self.whole.trunks.filter(pl.col("factor") == factor)
        rates = dict(own.select("rollouts_per_problem", "learning_rate").unique().iter_rows())
        return [self._cell(n, rates[n]) for n in self.whole.group_sizes]

    def _cell(self, n: int, rate: float, size: int | None = None) -> Setting:
        size = size or self.whole.problems_per_batch
        return Setting(rollouts_per_problem=n, problems_per_batch=size, learning_rate=rate)

    @cached_property
    def tuned(self) -> list[Setting]:
        """Of each n the setting whose fitted reward at C_max is highest, failures included."""
        every = [self.cells(factor) for factor in sorted(self.whole.trunks["factor"].unique())]
        ends = np.stack([rewards(self.fit, cells, self.whole.budget).mean(axis=0) for cells in every])
        return [every[k][place] for place, k in enumerate(ends.argmax(axis=0))]

    def vertex(self, cells: Sequence[Setting], budget: float, *, fit: Fit | None = None, since: float = 0.0) -> Array:
        """Draws of v(C), from every n with 64 updates by then, or by an earlier budget.

        Args:
            fit: Another one than that of the rewards on validation.
        """
        drawn = rewards(fit or self.fit, cells, budget)
        return vertex_of(cells, drawn, since or budget, self.whole.group_sizes)

    def branches(self, budget: int, *, since: float = 0.0) -> Array:
        """The same of the ends of the decay branches: draws about each evaluation, of its sampling and its seed."""
        ends = self.whole.evals.filter((pl.col("kind") == "branch") & (pl.col("rollouts") == budget))
        ends = ends.sort("rollouts_per_problem")
        cells = [self._cell(n, rate) for n, rate in ends.select("rollouts_per_problem", "learning_rate").iter_rows()]
        reward, trials = ends["avg_at_4"].to_numpy(), (ends["questions"] * ends["samples"]).to_numpy()
        model, theta = self.fit.posterior.model, self.fit.posterior.theta
        seeds = model.deviation(theta, "seeds")[:, :1] * (reward - model.start(theta).mean(axis=1, keepdims=True))
        error = np.hypot(np.sqrt(reward * (1 - reward) / trials), seeds)
        drawn = reward + error * np.random.default_rng(budget).standard_normal(error.shape)
        return vertex_of(cells, drawn, since or budget, self.whole.group_sizes)

    @cached_property
    def training(self) -> Array:
        """Draws of v(C_max) on the training problems, at the rates that are best on validation."""
        keys = ["run_id", "step", "rollouts", "rollouts_per_problem", "problems_per_batch", "seed", "learning_rate"]
        own = self.whole.training.filter(pl.col("kind").is_in(["trunk", "seed"]))
        evals = (
            own.group_by(keys, maintain_order=True)
            .agg(
                avg_at_16=pl.col("successes").sum() / pl.col("samples").sum(),
                questions=pl.len(),
                samples=pl.col("samples").first(),
            )
            .with_columns(problem_set=pl.lit(self.whole.unit.problem_set), split=pl.lit("train"))
        )
        fit = Frontier(evals, metric="avg_at_16", split="train").fit()
        return self.vertex(self.tuned, self.whole.budget, fit=fit)

    def equal_batches(self) -> Array | None:
        """Draws of the reward at C_max of cells with larger B_p less that of the n of equal B; None without such."""
        more = self.whole.evals.filter((pl.col("kind") == "equal batch") & (pl.col("rollouts") == self.whole.budget))
        if more.is_empty():
            return None
        fit = Frontier(self._of("trunk", "seed", "equal batch")).fit()
        columns = ("rollouts_per_problem", "problems_per_batch", "learning_rate")
        wide = [self._cell(n, rate, size) for n, size, rate in more.select(columns).iter_rows()]
        equal = [self._cell(c.batch_rollouts // self.whole.problems_per_batch, c.learning_rate or 0.0) for c in wide]
        wide_rewards, equal_rewards = (rewards(fit, cells, self.whole.budget) for cells in (wide, equal))
        return np.asarray((wide_rewards - equal_rewards).mean(axis=1))

    def crossings(self) -> list[dict[str, Any]]:
        """For each n and the next larger one: the epochs C/(n·D) of the smaller from which on the larger leads.

        Both at their best rates. ``probability`` is that it leads at C_max; ``epochs``, ``low`` and ``high`` are
        quantiles of the crossing over all draws, null where that has not come by C_max (``last``); none is sought
        before the larger has 64 updates (``first``).
        """
        found = []
        for few, many in zip(self.tuned, self.tuned[1:], strict=False):
            at = np.geomspace(LEAST_UPDATES * many.batch_rollouts, self.whole.budget, STEPS)
            ahead = np.stack([np.diff(rewards(self.fit, (few, many), c), axis=1)[:, 0] > 0 for c in at], axis=1)
            last_behind = np.where(ahead, -1, np.arange(STEPS)).max(axis=1)
            crossed = np.append(at, np.inf)[last_behind + 1] / (few.rollouts_per_problem * self.whole.problems)
            ends = np.quantile(crossed, [0.5, TAIL, 1 - TAIL], method="inverted_cdf")
            epochs, low, high = (float(end) if np.isfinite(end) else None for end in ends)
            found.append(
                {
                    "few": few.rollouts_per_problem,
                    "many": many.rollouts_per_problem,
                    "probability": float(ahead[:, -1].mean()),
                    "epochs": epochs,
                    "low": low,
                    "high": high,
                    "first": float(at[0]) / (few.rollouts_per_problem * self.whole.problems),
                    "last": self.whole.budget / (few.rollouts_per_problem * self.whole.problems),
                }
            )
        return found

    def prescribed(self, always: Sequence[int]) -> tuple[dict[str, float], Array]:
        """As of ``prescribed``, among all constant rates."""
        every = [cell for factor in sorted(self.whole.trunks["factor"].unique()) for cell in self.cells(factor)]
        usual = {cell.rollouts_per_problem: cell for cell in self.cells(1.0)}
        return prescribed(self.fit, self.quarter, every, always=always, usual=usual)


def prescribed(
    fit: Fit, quarter: Fit, every: Sequence[Setting], *, always: Sequence[int], usual: Mapping[int, Setting]
) -> tuple[dict[str, float], Array]:
    """Regret at C_max of what the cheapest quarter prescribes and of rivals, and draws of its regret less the first's.

    Args:
        always: Every n that a rival always takes, at the rate that was best in the quarter.
        usual: The setting of each n where the quarter has no curve of it.
    """
    budget = fit.largest
    so_far = quarter.decide(quarter.largest)
    try:
        chosen = quarter.decide(budget).chosen.cell
    except FrontierError:
        # Nothing is known so far beyond the data.
        chosen = so_far.chosen.cell
    first = {option.cell.rollouts_per_problem: option.cell for option in reversed(so_far.options)}
    rivals = {"prescribed": chosen, "best so far": so_far.chosen.cell}
    rivals |= {f"n = {n}": first.get(n, usual[n]) for n in always}
    drawn = rewards(fit, every, budget)
    own = {name: drawn[:, every.index(cell)] for name, cell in rivals.items()}
    best = drawn.mean(axis=0).max()
    regret = {name: max(0.0, float(best - reward.mean())) for name, reward in own.items()}
    return regret, own[f"n = {always[0]}"] - own["prescribed"]


def vertex_of(cells: Sequence[Setting], drawn: Array, budget: float, group_sizes: Sequence[int]) -> Array:
    """Draws of v(C), from every n with 64 updates by some budget.

    Args:
        drawn: Draws of their rewards at C, shape ``(draws, cells)``.
        budget: By which the updates are made.
    """
    used = [k for k, cell in enumerate(cells) if budget / cell.batch_rollouts >= LEAST_UPDATES]
    at = np.log2([cells[k].rollouts_per_problem for k in used])
    return vertex(at, drawn[:, used], (float(np.log2(min(group_sizes))), float(np.log2(max(group_sizes)))))


def rewards(fit: Fit, cells: Sequence[Setting], budget: float) -> Array:
    """Draws of the reward of settings at a budget, failures included, shape ``(draws, cells)``.

    A setting without a curve, all of whose runs failed, has that of the others' curves, less what failures cost it.
    """
    drawn = fit.whole(np.array([budget]))[:, :, 0]
    for cell in cells:
        if cell not in fit.settings:
            raise FrontierError(f"n = {cell.rollouts_per_problem} has neither a curve nor a run that failed")
    return np.stack([drawn[:, fit.settings.index(cell)] for cell in cells], axis=1)

"""Measure how well ``next`` spends: loops that fit, ask what to run, run it and ask again, on grids of B_p and n.

    python -m benchmarks.frontier.allocation [--sweeps 50] [--only NAME …] [--out FILE]

The whole of a grid is two seeds of every setting to ``LAST``; what has been spent is counted in rollouts. Loops begin
with one seed of every setting to a quarter, extend runs or add seeds, and end where the next action would exceed what
may be spent. Everybody decides with the posterior. On ``grid`` (two B_p, four n) 60 % of the whole may be spent by

* ``next``: the first action of ``plan`` within the grid;
* ``MSPE``: of the same actions that by which the mean squared prediction error over all settings at ``LAST`` falls most
  for cost^0.4 (Li et al., 2026, arXiv 2604.22753, equations of sections 4.1 and 4.2 with its exponent; the posterior's
  draws stand for their mixture of fits, and the fall is that of a Gaussian with the covariance of the draws);
* ``one seed first``: one seed of every setting to the end, then second seeds in an order drawn by lot;

and beside them stand ``uniform to half``, two seeds of every setting to half of the compute, and the ``whole``. On
``line`` (one B_p, eight n) loops may spend what ``uniform`` does, one seed of every n to the end. Budget: 1,900
CPU-seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import polars as pl
from isocompute.frontier import Fitted, Frontier
from isocompute.frontier.answers.next import plan
from isocompute.frontier.posterior.decision import Action

from benchmarks.frontier.campaign import Bounds, Case, Records, main, means
from benchmarks.frontier.worlds import LAST, SIZES, World, grid_of_worlds, run

Setting = tuple[int, int]
"""B_p and n."""
Reached = dict[tuple[int, int, int], float]
"""Compute of each run, by B_p, n and seed."""
DEVIATION, SHARE, EXPONENT, TINY = 0.05, 0.6, 0.4, 1e-6


@dataclass(frozen=True, kw_only=True)
class Laboratory:
    """Runs that can be had, each the same however it is had: a longer one begins as a shorter one.

    Attributes:
        number: Of the sweep.
        worlds: By B_p.
        ns: Every n.
    """

    number: int
    worlds: dict[int, World]
    ns: tuple[int, ...]
    _made: dict[tuple[int, int, int], pl.DataFrame] = field(default_factory=dict)

    @property
    def settings(self) -> list[Setting]:
        """The grid."""
        return [(batch, n) for batch in self.worlds for n in self.ns]

    @cached_property
    def rewards(self) -> dict[Setting, float]:
        """True rewards at the end."""
        return {(b, n): float(self.worlds[b].reward(n, np.array([LAST]))[0]) for b, n in self.settings}

    def table(self, reached: Reached) -> pl.DataFrame:
        """The evaluations of runs up to the compute that each has reached."""
        for batch, n, seed in reached.keys() - self._made.keys():
            rng = np.random.default_rng([self.number, 31, batch, n, seed])
            rows = run(self.worlds[batch], rng, n=n, seed=seed, deviation=DEVIATION, batch=batch, evaluations=19)
            self._made[batch, n, seed] = pl.DataFrame(rows)
        return pl.concat([self._made[k].filter(pl.col("rollouts") <= c * (1 + TINY)) for k, c in reached.items()])

    def fit(self, reached: Reached) -> Fitted:
        """The posterior of what has been run."""
        return Frontier(self.table(reached)).fit(seed=self.number)

    def regret(self, fitted: Fitted) -> float:
        """Of what a posterior chooses."""
        cell = fitted.decide(LAST).chosen.cell
        best = max(self.rewards.values())
        return best - self.rewards[cell.problems_per_batch, cell.rollouts_per_problem]


def uniform(laboratory: Laboratory, seeds: int, share: float) -> Reached:
    """So many seeds of every setting, to a share of the compute."""
    return {(b, n, seed): share * LAST for b, n in laboratory.settings for seed in range(seeds)}


def by_next(fitted: Fitted, actions: list[Action]) -> Action:
    """Runs that ``next`` proposes."""
    return actions[0]


def by_mspe(fitted: Fitted, actions: list[Action]) -> Action:
    """Runs that lower the mean squared prediction error most for their cost."""
    drawn = fitted.posterior.reward(LAST)[:, :, 0]
    model, theta = fitted.posterior.model, fitted.posterior.theta
    gain = drawn.max(axis=1) - model.start(theta)[:, 0]
    variance = float(((model.deviation(theta, "seeds")[:, 0] * gain) ** 2).mean()) + 0.25 / 1200
    covariance = np.atleast_2d(np.cov(drawn.T))
    seeds = np.bincount(fitted.prepared.runs.cell)

    def score(action: Action) -> float:
        k = fitted.cells.index(action.cell)
        noise = variance / (seeds[k] if action.kind == "extend" else 1)
        fall = float((covariance[k] ** 2).mean() / (covariance[k, k] + noise))
        return float(fall / action.rollouts**EXPONENT)

    return max(actions, key=score)


def loop(laboratory: Laboratory, spend: float, choose: Callable[[Fitted, list[Action]], Action]) -> tuple[float, int]:
    """Fit, choose, run and again: the regret of the last decision, and how many actions there were.

    Args:
        laboratory: What runs.
        spend: Rollouts that may be spent.
        choose: One of the actions.
    """
    reached = uniform(laboratory, 1, 0.25)
    steps = 0
    while True:
        fitted = laboratory.fit(reached)
        left = spend - sum(reached.values()) + TINY * LAST
        actions = [
            a
            for a in plan(fitted, LAST).actions
            if (a.cell.problems_per_batch, a.cell.rollouts_per_problem) in laboratory.rewards and a.rollouts <= left
        ]
        if not actions:
            return laboratory.regret(fitted), steps
        action = choose(fitted, actions)
        b, n = action.cell.problems_per_batch, action.cell.rollouts_per_problem
        own = [key for key in reached if key[:2] == (b, n)]
        if action.kind == "extend":
            reached.update(dict.fromkeys(own, float(LAST)))
        else:
            reached[b, n, len(own)] = float(LAST)
        steps += 1


def one_seed_first(laboratory: Laboratory, spend: float, rng: np.random.Generator) -> Reached:
    """One seed of every setting, then second ones by lot."""
    reached = uniform(laboratory, 1, 1.0)
    for k in rng.permutation(len(laboratory.settings)):
        if sum(reached.values()) + LAST <= spend * (1 + TINY):
            reached[(*laboratory.settings[int(k)], 1)] = float(LAST)
    return reached


def on_grid(number: int) -> dict[str, float]:
    """All ways to spend on one grid."""
    rng = np.random.default_rng([number, 29])
    laboratory = Laboratory(number=number, worlds=grid_of_worlds((16, 64), rng), ns=(8, 32, 128, 512))
    spend = SHARE * 2 * len(laboratory.settings) * LAST
    first, steps = loop(laboratory, spend, by_next)
    second, _ = loop(laboratory, spend, by_mspe)
    return {
        "next": first,
        "MSPE": second,
        "actions of next": steps,
        "one seed first": laboratory.regret(laboratory.fit(one_seed_first(laboratory, spend, rng))),
        "uniform to half": laboratory.regret(laboratory.fit(uniform(laboratory, 2, 0.5))),
        "whole": laboratory.regret(laboratory.fit(uniform(laboratory, 2, 1.0))),
    }


def on_line(number: int) -> dict[str, float]:
    """All ways to spend on one line."""
    rng = np.random.default_rng([number, 37])
    laboratory = Laboratory(number=number, worlds=grid_of_worlds((32,), rng), ns=SIZES)
    spend = float(len(SIZES) * LAST)
    first, steps = loop(laboratory, spend, by_next)
    second, _ = loop(laboratory, spend, by_mspe)
    plain = laboratory.regret(laboratory.fit(uniform(laboratory, 1, 1.0)))
    return {"next": first, "MSPE": second, "actions of next": steps, "uniform": plain}


def statistic(records: Records) -> dict[str, float]:
    """Mean regrets, in thousandths, and that of ``next`` less that of others."""
    found = {
        f"{k}, 1000 x" if k != "actions of next" else k: (1000 if k != "actions of next" else 1) * v
        for k, v in means(records).items()
    }
    for name in ("whole", "uniform", "uniform to half", "one seed first", "MSPE"):
        if name in records:
            found[f"next less {name}, 1000 x"] = 1000 * float((records["next"] - records[name]).mean())
    return found


# Equal to the whole means within half a thousandth of reward, far below what any evaluation resolves.
GRID: dict[str, Bounds] = {
    "next less whole, 1000 x": (None, 0.5),
    "next less uniform to half, 1000 x": (None, 0.0),
    "next less one seed first, 1000 x": (None, 0.0),
    "next less MSPE, 1000 x": (None, 0.0),
}
CASES = (
    Case(name="grid", one=on_grid, wanted=GRID, statistic=statistic, sweeps=50),
    Case(name="line", one=on_line, wanted={"next less uniform, 1000 x": (None, 2.0)}, statistic=statistic, sweeps=50),
)

if __name__ == "__main__":
    main(__doc__, CASES)

"""Checks of a fit: settings left out and predicted, deviations against expectation, the best learning rates."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..posterior.posterior import posterior
from .fitted import Fitted

QUICK = (16, 24, 16)
"""Chains, warm-up and kept steps of a fit that only checks another one."""
FAR = 2.0
"""Standard deviations of the prior beyond which a deviation conflicts with it."""
RATES = 33
"""Learning rates among which the best is sought, log-uniform."""
BEYOND = 2.0
"""Factor beyond the learning rates that were run within which the best one is sought."""
WORDS = {
    "seeds": ("seeds differ in gain", "seeds differ in timing"),
    "smooth": ("gains vary from n to n", "timing varies from n to n"),
    "departure": ("single settings depart in gain", "single settings depart in timing"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """One n, predicted from the runs of the others.

    Attributes:
        reward: Mean of its fitted reward at the end of its data, with its own runs.
        interval: 95 % interval of the prediction without them.
    """

    rollouts_per_problem: int
    reward: float
    interval: tuple[float, float]

    @property
    def inside(self) -> bool:
        """Return whether the prediction holds."""
        return self.interval[0] <= self.reward <= self.interval[1]


def left_out(fitted: Fitted) -> tuple[LeftOut, ...]:
    """Leave out each n in turn, with all its settings, and predict it from the others; nothing with fewer than four n.

    Of several settings of an n the one of highest reward is predicted.
    """
    runs = fitted.prepared.runs
    ns = sorted({c.rollouts_per_problem for c in fitted.cells})
    if len(ns) < 4:
        return ()
    found = []
    for n in ns:
        own = [k for k, c in enumerate(fitted.cells) if c.rollouts_per_problem == n]
        last = float(fitted.last[own].min())
        rewards = fitted.posterior.reward(last)[:, own, 0].mean(axis=0)
        best = own[int(rewards.argmax())]
        rest = runs.only(np.flatnonzero(~np.isin(runs.cell, own)))
        others = posterior(rest, priors=fitted.posterior.model.priors, seed=fitted.seed, size=QUICK)
        drawn = others.reward_of((fitted.cells[best],), last, rng=np.random.default_rng(fitted.seed))[:, 0, 0]
        low, high = np.quantile(drawn, [0.025, 0.975])
        found.append(LeftOut(rollouts_per_problem=n, reward=float(rewards.max()), interval=(float(low), float(high))))
    return tuple(found)


def left_out_line(found: tuple[LeftOut, ...]) -> str:
    """Summarise leaving out in a line."""
    inside = sum(f.inside for f in found)
    missed = [
        f"n = {f.rollouts_per_problem}: {f.reward:.3f}, predicted {f.interval[0]:.3f}–{f.interval[1]:.3f}"
        for f in found
        if not f.inside
    ]
    text = f"Each n left out and predicted from the others: {inside} of {len(found)} inside the 95 % interval"
    return text + (f" (not {'; '.join(missed)})" if missed else "")


def conflicts(fitted: Fitted) -> list[str]:
    """Deviations that the data say are far from what was expected of them, as sentences."""
    model, theta = fitted.posterior.model, fitted.posterior.theta
    said = []
    for name, words in WORDS.items():
        family = model.families[name]
        off = theta[:, model.parts[name + "_sd"]].mean(axis=0)
        deviation = model.deviation(theta, name).mean(axis=0)
        for k in np.flatnonzero(np.abs(off) > FAR):
            said.append(f"{words[k]} by {deviation[k]:.2g}, where {family.median[k]:.2g} was expected")
    return said


@dataclass(frozen=True, slots=True, kw_only=True)
class BestRates:
    """The best learning rate of each n at one budget.

    Attributes:
        rollouts_per_problem: Every n at the chosen B_p.
        rate: Median of the best rate of each.
        interval: Their 95 % intervals; one that reaches an end of what is searched is open there.
        exponent: Of B in the best rate, median: ½ is the √B rule.
        exponent_interval: Its 95 % interval.
        searched: Lowest and highest rate.
    """

    rollouts_per_problem: tuple[int, ...]
    rate: tuple[float, ...]
    interval: tuple[tuple[float, float], ...]
    exponent: float
    exponent_interval: tuple[float, float]
    searched: tuple[float, float]

    def line(self) -> str:
        """Summarise the rates in a line."""
        low, high = self.exponent_interval
        each = ", ".join(f"{r:.2g} at n = {n}" for n, r in zip(self.rollouts_per_problem, self.rate, strict=True))
        rule = "the √B rule lies inside" if low <= 0.5 <= high else "the √B rule lies outside"
        return f"Best learning rate: {each}; it grows as B to the {self.exponent:.2f} ({low:.2f}–{high:.2f}): {rule}"


def best_rates(fitted: Fitted, compute: float) -> BestRates | None:
    """The best learning rate of each n; None where no n was run at several rates, or there is one n.

    Curves of rates that were not run are those expected of them, without departures.

    Args:
        compute: The budget, in the unit of the fit.
    """
    chosen = fitted.best(compute).cell
    own = [c for c in fitted.cells if (c.problems_per_batch, c.group) == (chosen.problems_per_batch, chosen.group)]
    ns = sorted({c.rollouts_per_problem for c in own})
    rates = [c.learning_rate for c in own if c.learning_rate]
    if not fitted.posterior.model.rates or len(ns) < 2 or not rates:
        return None
    grid = np.geomspace(min(rates) / BEYOND, max(rates) * BEYOND, RATES)
    best = np.empty((len(fitted.posterior.theta), len(ns)))
    for k, n in enumerate(ns):
        cells = tuple(replace(chosen, rollouts_per_problem=n, learning_rate=float(rate)) for rate in grid)
        best[:, k] = grid[fitted.posterior.reward_of(cells, compute)[:, :, 0].argmax(axis=1)]
    at = np.log2(ns) - np.mean(np.log2(ns))
    slopes = (np.log2(best) @ at) / (at @ at)
    low, high = np.quantile(slopes, [0.025, 0.975])
    ends = np.quantile(best, [0.025, 0.975], axis=0)
    return BestRates(
        rollouts_per_problem=tuple(ns),
        rate=tuple(np.median(best, axis=0).tolist()),
        interval=tuple(zip(*ends.tolist(), strict=True)),
        exponent=float(np.median(slopes)),
        exponent_interval=(float(low), float(high)),
        searched=(float(grid[0]), float(grid[-1])),
    )

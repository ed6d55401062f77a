"""A sweep fitted as one: its posterior, and what it says at any budget."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from html import escape

import numpy as np
import polars as pl

from ..data.curves import TOLERANCE, Array
from ..errors import FrontierError
from ..posterior.decision import Decision, Option, decide
from ..posterior.failures import failure_rates
from ..posterior.health import FAILED
from ..posterior.path import Path, path_of
from ..posterior.posterior import Posterior
from ..posterior.preparation import Prepared
from ..posterior.runs import Cell
from ..posterior.settings import coordinates
from .answer import Answer, Unmeasured, name, percent, short

FARTHEST = 16.0
"""Multiple of the data's compute beyond which nothing is said."""
MOST = 3
"""Failures named in a sentence; the report names all."""
SURE_BEYOND = 0.8
"""P(best) that a setting must have for its lead to be carried on beyond the data."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Fitted:
    """The posterior of a sweep.

    Attributes:
        metric: Metric fitted.
        unit: Unit of compute.
        prepared: The runs, and what was found of each.
        posterior: Draws of the curves.
        tokens_per_rollout: Mean tokens of a response of each setting; empty where the table does not say.
        questions_sampled: Whether intervals include the luck of which questions are asked.
        seed: Fixes what is drawn.
    """

    metric: str
    unit: str
    prepared: Prepared
    posterior: Posterior
    tokens_per_rollout: tuple[float, ...] = ()
    questions_sampled: bool = False
    seed: int = 0

    def __repr__(self) -> str:
        decision = self.decide(self.largest)
        n, share = decision.chosen.cell.rollouts_per_problem, percent(decision.chosen.probability_best)
        return (
            f"Fitted({len(self.prepared.health)} runs; n = {n} at {short(self.largest)} {self.unit}, P(best) {share})"
        )

    def _repr_html_(self) -> str:
        lines = "".join(f"<p>{escape(line)}</p>" for line in self.answer().lines())
        return f"<div>{lines}</div>"

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The settings with a curve."""
        return self.prepared.runs.cells

    @cached_property
    def last(self) -> Array:
        """Compute of the last evaluation of each setting, shape ``(cells,)``."""
        runs = self.prepared.runs
        return np.array([runs.last[runs.cell == k].max() for k in range(len(self.cells))])

    @property
    def largest(self) -> float:
        """The largest compute that was measured."""
        return float(self.last.max())

    @property
    def path_start(self) -> float:
        """The least compute after the start that was measured."""
        runs = self.prepared.runs
        return float(runs.compute[runs.seen & (runs.compute > 0)].min())

    @cached_property
    def failing(self) -> Array:
        """Probability that the next run of each setting fails, shape ``(cells,)``."""
        # Settings without a curve count too: they say how often runs fail.
        every = self.prepared.failures
        at = coordinates(tuple(every))[:, [0, 2]]
        failed, runs = (np.array([getattr(f, what) for f in every.values()]) for what in ("failed", "runs"))
        rates = dict(zip(every, failure_rates(failed, runs, at - at.mean(axis=0)), strict=True))
        return np.array([rates[c] for c in self.cells])

    @cached_property
    def failed_reward(self) -> Array:
        """Reward that failed runs of each setting ended at, or the reward before training, shape ``(cells,)``."""
        start = float(self.posterior.model.start(self.posterior.theta).mean())
        own = [self.prepared.failures[c].reward for c in self.cells]
        return np.array([start if reward is None else reward for reward in own])

    def whole(self, compute: Array) -> Array:
        """Draws of the reward expected at some budgets, failures included, shape ``(draws, cells, points)``."""
        rewards = self.posterior.reward(compute)
        lost = np.maximum(rewards - self.failed_reward[:, None], 0.0)
        return np.asarray(rewards - self.failing[:, None] * lost)

    def decide(self, budget: float, *, unit: str | None = None) -> Decision:
        """The settings at a budget, that of least expected regret first.

        Args:
            unit: Unit of the budget: that of the fit, or ``tokens`` of a fit in rollouts, which buy each setting as
                many rollouts as its responses are long.

        Raises:
            FrontierError: The budget is not above 0, lies farther beyond the data than anything can be said of, or is
                in a unit that the table does not hold.
        """
        if not (np.isfinite(budget) and budget > 0):
            raise FrontierError(f"the budget is {budget}; it must be above 0")
        compute = budget / self._lengths(unit or self.unit)
        if compute.max() > FARTHEST * self.largest:
            raise FrontierError(
                f"the budget of {short(budget)} {unit or self.unit} is more than {FARTHEST:.0f} times the "
                f"{short(self.largest)} {self.unit} that were measured: measure farther first"
            )
        rewards = self.posterior.reward(compute[:, None])[:, :, 0]
        return decide(budget, self.cells, rewards, self.failing, self.failed_reward, compute / self.last)

    def _lengths(self, unit: str) -> Array:
        """What a unit of the fit costs in another one, by setting, shape ``(cells,)``."""
        if unit == self.unit:
            return np.ones(len(self.cells))
        if (unit, self.unit) != ("tokens", "rollouts") or not self.tokens_per_rollout:
            raise FrontierError(
                f"the fit is in {self.unit}, and its table does not say how many {unit} these are: "
                f"fit with --unit {unit}"
            )
        return np.array(self.tokens_per_rollout)

    def best(self, compute: float) -> Option:
        """The setting of least expected regret at a budget."""
        return self.decide(compute).chosen

    def regret(self, compute: float) -> pl.DataFrame:
        """All settings at a budget, a row each, sorted by expected regret."""
        return pl.DataFrame([option_row(o) for o in self.decide(compute).options])

    def path(self) -> Path:
        """n* over the compute that was measured."""
        index = {c: k for k, c in enumerate(self.cells)}
        return path_of(
            self.path_start, self.largest, self.decide,
            lambda d: np.array([index[o.cell] for o in d.options]), self.whole,
        )  # fmt: skip

    def answer(self, budget: float | None = None, *, unit: str | None = None) -> Answer:
        """The sixty-second answer at a budget, by default the largest that was measured.

        Args:
            unit: As of ``decide``.
        """
        whole = self.largest if budget is None else budget
        decision = self.decide(whole, unit=unit)
        # The compute that the chosen setting gets for it.
        compute = decision.chosen.reach * float(self.last[self.cells.index(decision.chosen.cell)])
        enough = compute / 4 >= self.path_start * (1 - TOLERANCE)
        return Answer(
            data=self._data(), unit=unit or self.unit, compute=compute, decision=decision,
            earlier=self.decide(whole / 4, unit=unit) if enough else None, path=self.path(), cells=self.cells,
            path_unit=self.unit, beyond=self._beyond(decision, unit), unmeasured=self._unmeasured(decision, compute),
            risk=self._risk(), missing=self._missing(),
        )  # fmt: skip

    def _data(self) -> str:
        health, runs = self.prepared.health, self.prepared.runs
        several, rated = self._differing
        seeds = Counter(np.bincount(runs.cell, minlength=len(self.cells)).tolist())
        points = Counter((runs.seen & (runs.compute > 0)).sum(axis=1).tolist())
        failed = [h for h in health if h.failed]
        settings = f"{len(self.cells)} settings" if several or rated else f"{len(self.cells)} n"
        text = (
            f"{settings} × {_span(seeds)} seed{'s' if max(seeds) > 1 else ''} × {_span(points)} evaluations to "
            f"{short(self.largest)} {self.unit}; {len(health)} runs: {len(health) - len(failed)} trained"
        )
        if failed:
            named = [f"{h.name}: {' and '.join(sorted(k for k in h.kinds if k in FAILED))}" for h in failed]
            text += f", {len(failed)} failed ({'; '.join(named[:MOST])}{'; …' if len(named) > MOST else ''})"
        return text

    def _beyond(self, decision: Decision, unit: str | None) -> tuple[float, float] | None:
        found = None
        for factor in (2.0, 4.0, 8.0, 16.0):
            budget = decision.compute * factor
            if decision.chosen.reach * factor > FARTHEST:
                break
            chosen = self.decide(budget, unit=unit).chosen
            if chosen.cell != decision.chosen.cell or chosen.probability_best < SURE_BEYOND:
                break
            found = (budget, chosen.probability_best)
        return found

    def _unmeasured(self, decision: Decision, compute: float) -> tuple[Unmeasured, ...]:
        """The next smaller and the next larger n, at the chosen B_p and group, each at the measured spacing."""
        chosen = decision.chosen.cell
        own = sorted({c.rollouts_per_problem for c in self.cells if c.problems_per_batch == chosen.problems_per_batch})
        rng = np.random.default_rng([self.seed, 2])
        known = self.posterior.reward(compute)[:, self.cells.index(chosen), 0]
        found = []
        for n in (own[0] // 2, own[-1] * 2):
            if n < 2:
                continue
            cell = Cell(
                rollouts_per_problem=n, problems_per_batch=chosen.problems_per_batch, group=chosen.group,
                learning_rate=chosen.learning_rate and chosen.learning_rate * (n / chosen.rollouts_per_problem) ** 0.5,
            )  # fmt: skip
            new = self.posterior.reward_of((cell,), compute, rng=rng)[:, 0, 0]
            gain = np.maximum(new - known, 0.0)
            found.append(
                Unmeasured(rollouts_per_problem=n, gain=float(gain.mean()), probability=float((gain > 0).mean()))
            )
        return tuple(found)

    def _risk(self) -> str:
        every = self.prepared.failures
        count = sum(f.failed for f in every.values())
        rates = self.failing
        total = sum(f.runs for f in every.values())
        if not count:
            return f"none of {total} runs failed; the next fails with about {percent(float(rates.mean()))}"
        several, rated = self._differing
        own = [every[c] for c in self.cells]
        worst = [k for k in np.argsort(-rates).tolist() if own[k].failed][:MOST]
        said = [
            f"n = {name(self.cells[k], several, rated)} with {percent(float(rates[k]))} "
            f"({own[k].failed} of {own[k].runs} did)"
            for k in worst
        ]
        calm = [rates[k] for k, f in enumerate(own) if not f.failed]
        said += (
            [f"one of the {'others' if worst else 'settings above'} with {percent(float(np.mean(calm)))}"]
            if calm
            else []
        )
        never = [c for c, f in every.items() if c not in self.cells and f.failed]
        lost = f"; no run came through of n = {', '.join(name(c, several, rated) for c in never)}" if never else ""
        return f"{count} of {total} runs failed; the next run fails: {', '.join(said)}{lost}"

    @property
    def _differing(self) -> tuple[bool, bool]:
        """Whether settings differ in B_p, and whether some n and B_p was run at several rates."""
        every = self.prepared.failures
        pairs = {(c.rollouts_per_problem, c.problems_per_batch, c.group) for c in every}
        return len({c.problems_per_batch for c in every}) > 1, len(pairs) < len(every)

    def _missing(self) -> tuple[str, ...]:
        runs = self.prepared.runs
        missing = ["one base model", "one problem set"]
        if not self.questions_sampled:
            missing.append("which questions are asked")
        if not self.posterior.model.rates:
            missing.append("the learning rate: each n at the one it was run with")
        if np.bincount(runs.cell).max() == 1:
            prior = self.posterior.model.priors.seed_amplitude
            missing.append(f"one seed: that seeds differ by {100 * prior:.0f} % of the gain is assumed")
        return tuple(missing)


def option_row(option: Option) -> dict[str, object]:
    """An option as a row of a table."""
    low, high = option.interval
    loss_low, loss_high = option.loss_interval
    return {
        "rollouts_per_problem": option.cell.rollouts_per_problem, "problems_per_batch": option.cell.problems_per_batch,
        "learning_rate": option.cell.learning_rate, "group": option.cell.group, "reward": option.reward,
        "reward_low": low, "reward_high": high, "regret": option.regret, "loss": option.loss, "loss_low": loss_low,
        "loss_high": loss_high, "probability_best": option.probability_best, "failure": option.failure,
        "reach": option.reach,
    }  # fmt: skip


def _span(counted: Counter[int]) -> str:
    return f"{min(counted)}" if len(counted) == 1 else f"{min(counted)}–{max(counted)}"

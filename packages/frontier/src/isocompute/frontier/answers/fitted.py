"""A sweep fitted as one: its posterior, and what it says at any budget."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from ..data.curves import TOLERANCE, Array
from ..errors import FrontierError
from ..posterior.decision import Decision, Option, decide
from ..posterior.failures import failure_rates
from ..posterior.path import Path, path_of
from ..posterior.posterior import Posterior
from ..posterior.preparation import Prepared
from ..posterior.runs import Cell
from .answer import Answer, Unmeasured, name, percent, short

FARTHEST = 16.0
"""Multiple of the data's compute beyond which nothing is said."""
SURE_BEYOND = 0.8
"""P(best) that a setting must have for its lead to be carried on beyond the data."""


@dataclass(frozen=True, kw_only=True)
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
        """Draws of the probability that the next run of each setting fails, shape ``(draws, cells)``."""
        failed, total, _ = self._failures
        rng = np.random.default_rng([self.seed, 1])
        return failure_rates(failed, total, draws=len(self.posterior.theta), rng=rng)

    @cached_property
    def _failures(self) -> tuple[np.ndarray, np.ndarray, Array]:
        """Failed runs of each setting, all of its runs, and the reward that failed ones ended at."""
        own = [self.prepared.failures[c] for c in self.cells]
        start = float(self.posterior.model.start(self.posterior.theta).mean())
        ended = [start if f.reward is None else f.reward for f in own]
        return np.array([f.failed for f in own]), np.array([f.runs for f in own]), np.array(ended)

    def whole(self, compute: Array) -> Array:
        """Draws of the reward expected at some budgets, failures included, shape ``(draws, cells, points)``."""
        rewards = self.posterior.reward(compute)
        lost = np.maximum(rewards - self._failures[2][:, None], 0.0)
        return np.asarray(rewards - self.failing[:, :, None] * lost)

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
        return decide(budget, self.cells, rewards, self.failing, self._failures[2], compute / self.last)

    def _lengths(self, unit: str) -> Array:
        """What a unit of the fit costs in another one, by setting, shape ``(cells,)``."""
        if unit == self.unit:
            return np.ones(len(self.cells))
        if (unit, self.unit) != ("tokens", "rollouts") or not self.tokens_per_rollout:
            raise FrontierError(
                f"the fit is in {self.unit}, and its table does not say how many {unit} these are: fit with --unit {unit}"
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
        several = len({c.problems_per_batch for c in self.cells}) > 1
        seeds = Counter(np.bincount(runs.cell, minlength=len(self.cells)).tolist())
        points = Counter((runs.seen & (runs.compute > 0)).sum(axis=1).tolist())
        failed = [h for h in health if h.failed]
        settings = f"{len(self.cells)} settings" if several else f"{len(self.cells)} n"
        text = (
            f"{settings} × {_span(seeds)} seed{'s' if max(seeds) > 1 else ''} × {_span(points)} evaluations to "
            f"{short(self.largest)} {self.unit}; {len(health)} runs: {len(health) - len(failed)} trained"
        )
        if failed:
            named = ", ".join(f"{h.name}: {h.evidence}" for h in failed[:3])
            text += f", {len(failed)} failed ({named}{', …' if len(failed) > 3 else ''})"
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
                learning_rate=chosen.learning_rate,
            )  # fmt: skip
            new = self.posterior.reward_of((cell,), compute, rng=rng)[:, 0, 0]
            gain = np.maximum(new - known, 0.0)
            found.append(
                Unmeasured(rollouts_per_problem=n, gain=float(gain.mean()), probability=float((gain > 0).mean()))
            )
        return tuple(found)

    def _risk(self) -> str:
        failed, total, _ = self._failures
        rates = self.failing.mean(axis=0)
        if not failed.any():
            return f"none of {int(total.sum())} runs failed; the next fails with about {percent(float(rates.mean()))}"
        several = len({c.problems_per_batch for c in self.cells}) > 1
        worst = np.argsort(-rates)[:3]
        said = [
            f"{name(self.cells[k], several)} fails with {percent(float(rates[k]))} ({failed[k]} of {total[k]} did)"
            for k in worst if failed[k]
        ]  # fmt: skip
        others = float(rates[failed == 0].mean()) if (failed == 0).any() else None
        return "the next run of n = " + ", ".join(said) + (f", of the others {percent(others)}" if others else "")

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

"""A sweep fitted as one: its posterior, and what it says at any budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape

import numpy as np
import polars as pl

from ..data.curves import TOLERANCE, Array
from ..data.units import short
from ..errors import FrontierError
from ..posterior.decision import Decision, Option, decide
from ..posterior.failures import failure_rates
from ..posterior.path import Path, path_of
from ..posterior.posterior import Posterior
from ..posterior.preparation import Prepared
from ..posterior.runs import Cell
from ..posterior.settings import coordinates
from .answer import Answer, Unmeasured, percent
from .sentences import differing, left_out_of, of_data, of_risk

UNKNOWN = 1.0
"""Width of a setting's 95 % interval beyond its data, over all that it had gained, from which on it is not known."""
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
        caveats: What the answer leaves out beside what the runs show.
        seed: Fixes what is drawn.
    """

    metric: str
    unit: str
    prepared: Prepared
    posterior: Posterior
    tokens_per_rollout: tuple[float, ...] = ()
    caveats: tuple[str, ...] = ()
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
    def differing(self) -> tuple[bool, bool]:
        """Whether settings differ in B_p, and whether some n and B_p was run at several rates."""
        return differing(self.prepared)

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

    def decide(self, budget: float, *, unit: str | None = None, guess: bool = False) -> Decision:
        """The settings at a budget, that of least expected regret first.

        Args:
            unit: Unit of the budget: that of the fit, or ``tokens`` of a fit in rollouts, which buy each setting as
                many rollouts as its responses are long.
            guess: Whether to decide even where no setting is known at the budget, as for what to run next.

        Raises:
            FrontierError: The budget is not above 0, lies so far beyond the data that every setting's interval is as
                wide as all that it had gained (unless ``guess``), or is in a unit that the table does not hold.
        """
        if not (np.isfinite(budget) and budget > 0):
            raise FrontierError(f"the budget is {budget}; it must be above 0")
        compute = budget / self._lengths(unit or self.unit)
        rewards = self.posterior.reward(compute[:, None])[:, :, 0]
        reach = compute / self.last
        low, high = np.quantile(rewards, [0.025, 0.975], axis=0)
        known = np.flatnonzero((reach <= 1 + TOLERANCE) | (high - low <= UNKNOWN * self.gained))
        if guess and not len(known):
            known = np.arange(len(self.cells))
        if not len(known):
            k = int(reach.argmin())
            raise FrontierError(
                f"at {short(budget)} {unit or self.unit} the reward of n = {self.cells[k].rollouts_per_problem} may be "
                f"{low[k]:.2f} to {high[k]:.2f}, where it had gained {self.gained[k]:.2f} by "
                f"{short(float(self.last[k]))} {self.unit}: measure farther first (`next` says what)"
            )
        found = decide(
            budget, tuple(self.cells[k] for k in known), rewards[:, known], self.failing[known],
            self.failed_reward[known], reach[known],
        )  # fmt: skip
        return replace(found, unknown=tuple(c for k, c in enumerate(self.cells) if k not in known))

    @cached_property
    def gained(self) -> Array:
        """Mean gain of each setting over the start by its last evaluation, shape ``(cells,)``."""
        start = self.posterior.model.start(self.posterior.theta).mean()
        return np.asarray(self.posterior.reward(self.last[:, None])[:, :, 0].mean(axis=0) - start)

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

    def predict(self, compute: float | Sequence[float], *, n: int) -> pl.DataFrame:
        """Reward of an n at some compute, whether it was run or not: ``compute``, ``reward``, ``low`` and ``high``.

        Args:
            compute: In the unit of the fit.
            n: Rollouts per problem; of several settings of it the one of least regret. One that was not run is taken at
                the B_p of the setting chosen at the largest compute, and at its rate scaled by the root of n.
        """
        at = np.atleast_1d(np.asarray(compute, dtype=np.float64))
        options = self.decide(self.largest).options
        own = next((o.cell for o in options if o.cell.rollouts_per_problem == n), None)
        if own is None:
            cell = at_n(options[0].cell, n)
            drawn = self.posterior.reward_of((cell,), at, rng=np.random.default_rng([self.seed, 2]))[:, 0]
        else:
            drawn = self.posterior.reward(at)[:, self.cells.index(own)]
        return _band(at, drawn)

    def forecast(self, run: str, compute: float | Sequence[float]) -> pl.DataFrame:
        """Reward that one run is going to have, its own seed included: as of ``predict``.

        Args:
            run: Its ``run_id``, or its name, such as ``n = 8, seed 1``.
            compute: In the unit of the fit.

        Raises:
            FrontierError: There is no such run among those that were fitted.
        """
        names = [(h.run_id, h.name) for h in self.prepared.health if h.fitted]
        where = next((k for k, known in enumerate(names) if run in known), None)
        if where is None or len(names) != len(self.prepared.runs.cell):
            raise FrontierError(f"no run {run!r} was fitted; there are {', '.join(known for _, known in names)}")
        at = np.atleast_1d(np.asarray(compute, dtype=np.float64))
        return _band(at, self.posterior.of_run(where, at))

    def regret(self, compute: float) -> pl.DataFrame:
        """All settings at a budget, a row each, sorted by expected regret."""
        return pl.DataFrame([option_row(o) for o in self.decide(compute).options])

    def path(self) -> Path:
        """n* over the compute that was measured."""
        return path_of(self.path_start, self.largest, self.cells, self.decide, self.whole)

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
            data=of_data(self.prepared, self.unit), metric=self.metric, unit=unit or self.unit, compute=compute,
            decision=decision, earlier=self.decide(whole / 4, unit=unit) if enough else None, path=self.path(),
            cells=self.cells,
            path_unit=self.unit, beyond=self._beyond(decision, unit), unmeasured=self._unmeasured(decision, compute),
            risk=of_risk(self.prepared, self.failing),
            missing=left_out_of(self.prepared, self.posterior, caveats=self.caveats),
        )  # fmt: skip

    def _beyond(self, decision: Decision, unit: str | None) -> tuple[float, float] | None:
        found = None
        # As far as coverage was counted.
        for factor in (2.0, 4.0):
            budget = decision.compute * factor
            try:
                chosen = self.decide(budget, unit=unit).chosen
            except FrontierError:
                break
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
            new = self.posterior.reward_of((at_n(chosen, n),), compute, rng=rng)[:, 0, 0]
            gain = np.maximum(new - known, 0.0)
            found.append(
                Unmeasured(rollouts_per_problem=n, gain=float(gain.mean()), probability=float((gain > 0).mean()))
            )
        return tuple(found)


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


def at_n(cell: Cell, n: int) -> Cell:
    """The setting at another n, with its learning rate scaled by √B."""
    rate = cell.learning_rate and cell.learning_rate * (n / cell.rollouts_per_problem) ** 0.5
    return replace(cell, rollouts_per_problem=n, learning_rate=rate)


def _band(compute: Array, drawn: Array) -> pl.DataFrame:
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    return pl.DataFrame({"compute": compute, "reward": drawn.mean(axis=0), "low": low, "high": high})

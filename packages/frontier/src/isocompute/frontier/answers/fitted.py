"""A fitted sweep: its prediction at any budget, the sentences of that answer, and checks of the fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape

import numpy as np
import polars as pl

from ..data.curves import TOLERANCE, Array, Mask
from ..data.reading import short
from ..errors import FrontierError
from ..posterior.decision import (
    Decision,
    DecisionPath,
    Ending,
    Misfit,
    Option,
    decide,
    endings,
    failure_rates,
    misfits,
    path_of,
)
from ..posterior.health import Prepared
from ..posterior.model import coordinates
from ..posterior.posterior import COULD_WIN, Posterior, posterior
from ..posterior.runs import Setting
from .answer import (
    COUNTED,
    SLACK,
    Answer,
    Unmeasured,
    called,
    differing,
    left_out_of,
    of_data,
    of_risk,
    option_row,
    rounded,
)

UNKNOWN = 1.5
"""A setting's 95 % interval beyond its data is wide from this multiple of the largest gain of any setting."""
EARLIER = 1.5
"""A setting's runs end early if others reached this multiple of the compute at its last evaluation."""
RISEN = 0.5
"""Share of its gain that a setting must have made for its runs not to end early."""
SURE_BEYOND = 0.8
"""P(best) that an n needs, in every part of the draws, for its lead to be extrapolated beyond the data."""
FARTHEST = 64.0
"""Multiple of the data beyond which nothing is said."""
PARTS = 4
"""Parts of the draws, each from different chains; a statement must hold in all of them."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Fitted:
    """The posterior of a sweep.

    Attributes:
        tokens_per_rollout: Mean response tokens of each setting; empty if the table does not say.
        hours_per_rollout: GPU-hours per rollout of each setting; empty without timings.
        caveats: Limits of the answer besides those that the runs show.
        of_training: Whether the rewards are training rewards.
        seed: Fixes all random draws.
        about: What distinguishes these runs from others: problem sets, base models, what was spent.
    """

    metric: str
    unit: str
    prepared: Prepared
    posterior: Posterior
    tokens_per_rollout: tuple[float, ...] = ()
    hours_per_rollout: tuple[float, ...] = ()
    caveats: tuple[str, ...] = ()
    of_training: bool = False
    seed: int = 0
    about: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        decision, at = self.decide(self.largest), f"{short(self.largest)} {self.unit}"
        n, share = decision.chosen.cell.rollouts_per_problem, rounded(decision.probability_of(decision.chosen.cell))
        return f"Fitted({len(self.prepared.health)} runs; n = {n} at {at}, P(best) {share})"

    def _repr_html_(self) -> str:
        answer = self.answer()
        lines = "".join(f"<p>{escape(line)}</p>" for line in answer.lines())
        more = f"<details><summary>The answer with its numbers</summary>{lines}</details>"
        return f"<div><p><strong>{escape(answer.headline())}.</strong></p>{more}</div>"

    @property
    def differing(self) -> tuple[bool, bool]:
        """The result of the function ``differing``."""
        return differing(self.prepared.failures)

    @property
    def cells(self) -> tuple[Setting, ...]:
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
        """The smallest measured compute after the start."""
        runs = self.prepared.runs
        return float(runs.compute[runs.seen & (runs.compute > 0)].min())

    @cached_property
    def lost(self) -> tuple[Setting, ...]:
        """The settings without a curve, because all their runs failed."""
        return tuple(c for c, f in self.prepared.failures.items() if f.failed and c not in self.cells)

    @cached_property
    def settings(self) -> tuple[Setting, ...]:
        """All candidate settings: those with a curve, then those without."""
        return (*self.cells, *self.lost)

    @cached_property
    def failure_draws(self) -> Array:
        """Draws of the probability that the next run of each setting fails, shape ``(draws, settings)``."""
        every = self.prepared.failures
        at = coordinates(tuple(every))[:, [0, 2]]
        failed, runs = (np.array([getattr(f, what) for f in every.values()]) for what in ("failed", "runs"))
        rng = np.random.default_rng([self.seed, 5])
        drawn = failure_rates(failed, runs, at - at.mean(axis=0), draws=len(self.posterior.theta), rng=rng)
        return np.asarray(drawn[:, [list(every).index(c) for c in self.settings]])

    @cached_property
    def failing(self) -> Array:
        """The failure draws, replaced by their mean for settings without failed runs, shape ``(draws, settings)``.

        Uncertainty that all settings share is no reason to doubt one of them.
        """
        failed = np.array([self.prepared.failures[c].failed for c in self.settings])
        return np.where(failed > 0, self.failure_draws, self.failure_draws.mean(axis=0))

    @cached_property
    def failed_reward(self) -> Array:
        """Reward at which each setting's failed runs ended, or the reward before training, shape ``(settings,)``."""
        start = float(self.posterior.model.start(self.posterior.theta).mean())
        own = [self.prepared.failures[c].reward for c in self.settings]
        return np.array([start if reward is None else reward for reward in own])

    def healthy(self, compute: Array) -> Array:
        """Draws of the reward of a run that does not fail, shape ``(draws, settings, points)``.

        For a setting without a curve, the reward is predicted from the others.

        Args:
            compute: Shape ``(points,)``, or ``(settings, points)`` if it differs between settings.
        """
        if not self.lost:
            return self.posterior.reward(compute)
        count = len(self.cells)
        known, others = (compute, compute) if compute.ndim == 1 else (compute[:count], compute[count:])
        rng = np.random.default_rng([self.seed, 6])
        return np.concatenate(
            [self.posterior.reward(known), self.posterior.reward_of(self.lost, others, rng=rng)], axis=1
        )

    def whole(self, compute: Array) -> Array:
        """Draws of the expected reward at some budgets, failures included, shape ``(draws, settings, points)``."""
        return self._with_failures(self.healthy(compute))

    def _with_failures(self, rewards: Array) -> Array:
        lost = np.maximum(rewards - self.failed_reward[:, None], 0.0)
        return np.asarray(rewards - self.failing[:, :, None] * lost)

    def decide(self, budget: float, *, unit: str | None = None, guess: bool = False) -> Decision:
        """The settings at a budget, the one with the least expected regret first.

        Args:
            unit: Unit of the budget. Either that of the fit or, for a fit in rollouts, ``tokens`` or ``gpu_hours``;
                these buy each setting a number of rollouts that depends on its response length or step time.
            guess: Decide even if no setting is known at the budget, as when choosing what to run next.

        Raises:
            FrontierError: The budget is not above 0, is less than a batch, is more than 64 times what was measured or
                less than a 64th of it, lies so far beyond the data that every setting's interval is far wider than any
                gain (unless ``guess``), or is in a unit that the table does not hold.
        """
        if not (np.isfinite(budget) and budget > 0):
            raise FrontierError(f"the budget is {budget}; it must be above 0")
        lengths = self._lengths(unit or self.unit)
        compute = budget / lengths
        if (factor := float(compute.min()) / self.largest) > FARTHEST * self._slack:
            raise FrontierError(
                f"{short(budget)} {unit or self.unit} is {factor:,.0f} times the {short(self.largest)} {self.unit} "
                f"that were measured; nothing is said beyond {FARTHEST:.0f} times, {short(FARTHEST * self.largest)}"
            )
        if budget < (least := self._least * lengths).max() * (1 - TOLERANCE):
            cell = self.settings[int(least.argmax())]
            step = f"one step of n = {cell.rollouts_per_problem} and B_p = {cell.problems_per_batch}"
            first = f"a {FARTHEST:.0f}th of the first evaluation"
            why = step if self._least.max() > self.path_start / FARTHEST else first
            raise FrontierError(
                f"{short(budget)} {unit or self.unit} is too little to compare: the least is {least.max():,.10g}, {why}"
            )
        healthy = self.healthy(compute[:, None])[:, :, 0]
        reach = compute / np.append(self.last, np.full(len(self.lost), self.largest))
        low, high = np.quantile(healthy, [0.025, 0.975], axis=0)
        shorter = reach > EARLIER * reach.min()
        # The possible gain of a setting with shorter runs is not judged by the gains of others.
        most = np.where(shorter, np.append(self.gained, np.zeros(len(self.lost))), UNKNOWN * self.gained.max())
        wide = (reach > self._slack) & (high - low > most)
        # A setting whose interval is as wide as the others' is as well known as they are.
        known = ~(wide & (self._early | shorter))
        if guess and not known.any():
            known[:] = True
        if not known.any() or (wide.all() and not guess):
            k = int(reach.argmin())
            raise FrontierError(
                f"at {short(budget)} {unit or self.unit} the reward of n = {self.settings[k].rollouts_per_problem} may "
                f"be {low[k]:.2f} to {high[k]:.2f}, where no n had gained more than {self.gained.max():.2f} by "
                f"{short(self.largest)} {self.unit}: measure farther first (`next` says what)"
            )
        whole = self._with_failures(healthy[:, :, None])[:, :, 0]
        within = np.where(reach <= self._slack, np.minimum(reach, 1.0), reach)
        return decide(budget, self.settings, whole, healthy, self.failing.mean(axis=0), within, known)

    @cached_property
    def _early(self) -> Mask:
        """Settings that had not made half of their gain by their last evaluation, shape ``(settings,)``."""
        made = self.posterior.share(self.last[:, None])[:, :, 0].mean(axis=0)
        return np.append(made < RISEN, np.ones(len(self.lost), dtype=np.bool_))

    @property
    def _least(self) -> Array:
        """Smallest compute of each setting at which anything is said, shape ``(settings,)``."""
        batch = np.array([c.batch_rollouts for c in self.settings]) if self.unit == "rollouts" else 0.0
        # An evaluation before a whole batch means that compute is not counted in single rollouts.
        return np.clip(batch, self.path_start / FARTHEST, self.path_start) * np.ones(len(self.settings))

    @cached_property
    def _slack(self) -> float:
        """Ratio of budget to data that still counts as within the data: the largest batch, or 5 %."""
        largest = max(c.batch_rollouts for c in self.cells) if self.unit == "rollouts" else 0.0
        return 1 + max(SLACK, largest / self.largest)

    @cached_property
    def misfits(self) -> tuple[Misfit, ...]:
        """The settings whose curves do not fit their own runs."""
        return misfits(self.posterior)

    @cached_property
    def endings(self) -> tuple[Ending, ...]:
        """Where the runs of each setting were measured to end, the highest first."""
        return endings(self.posterior)

    def doubts(self, decision: Decision) -> tuple[Misfit, ...]:
        """The misfits among settings that could be best at a budget, by their curves or by measurement."""
        floor = decision.chosen.interval[0]
        high = {e.cell: e.interval[1] for e in self.endings}
        shares = {o.cell: o.probability_best for o in decision.options}
        return tuple(
            m
            for m in self.misfits
            if m.cell == decision.chosen.cell or shares[m.cell] >= COULD_WIN or high[m.cell] >= floor
        )

    @cached_property
    def gained(self) -> Array:
        """Mean gain of each setting from the start to its last evaluation, shape ``(cells,)``."""
        start = self.posterior.model.start(self.posterior.theta).mean()
        return np.asarray(self.posterior.reward(self.last[:, None])[:, :, 0].mean(axis=0) - start)

    def _lengths(self, unit: str) -> Array:
        """Cost of the fit's unit in another unit, by setting, shape ``(settings,)``."""
        if unit == self.unit:
            return np.ones(len(self.settings))
        lengths = {"tokens": self.tokens_per_rollout, "gpu_hours": self.hours_per_rollout}.get(unit, ())
        if self.unit != "rollouts" or not lengths:
            raise FrontierError(
                f"the fit is in {self.unit}, and its table does not say how many {unit.replace('_', ' ')} these are: "
                f"fit with --{'timings' if unit == 'gpu_hours' else f'unit {unit}'}"
            )
        own = np.array(lengths)
        # A setting without a curve is assumed to be as long as the others.
        return np.append(own, np.full(len(self.lost), own.mean()))

    def compute_of(self, cell: Setting, budget: float, unit: str) -> float:
        """What a setting gets for a budget, in the unit of the fit."""
        return float(budget / self._lengths(unit)[self.settings.index(cell)])

    def best(self, compute: float) -> Option:
        """The setting with the least expected regret at a budget."""
        return self.decide(compute).chosen

    def predict(self, compute: float | Sequence[float], *, n: int) -> pl.DataFrame:
        """Reward of an n at some compute, whether it was run or not: ``compute``, ``reward``, ``low`` and ``high``.

        Args:
            compute: In the unit of the fit.
            n: Rollouts per problem. If several settings have it, the one with the least regret is used. An n that was
                not run takes the B_p of the setting chosen at the largest compute, and its rate scaled by the root of
                n.
        """
        at = np.atleast_1d(np.asarray(compute, dtype=np.float64))
        options = self.decide(self.largest).options
        own = next((o.cell for o in options if o.cell.rollouts_per_problem == n and o.cell in self.cells), None)
        if own is None:
            cell = at_n(options[0].cell, n)
            drawn = self.posterior.reward_of((cell,), at, rng=np.random.default_rng([self.seed, 2]))[:, 0]
        else:
            drawn = self.posterior.reward(at)[:, self.cells.index(own)]
        return _band(at, drawn)

    def forecast(self, run: str, compute: float | Sequence[float]) -> pl.DataFrame:
        """Future reward of one run, including its seed effect; columns as in ``predict``.

        Args:
            run: Its ``run_id``, or its name, such as ``n = 8, seed 1``.
            compute: In the unit of the fit.

        Raises:
            FrontierError: No such run was fitted.
        """
        names = [(h.run_id, h.name) for h in self.prepared.health if h.fitted]
        where = next((k for k, known in enumerate(names) if run in known), None)
        if where is None or len(names) != len(self.prepared.runs.cell):
            raise FrontierError(f"no run {run!r} was fitted; there are {', '.join(known for _, known in names)}")
        at = np.atleast_1d(np.asarray(compute, dtype=np.float64))
        return _band(at, self.posterior.of_run(where, at))

    def best_rates(self, compute: float) -> BestRates | None:
        """The best learning rate of each n at a budget; None if no n was run at several rates, or there is only one n.

        The curves of rates that were not run are their expected ones, without departures.
        """
        chosen = self.best(compute).cell
        own = [c for c in self.cells if (c.problems_per_batch, c.group) == (chosen.problems_per_batch, chosen.group)]
        ns = sorted({c.rollouts_per_problem for c in own})
        rates = [c.learning_rate for c in own if c.learning_rate]
        if not self.posterior.model.rates or len(ns) < 2 or not rates:
            return None
        grid = np.geomspace(min(rates) / BEYOND, max(rates) * BEYOND, RATES)
        best = np.empty((len(self.posterior.theta), len(ns)))
        for k, n in enumerate(ns):
            cells = tuple(replace(chosen, rollouts_per_problem=n, learning_rate=float(rate)) for rate in grid)
            best[:, k] = grid[self.posterior.reward_of(cells, compute)[:, :, 0].argmax(axis=1)]
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
        )

    def regret(self, compute: float) -> pl.DataFrame:
        """All settings at a budget, one per row, sorted by expected regret."""
        return pl.DataFrame([option_row(o) for o in self.decide(compute).options])

    def path(self) -> DecisionPath:
        """n* over the measured range of compute."""
        return path_of(self.path_start, self.largest, self.settings, self.decide, self.whole)

    def answer(self, budget: float | None = None, *, unit: str | None = None) -> Answer:
        """The sixty-second answer at a budget, by default the largest that was measured; units as in ``decide``."""
        whole = self.largest if budget is None else budget
        decision = self.decide(whole, unit=unit)
        compute = self.compute_of(decision.chosen.cell, whole, unit or self.unit)
        doubts = self.doubts(decision)
        several = differing(self.prepared.failures)[0]
        # A misfit that cannot be best does not change the answer, but is named.
        astray = [
            f"a curve for {called(m.cell, several=several, rated=True)}, whose runs it does not fit ({m.evidence})"
            for m in self.misfits
            if m not in doubts
        ]
        enough = compute / 4 >= self.path_start * (1 - TOLERANCE)
        return Answer(
            data=of_data(self.prepared, self.unit),
            metric=self.metric,
            unit=unit or self.unit,
            compute=compute,
            decision=decision,
            earlier=self.decide(whole / 4, unit=unit) if enough else None,
            path=self.path(),
            cells=self.settings,
            path_unit=self.unit,
            beyond=self._beyond(decision, unit),
            unmeasured=self._unmeasured(decision, compute),
            risk=of_risk(self.prepared, self.failing.mean(axis=0)[: len(self.cells)]),
            missing=(*astray, *left_out_of(self.prepared, self.posterior, caveats=self.caveats)),
            factor=compute / self.largest,
            misfits=doubts,
            endings=self.endings,
            of_training=self.of_training,
        )

    def _beyond(self, decision: Decision, unit: str | None) -> tuple[float, float] | None:
        """The farthest budget, within the counted coverage, at which the same n leads in every part of the draws."""
        chosen, found = decision.chosen.cell, None
        for factor in (2.0, 4.0):
            budget = decision.compute * factor
            compute = budget / self._lengths(unit or self.unit)
            if decision.unknown or float(compute.min()) > COUNTED * self.largest * (1 + SLACK):
                break
            later = self.decide(budget, unit=unit, guess=True)
            whole = self.whole(compute[:, None])[:, :, 0]
            own = [k for k, c in enumerate(self.settings) if c.key == chosen.key]
            leads = np.isin(whole.argmax(axis=1), own)
            # Draws are ordered by step, with one draw per chain in each step.
            sure = min(float(leads[part::PARTS].mean()) for part in range(PARTS)) >= SURE_BEYOND
            if later.unknown or later.chosen.cell.key != chosen.key or not sure:
                break
            found = (budget, float(leads.mean()))
        return found

    def _unmeasured(self, decision: Decision, compute: float) -> Unmeasured:
        """The next smaller or larger n at the chosen B_p and group, whichever has the larger expected gain."""
        chosen = decision.chosen.cell
        own = [c.rollouts_per_problem for c in self.settings if c.problems_per_batch == chosen.problems_per_batch]
        rng = np.random.default_rng([self.seed, 2])
        known = self.healthy(np.array([compute]))[:, self.settings.index(chosen), 0]
        found = []
        for n in (min(own) // 2, max(own) * 2):
            if n >= 2:
                gain = self.posterior.reward_of((at_n(chosen, n),), compute, rng=rng)[:, 0, 0] - known
                mean, share = float(np.maximum(gain, 0.0).mean()), float((gain > 0).mean())
                found.append(Unmeasured(rollouts_per_problem=n, gain=mean, probability=share))
        return max(found, key=lambda each: each.gain)


def at_n(cell: Setting, n: int) -> Setting:
    """The setting at another n, with its learning rate scaled by √B."""
    rate = cell.learning_rate and cell.learning_rate * (n / cell.rollouts_per_problem) ** 0.5
    return replace(cell, rollouts_per_problem=n, learning_rate=rate)


def _band(compute: Array, drawn: Array) -> pl.DataFrame:
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    return pl.DataFrame({"compute": compute, "reward": drawn.mean(axis=0), "low": low, "high": high})


QUICK = (16, 24, 16)
"""Chains, warm-up steps and kept steps of a fit that only checks another one."""
FAR = 2.0
"""A deviation farther than this many standard deviations of its prior conflicts with the prior."""
RATES = 33
"""Number of learning rates in the search for the best, log-uniform."""
BEYOND = 2.0
"""Factor by which the search for the best learning rate extends beyond those that were run."""
WORDS = {
    "seeds": ("seeds differ in gain", "seeds differ in timing"),
    "smooth": ("gains vary from n to n", "timing varies from n to n"),
    "departure": ("single settings depart in gain", "single settings depart in timing"),
}


def left_out(fitted: Fitted) -> dict[int, tuple[float, float, float]]:
    """Leave out each n in turn, with all its settings, and predict it from the others; empty for fewer than four n.

    If an n has several settings, the one with the highest reward is predicted.

    Returns:
        By n, the mean of its fitted reward at the end of its data, and the 95 % interval predicted without its runs.
    """
    runs = fitted.prepared.runs
    ns = sorted({c.rollouts_per_problem for c in fitted.cells})
    found = {}
    for n in ns if len(ns) >= 4 else ():
        own = [k for k, c in enumerate(fitted.cells) if c.rollouts_per_problem == n]
        last = float(fitted.last[own].min())
        rewards = fitted.posterior.reward(last)[:, own, 0].mean(axis=0)
        best = own[int(rewards.argmax())]
        rest = runs.only(np.flatnonzero(~np.isin(runs.cell, own)))
        others = posterior(rest, priors=fitted.posterior.model.priors, seed=fitted.seed, size=QUICK)
        drawn = others.reward_of((fitted.cells[best],), last, rng=np.random.default_rng(fitted.seed))[:, 0, 0]
        low, high = np.quantile(drawn, [0.025, 0.975])
        found[n] = (float(rewards.max()), float(low), float(high))
    return found


def left_out_line(found: dict[int, tuple[float, float, float]]) -> str:
    """Summarise the leave-one-out check in a line."""
    missed = [
        f"n = {n}: {reward:.3f}, predicted {low:.3f}–{high:.3f}"
        for n, (reward, low, high) in found.items()
        if not low <= reward <= high
    ]
    inside = f"{len(found) - len(missed)} of {len(found)} inside the 95 % interval"
    text = f"Each n left out and predicted from the others: {inside}"
    return text + (f" (not {'; '.join(missed)})" if missed else "")


def conflicts(fitted: Fitted) -> list[str]:
    """Deviations that the data place far from the prior's expectation, as sentences."""
    model, theta = fitted.posterior.model, fitted.posterior.theta
    said = []
    for kind, words in WORDS.items():
        family = model.families[kind]
        off = theta[:, model.parts[kind + "_sd"]].mean(axis=0)
        deviation = model.deviation(theta, kind).mean(axis=0)
        for k in np.flatnonzero(np.abs(off) > FAR):
            said.append(f"{words[k]} by {deviation[k]:.2g}, where {family.median[k]:.2g} was expected")
    return said


@dataclass(frozen=True, slots=True, kw_only=True)
class BestRates:
    """The best learning rate of each n at one budget.

    Attributes:
        rate: Median of each n's best rate.
        interval: Their 95 % intervals; one that reaches an end of the search range is open there.
        exponent: Median exponent of B in the best rate: ½ is the √B rule.
        exponent_interval: Its 95 % interval.
    """

    rollouts_per_problem: tuple[int, ...]
    rate: tuple[float, ...]
    interval: tuple[tuple[float, float], ...]
    exponent: float
    exponent_interval: tuple[float, float]

    def line(self) -> str:
        """Summarise the rates in a line."""
        low, high = self.exponent_interval
        each = ", ".join(f"{r:.2g} at n = {n}" for n, r in zip(self.rollouts_per_problem, self.rate, strict=True))
        rule = "the √B rule lies inside" if low <= 0.5 <= high else "the √B rule lies outside"
        return f"Best learning rate: {each}; it grows as B to the {self.exponent:.2f} ({low:.2f}–{high:.2f}): {rule}"

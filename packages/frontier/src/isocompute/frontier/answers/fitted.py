"""A fitted sweep: what it says at any budget, the sentences of that answer, and its files.

A fit on disk is ``posterior.json``, ``draws.parquet`` and ``runs.parquet``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ..contract.files import write_text
from ..data.curves import TOLERANCE, Array
from ..data.reading import short, write_parquet
from ..errors import FrontierError
from ..posterior.decision import NEAR, Decision, DecisionPath, Option, decide, failure_rates, path_of
from ..posterior.health import FAILED, Finding, Health, Kind
from ..posterior.model import Model, Priors, coordinates
from ..posterior.posterior import AGREED, Posterior
from ..posterior.preparation import Failures, Prepared
from ..posterior.runs import Runs, Setting, padded
from . import paper

UNKNOWN = 1.0
"""Width of a setting's 95 % interval beyond its data, over all that it had gained, from which on it is not known."""
SURE_BEYOND = 0.8
"""P(best) that a setting must have for its lead to be carried on beyond the data."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Fitted:
    """The posterior of a sweep.

    Attributes:
        unit: Of compute.
        tokens_per_rollout: Mean tokens of a response of each setting; empty where the table does not say.
        caveats: Limits of the answer beside those that the runs show.
        seed: Fixes all random draws.
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
        """As of the function ``differing``."""
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
            guess: Decide even where no setting is known at the budget, as for what to run next.

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
            budget,
            tuple(self.cells[k] for k in known),
            rewards[:, known],
            self.failing[known],
            self.failed_reward[known],
            reach[known],
        )
        return replace(found, unknown=tuple(c for k, c in enumerate(self.cells) if k not in known))

    @cached_property
    def gained(self) -> Array:
        """Mean gain of each setting over the start by its last evaluation, shape ``(cells,)``."""
        start = self.posterior.model.start(self.posterior.theta).mean()
        return np.asarray(self.posterior.reward(self.last[:, None])[:, :, 0].mean(axis=0) - start)

    def _lengths(self, unit: str) -> Array:
        """Cost of a unit of the fit in another one, by setting, shape ``(cells,)``."""
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

    def path(self) -> DecisionPath:
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
            data=of_data(self.prepared, self.unit),
            metric=self.metric,
            unit=unit or self.unit,
            compute=compute,
            decision=decision,
            earlier=self.decide(whole / 4, unit=unit) if enough else None,
            path=self.path(),
            cells=self.cells,
            path_unit=self.unit,
            beyond=self._beyond(decision, unit),
            unmeasured=self._unmeasured(decision, compute),
            risk=of_risk(self.prepared, self.failing),
            missing=left_out_of(self.prepared, self.posterior, caveats=self.caveats),
        )

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
        "rollouts_per_problem": option.cell.rollouts_per_problem,
        "problems_per_batch": option.cell.problems_per_batch,
        "learning_rate": option.cell.learning_rate,
        "group": option.cell.group,
        "reward": option.reward,
        "reward_low": low,
        "reward_high": high,
        "regret": option.regret,
        "loss": option.loss,
        "loss_low": loss_low,
        "loss_high": loss_high,
        "probability_best": option.probability_best,
        "failure": option.failure,
        "reach": option.reach,
    }


def at_n(cell: Setting, n: int) -> Setting:
    """The setting at another n, with its learning rate scaled by √B."""
    rate = cell.learning_rate and cell.learning_rate * (n / cell.rollouts_per_problem) ** 0.5
    return replace(cell, rollouts_per_problem=n, learning_rate=rate)


def _band(compute: Array, drawn: Array) -> pl.DataFrame:
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    return pl.DataFrame({"compute": compute, "reward": drawn.mean(axis=0), "low": low, "high": high})


MOST_NAMED = 7
"""Settings whose loss is given one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmeasured:
    """A number of rollouts per problem that was not run, against the chosen setting at the budget.

    Attributes:
        gain: Expected gain if the better of the two were known.
        probability: That it is better.
    """

    rollouts_per_problem: int
    gain: float
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The sixty-second answer: what to use at a budget, what the others lose, how sure that is, and what is not in it.

    Attributes:
        data: The sentence about the runs.
        unit: Of the budget.
        compute: What the chosen setting gets for the budget, in the unit of the fit.
        earlier: At a quarter of it, where that was measured.
        path: n* over the compute that was measured.
        path_unit: Unit of the fit.
        beyond: The largest multiple of the budget at which the same setting is still chosen, and its P(best) there.
        risk: The sentence about failures.
        missing: What the answer leaves out.
    """

    data: str
    metric: str
    unit: str
    compute: float
    decision: Decision
    earlier: Decision | None
    path: DecisionPath
    path_unit: str
    cells: tuple[Setting, ...]
    beyond: tuple[float, float] | None
    unmeasured: tuple[Unmeasured, ...]
    risk: str
    missing: tuple[str, ...]

    def lines(self) -> list[str]:
        """The answer, a line each; of an n and B_p at several rates only the best one is named."""
        several = len({c.problems_per_batch for c in self.cells}) > 1
        lines = [self.data, self._use(), "  " + self._losses(several)]
        if len(self.decision.options) > 1:
            lines.append(self._path(several))
        if self._beyond():
            lines.append(self._beyond())
        return [*lines, f"Risk: {self.risk}", f"Not in this: {'; '.join(self.missing)}"]

    def _use(self) -> str:
        chosen = self.decision.chosen
        cell = chosen.cell
        rate = f", learning rate {cell.learning_rate:.2g}" if cell.learning_rate else ""
        steps = f", {self.compute / cell.batch_rollouts:,.0f} steps" if self.path_unit == "rollouts" else ""
        group = f", {cell.group}" if cell.group else ""
        low, high = chosen.interval
        words = "use" if chosen.probability_best >= 0.5 else "the least expected regret is with"
        return (
            f"At {short(self.decision.compute)} {self.unit} {words} n = {cell.rollouts_per_problem}, "
            f"B_p = {cell.problems_per_batch}{steps}{rate}{group}     {self.metric} {chosen.reward:.3f} "
            f"(95 %: {low:.3f}–{high:.3f})   "
            f"P(best) {percent(chosen.probability_best)}"
        )

    def _losses(self, several: bool) -> str:
        others = at_best_rates(self.decision.options)[1:]
        if not others and not self.decision.unknown:
            return "nothing else was run"
        near = at_best_rates(self.decision.near())
        said = _alike(near, several)
        far = [o for o in others if o not in near]
        if far:
            low, high = far[0].loss_interval
            first = f"{listed(far[:1], several)} gets {far[0].loss:.3f} less (95 %: {signed(low)} to {signed(high)})"
            rest = [f"{listed([o], several)} {o.loss:.3f}" for o in far[1:MOST_NAMED]]
            if more := far[MOST_NAMED:]:
                rest.append(f"{len(more)} more up to {more[-1].loss:.3f}")
            said.append(", ".join([first, *rest]))
        if self.decision.unknown:
            names = dict.fromkeys(name(c, several) for c in self.decision.unknown)
            said.append(f"not known here, for its runs end too early: {', '.join(names)}")
        text = "; ".join(said) + "."
        if self.earlier is not None:
            # What n* is there, so that both say the same of two that are as good.
            kept = self.cells[self.path.at(self.compute / 4)]
            near = sorted(at_best_rates(self.earlier.near()), key=lambda option: _key(option.cell) != _key(kept))
            best = f"n* = {name(near[0].cell, several)}, P(best) {percent(near[0].probability_best)}"
            text += f"  At {short(self.earlier.compute)}: {'; '.join([best, *_alike(near, several)])}."
        return text

    def _path(self, several: bool) -> str:
        names = [name(c, several) for c in self.cells]
        # Another rate of the same n and B_p is no other n.
        changes = [c for c in self.path.changes if names[c.before] != names[c.after]]
        if not changes:
            return f"n*: {names[int(self.path.chosen[-1])]} at every budget"
        parts = [names[changes[0].before]]
        first, last = short(float(self.path.compute[0])), short(float(self.path.compute[-1]))
        for change in changes:
            low, high = change.interval
            span = f"{short(low) if low else f'<{first}'} to {short(high) if high else f'>{last}'}"
            said = f"90 % interval: {span}" if len(parts) == 1 else span
            parts.append(f"{names[change.after]} at {short(change.compute)} ({said})")
        return "n*: " + " → ".join(parts)

    def _beyond(self) -> str:
        said, chosen = [], self.decision.chosen.cell.rollouts_per_problem
        if self.beyond is not None:
            until, share = self.beyond
            said.append(f"Beyond: {chosen} to at least {short(until)} (P {percent(share)}).")
        worth = [u for u in self.unmeasured if u.gain > 0.001]
        if worth:
            best = max(worth, key=lambda u: u.gain)
            at = short(self.decision.compute)
            said.append(
                f"n = {best.rollouts_per_problem} was not run: by extrapolation it is better than {chosen} at {at} "
                f"with probability {percent(best.probability)} (expected improvement from trying it: {best.gain:.3f})."
            )
        return " ".join(said)


def _alike(near: Sequence[Option], several: bool) -> list[str]:
    """The sentence about settings that are as good as the first, if there are any."""
    if len(near) == 1:
        return []
    shares = ", ".join(percent(o.probability_best) for o in sorted(near[1:], key=lambda option: _key(option.cell)))
    verb = "are" if len(near) > 2 else "is"
    return [f"{listed(near[1:], several)} {verb} within {NEAR} of that (P(best) {shares})"]


def at_best_rates(options: Sequence[Option]) -> list[Option]:
    """The first option of each n, B_p and group."""
    first: dict[tuple[int, int, str], Option] = {}
    for option in options:
        first.setdefault(_key(option.cell), option)
    return list(first.values())


def name(cell: Setting, several: bool, rated: bool = False) -> str:
    """A setting to be printed: n, with B_p and the rate where settings differ in them."""
    text = f"{cell.rollouts_per_problem}" + (f" × {cell.problems_per_batch}" if several else "")
    text += f" at {cell.learning_rate:.2g}" if rated and cell.learning_rate else ""
    return f"{text} {cell.group}".strip()


def listed(options: Sequence[Option], several: bool) -> str:
    """Settings in the order of n: "8, 16 and 32"."""
    names = list(dict.fromkeys(name(o.cell, several) for o in sorted(options, key=lambda option: _key(option.cell))))
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _key(cell: Setting) -> tuple[int, int, str]:
    """Identify a setting whatever its learning rate; settings are listed in this order."""
    return cell.rollouts_per_problem, cell.problems_per_batch, cell.group


def signed(number: float) -> str:
    """A number with three digits and a minus that is no hyphen."""
    return f"{number:.3f}".replace("-", "−")


def percent(share: float) -> str:
    """A share as whole percent, never 0 or 100 from draws."""
    return "<1 %" if share < 0.005 else ">99 %" if share > 0.995 else f"{100 * share:.0f} %"


MOST = 3
"""Failures named in a sentence; the report names all."""
CONSTANT = 0.1
"""Difference of two exponents of the learning rate in n that nobody tells apart."""


def differing(cells: Collection[Setting]) -> tuple[bool, bool]:
    """Return whether settings differ in B_p, and whether some n and B_p was run at several rates."""
    return len({c.problems_per_batch for c in cells}) > 1, len({_key(c) for c in cells}) < len(cells)


def of_data(prepared: Prepared, unit: str) -> str:
    """The sentence about the runs."""
    health, runs = prepared.health, prepared.runs
    several, rated = differing(prepared.failures)
    seeds = Counter(np.bincount(runs.cell, minlength=len(runs.cells)).tolist())
    points = Counter((runs.seen & (runs.compute > 0)).sum(axis=1).tolist())
    failed = [h for h in health if h.failed]
    settings = f"{len(runs.cells)} settings" if several or rated else f"{len(runs.cells)} values of n"
    what = "run" if len(runs.bases) > 1 else "seed"
    text = f"{len(runs.bases)} base models; " if len(runs.bases) > 1 else ""
    text += (
        f"{settings} × {_span(seeds)} {what}{'s' if max(seeds) > 1 else ''} × {_span(points)} evaluations to "
        f"{short(float(runs.last.max()))} {unit}; {len(health)} run{'s' if len(health) > 1 else ''}"
    )
    if failed:
        named = [f"{h.name}: {' and '.join(sorted(k for k in h.kinds if k in FAILED))}" for h in failed]
        text += f", of which {len(failed)} failed ({'; '.join(named[:MOST])}{'; …' if len(named) > MOST else ''})"
    return text


def of_risk(prepared: Prepared, failing: Array) -> str:
    """The sentence about failures.

    Args:
        failing: Probability that the next run of each cell fails, shape ``(cells,)``.
    """
    every, cells = prepared.failures, prepared.runs.cells
    count, total = sum(f.failed for f in every.values()), sum(f.runs for f in every.values())
    if not count:
        return f"none of {total} runs failed; the next one does with about {percent(float(failing.mean()))}"
    several, rated = differing(prepared.failures)
    own = [every[c] for c in cells]
    worst = [k for k in np.argsort(-failing).tolist() if own[k].failed][:MOST]
    said = [
        f"n = {name(cells[k], several, rated)} with {percent(float(failing[k]))} ({own[k].failed} of {own[k].runs} did)"
        for k in worst
    ]
    calm = [failing[k] for k, f in enumerate(own) if not f.failed]
    if calm:
        said.append(f"one of the {'others' if worst else 'settings above'} with {percent(float(np.mean(calm)))}")
    never = [c for c, f in every.items() if c not in cells and f.failed]
    lost = f"; no run came through of n = {', '.join(name(c, several, rated) for c in never)}" if never else ""
    return f"{count} of {total} runs failed; the next run fails: {', '.join(said)}{lost}"


def left_out_of(prepared: Prepared, posterior: Posterior, *, caveats: tuple[str, ...]) -> tuple[str, ...]:
    """Name what the answer does not hold for, and what makes it doubtful."""
    runs = prepared.runs
    missing = [] if len(runs.bases) > 1 else ["one base model", "one problem set"]
    if posterior.luck is None:
        missing.append("the luck of which validation questions are asked")
    if not differing(prepared.failures)[1]:
        missing.append(_of_rates(runs.cells))
    if np.bincount(runs.cell).max() == 1:
        assumed = 100 * posterior.model.priors.seed_amplitude
        missing.append(f"one seed: that seeds differ by {assumed:.0f} % of the gain is assumed")
    if posterior.split_r_hat > AGREED:
        missing.append(f"certainty about the fit itself: its chains do not agree (split R̂ {posterior.split_r_hat:.2f})")
    return (*missing, *caveats)


def _of_rates(cells: tuple[Setting, ...]) -> str:
    """Name the limit on learning rates where each n and B_p has one rate, which cannot be told from them."""
    known = [(c.batch_rollouts, c.learning_rate) for c in cells if c.learning_rate]
    if len(known) < len(cells):
        return "the learning rate, which the runs do not say"
    batch, rate = np.log(np.array(known)).T
    slope = float(np.polyfit(batch, rate, 1)[0]) if np.ptp(batch) > 0 else 0.0
    scattered = len(known) > 1 and np.ptp(rate - slope * batch) > CONSTANT
    if not scattered and abs(slope) < CONSTANT:
        return "other learning rates than the one of all runs"
    if not scattered and abs(slope - 0.5) < CONSTANT:
        return "other learning rates: each n at one, scaled by √B"
    low, high = min(cells, key=lambda c: c.learning_rate or 0.0), max(cells, key=lambda c: c.learning_rate or 0.0)
    return (
        f"whether n or the learning rate makes the difference: they change together, from {low.learning_rate:.2g} at "
        f"n = {low.rollouts_per_problem} to {high.learning_rate:.2g} at n = {high.rollouts_per_problem}"
    )


def _span(counted: Counter[int]) -> str:
    return f"{min(counted)}" if len(counted) == 1 else f"{min(counted)}–{max(counted)}"


DOCUMENT, DRAWS, RUNS = "posterior.json", "draws.parquet", "runs.parquet"


def save(fitted: Fitted, folder: str | Path) -> None:
    """Write a posterior; the same one gives the same bytes.

    Raises:
        FrontierError: The folder cannot be written to.
    """
    folder = Path(folder)
    prepared, model = fitted.prepared, fitted.posterior.model
    document = {
        "metric": fitted.metric,
        "unit": fitted.unit,
        "seed": fitted.seed,
        "split_r_hat": fitted.posterior.split_r_hat,
        "error_is_known": model.runs.error_is_known,
        "priors": asdict(model.priors),
        "cells": [asdict(c) for c in model.runs.cells],
        "bases": model.runs.bases,
        "notes": prepared.notes,
        "health": [{**asdict(h), "spikes": [int(k) for k in h.spikes]} for h in prepared.health],
        "failures": [
            {"cell": asdict(c), "failed": f.failed, "runs": int(f.runs), "reward": f.reward}
            for c, f in prepared.failures.items()
        ],
        "tokens_per_rollout": fitted.tokens_per_rollout,
        "caveats": fitted.caveats,
        "questions_sampled": fitted.posterior.luck is not None,
    }
    columns = {f"x{k}": values for k, values in enumerate(fitted.posterior.theta.T)}
    if fitted.posterior.luck is not None:
        flat = fitted.posterior.luck.reshape(len(fitted.posterior.luck), -1)
        columns |= {f"luck{k}": values for k, values in enumerate(flat.T)}
    write_parquet(pl.DataFrame(columns), folder / DRAWS)
    write_parquet(_runs_table(model.runs), folder / RUNS)
    # Last, since it says that the others are there.
    write_text(folder / DOCUMENT, json.dumps(document, indent=1, sort_keys=True) + "\n", error=FrontierError)


def load_fitted(folder: str | Path) -> Fitted:
    """Load a saved posterior.

    Raises:
        FrontierError: The folder holds no posterior, or a damaged one.
    """
    folder = Path(folder)
    if not (folder / DOCUMENT).is_file() and (folder / paper.DOCUMENT).is_file():
        raise FrontierError(f"{folder}: the paper's method has no intervals to prescribe from: fit without it")
    if not (folder / DOCUMENT).is_file():
        raise FrontierError(f"{folder}: holds no {DOCUMENT}; make one with `isocompute-frontier fit`")
    try:
        document = json.loads((folder / DOCUMENT).read_text())
        runs = _runs(pl.read_parquet(folder / RUNS), document)
        model = Model(runs=runs, priors=_priors(document["priors"]))
        draws = pl.read_parquet(folder / DRAWS)
        theta, luck = draws.select(pl.col("^x.*$")).to_numpy(), None
        if document["questions_sampled"]:
            luck = draws.select(pl.col("^luck.*$")).to_numpy().reshape(len(draws), 2, -1)
        if theta.shape[1] != model.size:
            raise ValueError(f"{theta.shape[1]} columns of draws for {model.size} numbers")
        prepared = Prepared(
            runs=runs,
            health=tuple(_health(h) for h in document["health"]),
            notes=tuple(document["notes"]),
            failures={
                Setting(**f["cell"]): Failures(failed=f["failed"], runs=f["runs"], reward=f["reward"])
                for f in document["failures"]
            },
        )
        return Fitted(
            metric=document["metric"],
            unit=document["unit"],
            prepared=prepared,
            seed=document["seed"],
            posterior=Posterior(model=model, theta=theta, split_r_hat=document["split_r_hat"], luck=luck),
            tokens_per_rollout=tuple(document["tokens_per_rollout"]),
            caveats=tuple(document["caveats"]),
        )
    except (OSError, KeyError, TypeError, ValueError, pl.exceptions.PolarsError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error).splitlines()[0]
        raise FrontierError(f"{folder}: the posterior is damaged or of another version ({what}): fit again") from None


def _runs_table(runs: Runs) -> pl.DataFrame:
    row, point = np.nonzero(runs.seen)
    columns: dict[str, Any] = {
        "run": row,
        "cell": runs.cell[row],
        "base": runs.base_of_run[row],
        "compute": runs.compute[row, point],
        "reward": runs.reward[row, point],
        "error": runs.error[row, point],
    }
    if runs.trials is not None:
        columns["trials"] = runs.trials[row, point]
    return pl.DataFrame(columns)


def _runs(table: pl.DataFrame, document: dict[str, Any]) -> Runs:
    each = table.partition_by("run", maintain_order=True)
    lengths = np.array([len(own) for own in each])

    def column(name: str, fill: float) -> np.ndarray:
        return padded([own[name].to_numpy() for own in each], fill)

    return Runs(
        cells=tuple(Setting(**c) for c in document["cells"]),
        cell=np.array([own["cell"][0] for own in each]),
        compute=column("compute", 1.0),
        reward=column("reward", 0.0),
        error=column("error", 1.0),
        seen=np.arange(lengths.max()) < lengths[:, None],
        trials=column("trials", 1.0) if "trials" in table.columns else None,
        error_is_known=document["error_is_known"],
        bases=tuple(document["bases"]),
        base=np.array([own["base"][0] for own in each]),
    )


def _priors(values: dict[str, Any]) -> Priors:
    plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    return Priors(**plain)


def _health(values: dict[str, Any]) -> Health:
    findings = tuple(Finding(**{**f, "kind": Kind(f["kind"])}) for f in values["findings"])
    return Health(**{**values, "findings": findings, "spikes": tuple(values["spikes"])})

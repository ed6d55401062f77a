"""``next``: what to run before deciding, ranked by the expected reduction of regret per unit of compute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ..data.curves import Array
from ..data.reading import counted, short
from ..errors import FrontierError
from ..posterior.decision import MOST_SEEDS, TIE, Action, Decision, Plan, seeds_to_tell, value_of
from ..posterior.density import SEED_DEGREES
from ..posterior.runs import Setting
from .answer import called, option_row, rounded
from .fitted import Fitted, at_n

DOMINATED = 0.01
"""A setting with P(best) below this is not worth another rollout."""


def plan(fitted: Fitted, compute: float, *, tell: Sequence[int] | None = None) -> Plan:
    """Rank possible runs for a decision at a budget.

    Args:
        compute: The budget to decide about, in the unit of the fit.
        tell: Two n for seeds to tell apart; by default those of the first two settings.

    Raises:
        FrontierError: The budget is not above 0, or an n to be told apart was not run.
    """
    decision = fitted.decide(compute, guess=True)
    rng = np.random.default_rng([fitted.seed, 3])
    opened = (*opening(fitted), *rates_to_open(fitted.cells, decision.chosen.cell))
    known = fitted.whole(np.array([compute]))[:, :, 0]
    rewards = np.concatenate([known, fitted.posterior.reward_of(opened, compute, rng=rng)[:, :, 0]], axis=1)
    # A setting that was not run can be chosen only once it is measured.
    actions = [*_of_measured(fitted, compute, known, rng), *_of_opened(fitted, compute, opened, rewards, rng)]
    actions = [replace(a, hours=_hours(fitted, a)) for a in actions]
    chosen, others = decision.chosen, decision.options[1:]
    pair = _pair(decision, tell)
    first, second = (known[:, fitted.settings.index(c)] for c in pair or (chosen.cell, chosen.cell))
    # Uncertainty would pull the mean difference towards 0.
    difference = float(np.sqrt(((first - second) ** 2).mean()))
    return Plan(
        compute=compute,
        actions=tuple(sorted(actions, key=lambda a: -a.rate)),
        dominated=tuple(o.cell for o in others if o.probability_best < DOMINATED),
        pair=pair,
        difference=difference,
        seeds=seeds_to_tell(difference, float(_run_noise(fitted, known).mean())),
        regret=max(chosen.regret, 0.0),
        chosen=chosen.cell,
        same_hours=_at_the_same_hours(fitted, decision),
    )


def _hours(fitted: Fitted, action: Action) -> float | None:
    """GPU-hours of an action; the cost of an n that was not run is interpolated."""
    if not fitted.hours_per_rollout:
        return None
    ns = np.log([c.rollouts_per_problem for c in fitted.cells])
    order = np.argsort(ns)
    costs = np.array(fitted.hours_per_rollout)[order]
    return action.rollouts * float(np.interp(np.log(action.cell.rollouts_per_problem), ns[order], costs))


def _at_the_same_hours(fitted: Fitted, decision: Decision) -> Decision | None:
    """The decision at the GPU-hours that the chosen setting needs for the budget."""
    if not fitted.hours_per_rollout or decision.chosen.cell not in fitted.cells:
        return None
    hours = decision.compute * fitted.hours_per_rollout[fitted.cells.index(decision.chosen.cell)]
    return fitted.decide(hours, unit="gpu_hours", guess=True)


def _pair(decision: Decision, tell: Sequence[int] | None) -> tuple[Setting, Setting] | None:
    """The settings to tell apart; of several with one n, that of least regret. None if there is only one setting."""
    options = [o.cell for o in decision.options]
    if tell is None:
        return (options[0], options[1]) if len(options) > 1 else None
    best = {cell.rollouts_per_problem: cell for cell in reversed(options)}
    if tell[0] == tell[1] or not set(tell) <= set(best):
        known = ", ".join(map(str, sorted(best)))
        raise FrontierError(f"n = {tell[0]} and {tell[1]} cannot be told apart: give two different n of {known}")
    return best[tell[0]], best[tell[1]]


def opening(fitted: Fitted) -> tuple[Setting, ...]:
    """Settings that could be opened: n between, below and above those that were run, at each B_p and group."""
    found = []
    for batch, group in sorted({(c.problems_per_batch, c.group) for c in fitted.cells}):
        own = [c for c in fitted.cells if (c.problems_per_batch, c.group) == (batch, group)]
        ns = sorted({c.rollouts_per_problem for c in own})
        middle = [round(np.sqrt(a * b)) for a, b in pairwise(ns) if b >= 3 * a]
        for n in (ns[0] // 2, *middle, ns[-1] * 2):
            if n >= 2 and n not in ns:
                nearest = min(own, key=lambda c: abs(np.log(c.rollouts_per_problem / n)))
                found.append(at_n(nearest, n))
    return tuple(found)


def rates_to_open(cells: Sequence[Setting], chosen: Setting) -> tuple[Setting, ...]:
    """The chosen setting at the next learning rates that were not run, one step of its grid (else 2) apart."""
    if not chosen.learning_rate:
        return ()
    here = [c.learning_rate for c in cells if replace(c, learning_rate=chosen.learning_rate) == chosen]
    own = sorted(rate for rate in here if rate)
    step = min((high / low for low, high in pairwise(own)), default=2.0)
    beyond = ((own[0], chosen.learning_rate / step), (own[-1], chosen.learning_rate * step))
    return tuple(replace(chosen, learning_rate=rate) for end, rate in beyond if end == chosen.learning_rate)


def _run_noise(fitted: Fitted, rewards: Array) -> Array:
    """Standard deviation of one run's last reward over seeds and evaluations, in each draw, ``(draws,)``."""
    model, theta = fitted.posterior.model, fitted.posterior.theta
    gain = rewards.max(axis=1) - model.start(theta)[:, 0]
    runs = fitted.prepared.runs
    error = float(np.median(runs.error[runs.seen])) * model.excess(theta)[:, 0]
    # The variance of Student's t is its squared scale times ν/(ν − 2).
    variance = model.deviation(theta, "seeds")[:, 0] ** 2 * SEED_DEGREES / (SEED_DEGREES - 2)
    return np.asarray(np.sqrt(variance * gain**2 + error**2))


def _of_measured(fitted: Fitted, compute: float, rewards: Array, rng: np.random.Generator) -> Iterator[Action]:
    noise = _run_noise(fitted, rewards)
    counts = np.bincount(fitted.prepared.runs.cell, minlength=len(fitted.cells))
    for k, cell in enumerate(fitted.cells):
        last = float(fitted.last[k])
        if last < compute * 0.999:
            value = value_of(rewards, rewards[:, k], noise / np.sqrt(counts[k]), rng=rng)
            cost = float(counts[k] * (compute - last))
            yield Action(kind="extend", cell=cell, until=compute, rollouts=cost, value=value)
        value = value_of(rewards, rewards[:, k], noise, rng=rng)
        yield Action(kind="seed", cell=cell, until=compute, rollouts=compute, value=value)


def _of_opened(
    fitted: Fitted, compute: float, opened: tuple[Setting, ...], rewards: Array, rng: np.random.Generator
) -> Iterator[Action]:
    noise, known = _run_noise(fitted, rewards), len(fitted.settings)
    for k, cell in enumerate(opened, start=known):
        own = rewards[:, [*range(known), k]]
        # Opening a setting adds a choice. Its value now is that of not having it: nobody uses what was never run.
        now = float(rewards[:, :known].mean(axis=0).max())
        value = value_of(own, own[:, -1], noise, rng=rng) + float(own.mean(axis=0).max()) - now
        yield Action(kind="open", cell=cell, until=compute, rollouts=compute, value=value)


def plan_lines(
    found: Plan, unit: str, *, metric: str = "reward", most: int = 5, price: float | None = None
) -> list[str]:
    """A plan as text; the price is per GPU-hour.

    Raises:
        FrontierError: A price is given but no timings are known.
    """
    cells = [a.cell for a in found.actions]
    several = len({c.problems_per_batch for c in cells}) > 1
    rated = len({c.learning_rate for c in cells}) > 1
    if price is not None and any(a.hours is None for a in found.actions):
        raise FrontierError("a price is of GPU-hours, which the fit does not know: fit with --timings")
    lines = [_stop_or_go_on(found, unit, metric, several, price)]
    lines.append(
        f"What could be run for a decision at {short(found.compute)} {unit}, the most gain per {unit[:-1]} first; gain "
        f"is the {metric} by which the setting then chosen is expected to be better than the one chosen now:"
    )
    verbs = {"extend": "extend {} to {}", "seed": "run another seed of {} to {}", "open": "run {}, which is new, to {}"}
    for action in found.actions[:most]:
        what = verbs[action.kind].format(called(action.cell, several=several, rated=rated), short(action.until))
        lines.append(f"  {what}: {_cost(action, unit, price)}, gain {action.value:.4f}")
    if found.dominated:
        lines.append(f"  run no more of {called(*found.dominated, several=several)}: P(best) below {DOMINATED:.0%}")
    if found.pair:
        first, second = (called(c, several=several) for c in found.pair)
        enough = found.seeds and f"about {counted(found.seeds, 'seed')} of each"
        count = enough or f"{MOST_SEEDS} seeds of each would not"
        lines.append(f"  {count} tell {first} from {second}, should they differ by {found.difference:.3f} {metric}")
    if found.same_hours is not None:
        best = found.same_hours.chosen
        share, hours = rounded(found.same_hours.probability_of(best.cell)), f"{found.same_hours.compute:.2g}"
        lines.append(
            f"At the same GPU-hours ({hours}) in place of {unit}: {called(best.cell, several=several)}, P(best) {share}"
        )
    return lines


def _stop_or_go_on(found: Plan, unit: str, metric: str, several: bool, price: float | None) -> str:
    """The line that says whether another run is worthwhile, given the expected regret of stopping."""
    now = f"{called(found.chosen, several=several)}, which would be chosen now, is expected to have"
    lose = f"{now} {found.regret:.4f} less {metric} than the best setting that was run"
    if found.done:
        return f"Stop: {lose}, and no run is expected to gain {TIE:g}"
    first = found.actions[0]
    new = ", as a new setting may be better than all of those" if first.kind == "open" else ""
    cost = _cost(first, unit, price)
    return f"Go on: {lose}; the first run below costs {cost} and is expected to gain {first.value:.4f}{new}"


def _cost(action: Action, unit: str, price: float | None) -> str:
    """The cost of an action, also in GPU-hours and money if known."""
    cost = f"{short(action.rollouts)} {unit}"
    if action.hours is not None:
        cost += f", {action.hours:.2g} GPU-hours" + (f", {price * action.hours:,.2f} at {price:g}" if price else "")
    return cost


def plan_document(found: Plan, unit: str) -> dict[str, Any]:
    """A plan as ``next --json`` writes it."""
    return {
        "stop": found.done,
        "budget": found.compute,
        "unit": unit,
        "regret": found.regret,
        "chosen": asdict(found.chosen),
        "actions": [{**asdict(a), "value_per_unit": a.rate} for a in found.actions],
        "dominated": [asdict(c) for c in found.dominated],
        "seeds": found.seeds,
        "same_gpu_hours": found.same_hours and option_row(found.same_hours.chosen),
    }

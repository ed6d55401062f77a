"""Measure the reward lost by choosing with the posterior, against other ways to choose from the same sweep, paired.

    python -m benchmarks.frontier.regret [--sweeps 80] [--only NAME …] [--out FILE]

A sweep has two seeds with a standard deviation of 5 % of the gain. Regret is the true reward of the best n less that
of the one chosen, at 1, 4 and 16 times the compute of the data. The rivals: each n fitted alone with the same rule
(least expected regret), and the n of highest mean reward over its last evaluations. ``healthy`` is the posterior's
highest mean, with no run that might fail and no preference among ties: what it loses less is the price of these. One
n of each sweep is also left out and its reward predicted. Budget: 1,500 CPU-seconds.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import polars as pl
from isocompute.frontier import Frontier
from isocompute.frontier.posterior.runs import Cell

from benchmarks.frontier.campaign import Bounds, Case, Records, main, means
from benchmarks.frontier.rivals import best_so_far, separate
from benchmarks.frontier.worlds import LAST, World, sweep, world

FACTORS = (1, 4, 16)
RIVALS = ("alone", "best so far")
EVERY = ("posterior", "healthy", *RIVALS)


def one(kind: str, number: int) -> dict[str, float]:
    """Measurements of one sweep."""
    rng = np.random.default_rng([number, 23])
    truth = world(kind, rng)
    evals = sweep(truth, rng, seeds=2, deviation=0.05)
    fitted, alone, so_far = Frontier(evals).fit(seed=number), separate(evals, number), best_so_far(evals)
    found: dict[str, float] = {}
    for factor in FACTORS:
        compute = float(factor * LAST)
        healthy = int(fitted.posterior.reward(compute)[:, :, 0].mean(axis=0).argmax())
        chosen = {
            "posterior": fitted.decide(compute).chosen.cell.rollouts_per_problem,
            "healthy": fitted.cells[healthy].rollouts_per_problem,
            "alone": alone.of_least_regret(compute),
            "best so far": so_far,
        }
        rewards = {n: float(truth.reward(n, np.array([compute]))[0]) for n in truth.gain}
        found.update({f"{who} {factor}": max(rewards.values()) - rewards[n] for who, n in chosen.items()})
    return {**found, **left_out(truth, evals, number, rng)}


def left_out(truth: World, evals: pl.DataFrame, number: int, rng: np.random.Generator) -> dict[str, float]:
    """Return whether the interval of an n that was left out covers its reward at the end of the data."""
    ns = list(truth.gain)
    n = int(rng.choice(ns))
    rest = Frontier(evals.filter(pl.col("rollouts_per_problem") != n)).fit(seed=number)
    cell = Cell(rollouts_per_problem=n, problems_per_batch=32)
    drawn = rest.posterior.reward_of((cell,), float(LAST), rng=rng)[:, 0, 0]
    low, high = np.quantile(drawn, [0.025, 0.975])
    covered = bool(low <= truth.reward(n, np.array([LAST]))[0] <= high)
    inner = n not in (ns[0], ns[-1])
    return {
        "left out: covered": covered,
        "left out: covered, inner n": covered if inner else np.nan,
        "left out: covered, outer n": np.nan if inner else covered,
        "left out: width": high - low,
    }


def statistic(records: Records) -> dict[str, float]:
    """Mean regrets in thousandths, and the posterior's over the better rival's at each compute."""
    found = means(records)
    regrets = {f"{who} {factor}": found.pop(f"{who} {factor}") for factor in FACTORS for who in EVERY}
    shown = {f"{who} {factor}, 1000 x": 1000 * regrets[f"{who} {factor}"] for factor in FACTORS for who in EVERY}
    for factor in FACTORS:
        better = min(regrets[f"{who} {factor}"] for who in RIVALS)
        shown[f"over the better at {factor}"] = regrets[f"posterior {factor}"] / max(better, 1e-6)
    total = {who: sum(regrets[f"{who} {factor}"] for factor in FACTORS) for who in EVERY}
    shown["over the better in all"] = total["posterior"] / max(min(total[who] for who in RIVALS), 1e-6)
    return {**shown, **found}


WANTED: dict[str, Bounds] = {
    **{f"over the better at {factor}": (None, 1.1) for factor in FACTORS},
    "over the better in all": (None, 1.1),
    "left out: covered": (0.9, None),
}
CASES = tuple(
    Case(name=kind, one=partial(one, kind), wanted=WANTED, statistic=statistic, sweeps=80)
    for kind in ("smooth", "odd", "rough", "paper")
)

if __name__ == "__main__":
    main(__doc__, CASES, overall=statistic, wanted=WANTED)

"""Measure how runs that failed, ended early or were evaluated badly change the choice: on clean sweeps, paired.

    python -m benchmarks.frontier.dirt [--sweeps 40] [--only NAME …] [--out FILE]

A clean sweep is a smooth world with 2 or 3 seeds. In copies of it: one run never takes off; one collapses late; all
runs of one n do; one ends early; 4 % of all evaluations are 0. Counted are how much the regret at the end of the data
grows, how often an n is chosen that the clean sweep held to be worse than its choice by more than 0.005, and how often
the health of the run names its kind. Where all runs of an n fail, it is no choice in either. Last, each n is given a
rate of its own: the answer has to say that n and rate are then one. Budget: 700 CPU-seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import polars as pl
from isocompute.frontier import Fitted, Frontier

from benchmarks.frontier.campaign import Bounds, Case, main
from benchmarks.frontier.worlds import LAST, SIZES, World, sweep, world

NEAR = 0.005
TRIALS = 1200
Dirty = tuple[pl.DataFrame, dict[str, str]]
"""A table, and the kind of each run that was changed."""


def _run(evals: pl.DataFrame, run_id: str) -> np.ndarray:
    return np.flatnonzero((evals["run_id"] == run_id).to_numpy())


def _with_rewards(evals: pl.DataFrame, rewards: np.ndarray) -> pl.DataFrame:
    return evals.with_columns(avg_at_4=pl.Series(rewards))


def dead(evals: pl.DataFrame, truth: World, n: int, rng: np.random.Generator) -> Dirty:
    """One seed of an n stays where it began."""
    rewards, own = evals["avg_at_4"].to_numpy().copy(), _run(evals, f"32-{n}-0")
    rewards[own[1:]] = rng.binomial(TRIALS, truth.start, len(own) - 1) / TRIALS
    return _with_rewards(evals, rewards), {f"32-{n}-0": "never took off"}


def _collapse(evals: pl.DataFrame, truth: World, runs: list[str], rng: np.random.Generator) -> Dirty:
    rewards = evals["avg_at_4"].to_numpy().copy()
    length, level = int(rng.integers(3, 6)), rng.uniform(0, truth.start)
    for run_id in runs:
        own = _run(evals, run_id)[-length:]
        after = np.full(length, level)
        after[0] = (rewards[own[0] - 1] + level) / 2
        rewards[own] = rng.binomial(TRIALS, after) / TRIALS
    return _with_rewards(evals, rewards), dict.fromkeys(runs, "collapsed")


def late_collapse(evals: pl.DataFrame, truth: World, n: int, rng: np.random.Generator) -> Dirty:
    """One seed of an n falls below its start in the last three to five evaluations."""
    return _collapse(evals, truth, [f"32-{n}-0"], rng)


def all_collapsed(evals: pl.DataFrame, truth: World, n: int, rng: np.random.Generator) -> Dirty:
    """All seeds of an n do."""
    runs = evals.filter(pl.col("rollouts_per_problem") == n)["run_id"].unique(maintain_order=True).to_list()
    return _collapse(evals, truth, runs, rng)


def early_end(evals: pl.DataFrame, truth: World, n: int, rng: np.random.Generator) -> Dirty:
    """One seed of an n ends at 6 to 33 % of the compute."""
    own = _run(evals, f"32-{n}-0")
    kept = np.ones(len(evals), dtype=bool)
    kept[own[int(rng.integers(6, 13)) + 1 :]] = False
    return evals.filter(kept), {f"32-{n}-0": "ended early"}


def zeros(evals: pl.DataFrame, truth: World, n: int, rng: np.random.Generator) -> Dirty:
    """4 % of all evaluations are 0."""
    hit = rng.random(len(evals)) < 0.04
    rewards = np.where(hit, 0.0, evals["avg_at_4"].to_numpy())
    return _with_rewards(evals, rewards), dict.fromkeys(evals.filter(hit)["run_id"].unique().sort().to_list(), "spiky")


KINDS: dict[str, Callable[[pl.DataFrame, World, int, np.random.Generator], Dirty]] = {
    "one dead": dead,
    "late collapse": late_collapse,
    "all collapsed": all_collapsed,
    "early end": early_end,
    "zeros": zeros,
}


def one(seeds: int, number: int) -> dict[str, float]:
    """A clean sweep and its dirty copies."""
    rng = np.random.default_rng([number, 19])
    truth = world("smooth", rng)
    evals = sweep(truth, rng, seeds=seeds, deviation=0.05)
    clean = Frontier(evals).fit(seed=number)
    n = int(rng.choice(SIZES))
    chosen = clean.decide(LAST).chosen.cell.rollouts_per_problem
    found: dict[str, float] = {"the n hit is the clean choice": n == chosen}
    for name, spoil in KINDS.items():
        table, kinds = spoil(evals, truth, n, rng)
        fitted = Frontier(table).fit(seed=number)
        gone = n if name == "all collapsed" else None
        found.update({f"{name}: {k}": v for k, v in compare(truth, clean, fitted, kinds, gone).items()})
        if len(kinds) == 1 and name != "early end":
            found[f"{name}: left n when hit"] = fitted_choice(fitted) != n if n == chosen else np.nan
    # A rate that grows with the root of n, by which rate and n are one axis.
    rated = evals.with_columns(learning_rate=1e-6 * (pl.col("rollouts_per_problem") / 8.0) ** 0.5)
    said = [m for m in Frontier(rated).fit(seed=number).answer().missing if "learning rate" in m]
    found["own rates: named in the answer"] = bool(said)
    same = evals.with_columns(learning_rate=pl.lit(1e-6))
    found["one rate: the same is said"] = said == [
        m for m in Frontier(same).fit(seed=number).answer().missing if "learning rate" in m
    ]
    return found


def fitted_choice(fitted: Fitted) -> int:
    """The n chosen at the end of the data."""
    return fitted.decide(LAST).chosen.cell.rollouts_per_problem


def compare(truth: World, clean: Fitted, dirty: Fitted, kinds: dict[str, str], gone: int | None) -> dict[str, float]:
    """Compare the choice, and return whether the runs were named.

    Args:
        truth: The world.
        clean: The fit of the clean sweep.
        dirty: That of the copy.
        kinds: Of the runs that were changed.
        gone: An n that is no choice.
    """
    options = [o for o in clean.decide(LAST).options if o.cell.rollouts_per_problem != gone]
    best, chosen = options[0], fitted_choice(dirty)
    near = {o.cell.rollouts_per_problem for o in options if o.loss - best.loss <= NEAR}
    before, after = (float(truth.reward(n, np.array([LAST]))[0]) for n in (best.cell.rollouts_per_problem, chosen))
    health = {h.run_id: h for h in dirty.prepared.health}
    named = [kind in health[run_id].kinds for run_id, kind in kinds.items()]
    others = [h.failed for run_id, h in health.items() if run_id not in kinds]
    return {
        "regret grows by": before - after,
        "outside the clean set": chosen not in near,
        "named": float(np.mean(named)) if named else np.nan,
        "others called failed": float(np.mean(others)),
    }


LIMITS: dict[str, Bounds] = {
    **{f"{kind}: regret grows by": (None, 0.005) for kind in KINDS},
    **{f"{kind}: outside the clean set": (None, 0.05) for kind in KINDS},
    **{f"{kind}: named": (0.95, None) for kind in KINDS},
    "own rates: named in the answer": (1.0, None),
}
CASES = tuple(Case(name=f"smooth-{s}-0.05", one=partial(one, s), wanted=LIMITS, sweeps=40) for s in (2, 3))

if __name__ == "__main__":
    main(__doc__, CASES)

"""Whether the answer knows when it is wrong: P(best) and intervals, counted where curves are not of its family.

    python -m benchmarks.frontier.honesty [--sweeps 100] [--only NAME …] [--out FILE]

A sweep has two seeds with a standard deviation of 5 % of the gain, unless its world says otherwise. At 1, 2, 4 and 16
times the compute of the data it counts the answers that are sure of their n (P of n ≥ 90 %), those of them that are
wrong by more than 0.01, coverage of 95 % intervals, their width, and the regret of the posterior, of the n that was
best so far and of the paper's method. Budget: 6,000 CPU-seconds.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from isocompute.frontier import Frontier, FrontierError
from isocompute.frontier.answers.paper import PaperFits, fit_as_paper

from .campaign import Bounds, Case, Records, main, means
from .harsh import KINDS, harsh, harsh_sweep
from .rivals import best_so_far
from .worlds import LAST, sweep, world

FACTORS = (1, 2, 4, 16)
LEVELLING = ("smooth", "odd", "rough", "paper")
"""Worlds in which curves level off."""
SURE, WRONG = 0.9, 0.01


def one(kind: str, number: int) -> dict[str, float]:
    """Measure one sweep."""
    rng = np.random.default_rng([number, 43])
    if kind in KINDS:
        truth = harsh(kind, rng)
        evals = harsh_sweep(truth, rng)
        expected, shown = truth.expected, truth.shown
    else:
        usual = world(kind, rng)
        evals = sweep(usual, rng, seeds=2, deviation=0.05)
        expected = shown = usual.reward
    fitted = Frontier(evals).fit(seed=number)
    paper = fit_as_paper(evals)
    so_far = best_so_far(evals)
    found: dict[str, float] = {"R-hat": fitted.posterior.split_r_hat}
    ns = evals["rollouts_per_problem"].unique().sort().to_list()
    for factor in FACTORS:
        compute = float(factor * LAST)
        at = np.array([compute])
        rewards = {n: float(expected(n, at)[0]) for n in ns}
        best = max(rewards.values())
        found[f"best so far {factor}"] = best - rewards[so_far]
        found[f"paper {factor}"] = best - rewards[of_paper(paper, compute)]
        try:
            chosen, share = answered(fitted, compute)
        except FrontierError:
            # No answer: whoever must choose takes the best so far.
            chosen, share = so_far, 0.0
        lost = best - rewards[chosen]
        found |= {f"posterior {factor}": lost, f"P {factor}": share, f"sure {factor}": float(share >= SURE)}
        found[f"wrong {factor}"] = float(share >= SURE and lost > WRONG)
        low, high = np.quantile(fitted.posterior.reward(compute)[:, :, 0], [0.025, 0.975], axis=0)
        own = [c.rollouts_per_problem for c in fitted.cells]
        right = np.array([shown(n, at)[0] for n in own])
        found |= {f"covered {factor}": float(((low <= right) & (right <= high)).mean())}
        found[f"width {factor}"] = float(np.median(high - low))
    return found


def of_paper(fits: PaperFits, compute: float) -> int:
    """The n whose curve attains the envelope of the paper's fit; beyond the data each offers its last reward."""
    return max(fits.fitted, key=lambda c: float(c.reached(compute))).cell.rollouts_per_problem


def answered(fitted: Any, compute: float) -> tuple[int, float]:
    """The n of an answer and how sure it is of it; 0 where the curves do not fit or nothing is said."""
    decision = fitted.decide(compute)
    n = decision.chosen.cell.rollouts_per_problem
    share = sum(o.probability_best for o in decision.options if o.cell.rollouts_per_problem == n)
    if hasattr(fitted, "doubts") and (doubts := fitted.doubts(decision)):
        measured = fitted.endings[0].cell.rollouts_per_problem
        return (measured if doubts else n), 0.0
    return n, share


def statistic(records: Records) -> dict[str, float]:
    """Means; of the wrong ones the share of those that were sure, at each compute and in all."""
    found = means(records)
    sure = {f: np.nansum(records[f"sure {f}"]) for f in FACTORS}
    wrong = {f: np.nansum(records[f"wrong {f}"]) for f in FACTORS}
    for f in FACTORS:
        found.pop(f"P {f}")
        found[f"wrong {f}"] = float(wrong[f] / sure[f]) if sure[f] else 0.0
        # In standard errors, against the better of the two.
        rival = min(("best so far", "paper"), key=lambda who: np.nanmean(records[f"{who} {f}"]))
        paired = records[f"posterior {f}"] - records[f"{rival} {f}"]
        error = float(np.nanstd(paired) / np.sqrt(len(paired)))
        found[f"worse than the better rival {f}"] = float(np.nanmean(paired)) / error if error else 0.0
    found["wrong in all"] = float(sum(wrong.values()) / max(sum(sure.values()), 1))
    return found


WANTED: dict[str, Bounds] = {
    **{f"worse than the better rival {f}": (None, 2.0) for f in FACTORS},
    "wrong in all": (None, 0.05),
    "covered 4": (0.85, None),
}
CASES = tuple(
    Case(name=kind, one=partial(one, kind), wanted=WANTED, statistic=statistic) for kind in (*LEVELLING, "flat", *KINDS)
)

if __name__ == "__main__":
    main(__doc__, CASES, overall=statistic, wanted={"wrong in all": (None, 0.05)})

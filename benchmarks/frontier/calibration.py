"""Count how often the posterior's intervals are right, over made-up sweeps of known truth.

    python -m benchmarks.frontier.calibration [--sweeps 100] [--only NAME …] [--out FILE]

A case is a kind of world (see ``worlds``), with its seeds and their standard deviation as a share of the gain. It
counts how often 95 % intervals cover the reward at the end of the data, at four times that compute, the asymptote A (of
all n, and of those that made half of their gain in the first half of the compute), the difference of every n from the
middle one, and the odd n itself; and how wide they are. Budget: 1,700 CPU-seconds.
"""

from __future__ import annotations

import time
from functools import partial

import numpy as np
from isocompute.frontier import Frontier

from benchmarks.frontier.campaign import Bounds, Case, main
from benchmarks.frontier.worlds import LAST, sweep, world

COMPUTE = np.array([LAST, 4 * LAST, 1e15])
PRIOR = {"median": 0.06, "factor": 0.7, "timing_median": 0.08, "timing_factor": 0.9, "degrees": 6.0}
"""The README's statement about seeds: their standard deviations, each known to the exponential of a factor."""


def one(kind: str, seeds: int, deviation: float | None, number: int) -> dict[str, float]:
    """Measurements of one sweep.

    Args:
        kind: Of world.
        seeds: Runs of each n.
        deviation: Of seeds; None draws it from the prior.
        number: Of the sweep.
    """
    rng = np.random.default_rng([number, 7])
    truth = world(kind, rng)
    if deviation is None:
        amplitude = PRIOR["median"] * np.exp(PRIOR["factor"] * rng.standard_normal())
        timing = PRIOR["timing_median"] * np.exp(PRIOR["timing_factor"] * rng.standard_normal())
        evals = sweep(truth, rng, seeds=seeds, deviation=amplitude, timing=timing, degrees=PRIOR["degrees"])
    else:
        evals = sweep(truth, rng, seeds=seeds, deviation=deviation)
    begin = time.process_time()
    fitted = Frontier(evals).fit(seed=number)
    spent = time.process_time() - begin
    ns = [c.rollouts_per_problem for c in fitted.cells]
    right = np.array([truth.reward(n, COMPUTE) for n in ns])
    drawn = fitted.posterior.reward(COMPUTE)
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    covered = (low <= right) & (right <= high)
    middle = len(ns) // 2
    others = [k for k in range(len(ns)) if k != middle]
    ends = np.quantile((drawn - drawn[:, [middle]])[:, others, 0], [0.025, 0.975], axis=0)
    difference = (right - right[middle])[others, 0]
    early = covered[[truth.half[n] < LAST / 2 for n in ns], 2]
    return {
        "at C_max": covered[:, 0].mean(),
        "at 4 C_max": covered[:, 1].mean(),
        "A": covered[:, 2].mean(),
        "A where C_mid < C_max/2": early.mean() if len(early) else np.nan,
        "difference": ((ends[0] <= difference) & (difference <= ends[1])).mean(),
        **({"odd n": float(covered[ns.index(truth.named[0]), 0])} if truth.named else {}),
        "width": float(np.median(high[:, 0] - low[:, 0])),
        "R-hat": fitted.posterior.spread,
        "CPU-seconds": spent,
    }


def case(kind: str, seeds: int, deviation: float | None) -> Case:
    """A case and what is wanted of it."""
    usual = ("at C_max", "at 4 C_max", "A where C_mid < C_max/2", "difference")
    share = 0.88 if seeds == 1 and deviation is not None else 0.92
    wanted: dict[str, Bounds] = dict.fromkeys(usual, (share, None if seeds == 1 and deviation else 0.98))
    wanted["odd n"] = (0.85, None)
    name = f"{kind}-{seeds}-{'prior' if deviation is None else f'{deviation:g}'}"
    return Case(name=name, one=partial(one, kind, seeds, deviation), wanted=wanted)


CASES = (
    *(case(kind, seeds, 0.05) for kind in ("smooth", "odd", "rough", "paper") for seeds in (2, 3)),
    case("smooth", 5, 0.05),
    case("smooth", 3, 0.15),
    case("odd", 3, 0.15),
    case("smooth", 1, 0.05),
    case("smooth", 1, None),
)

if __name__ == "__main__":
    main(__doc__, CASES)

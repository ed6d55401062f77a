"""Count how often a gap between two n is told, and none where there is none, over made-up sweeps of 16 evaluations.

    python -m benchmarks.frontier.power [--sweeps 150] [--first 0] [--only NAME …] [--out FILE]

* ``step-…``, ``peak-…`` and ``parabola-…``: two seeds with a standard deviation of 5 % of the gain, and a gap of 17 %
  of the gain between two n that are named beforehand: neighbours in worlds that are flat but for it, or the worst and
  the best of a parabola. Told is what has a 95 % interval of its difference beyond 0 on the right side;
  simultaneously, with intervals that hold for all 28 pairs at once.
* ``flat-…``: a claim is an n that is best with 95 % or more, or any pair whose simultaneous interval excludes 0.
* ``pair-…`` and ``seeds-…``: pilots in the worlds of ``peak`` with a standard deviation of 15 %. As many seeds of two n
  are run as ``next`` names (where it names none, 25), and then told is counted. The two are the pair of the gap, named
  beforehand, or the first two of the pilot, where these do differ.

Budget: 1,500 CPU-seconds.
"""

from __future__ import annotations

from functools import partial
from itertools import combinations

import numpy as np
import polars as pl
from isocompute.frontier import Fitted, Frontier
from isocompute.frontier.answers.next import plan

from benchmarks.frontier.campaign import Bounds, Case, Records, main, means
from benchmarks.frontier.worlds import LAST, World, run, sweep, world, world_with_gap

GAP, MOST_SEEDS, QUANTILES = 0.17, 25, (0.025, 0.975)
SAMPLING, LASTING = 1200, 0.006
"""Responses of an evaluation, and the standard deviation of what lasts, as ``worlds.run`` makes them."""


def simultaneous(rewards: np.ndarray) -> dict[tuple[int, int], int]:
    """The sign of the difference of every pair whose interval excludes 0, at 95 % for all pairs at once.

    The intervals are mean ± c·sd, with c the 95 % quantile over the draws of the largest standardised departure.

    Args:
        rewards: Shape ``(draws, settings)``.
    """
    pairs = list(combinations(range(rewards.shape[1]), 2))
    apart = np.stack([rewards[:, a] - rewards[:, b] for a, b in pairs], axis=1)
    mean, deviation = apart.mean(axis=0), apart.std(axis=0)
    width = np.quantile(np.abs((apart - mean) / deviation).max(axis=1), 0.95) * deviation
    return {pair: int(np.sign(m)) for pair, m, w in zip(pairs, mean, width, strict=True) if abs(m) > w}


def ends(fitted: Fitted) -> tuple[list[int], np.ndarray]:
    """Every n, and the draws of their rewards at the end of the data."""
    return [c.rollouts_per_problem for c in fitted.cells], fitted.posterior.reward(LAST)[:, :, 0]


def told(fitted: Fitted, lower: int, higher: int) -> bool:
    """Return whether the interval of the difference of two n lies above 0."""
    ns, drawn = ends(fitted)
    return bool(np.quantile(drawn[:, ns.index(higher)] - drawn[:, ns.index(lower)], QUANTILES[0]) > 0)


def gap(kind: str, seeds: int, number: int) -> dict[str, float]:
    """Return whether one gap is told."""
    rng = np.random.default_rng([number, 11])
    truth = world_with_gap(kind, rng, gap=GAP)
    fitted = Frontier(sweep(truth, rng, seeds=seeds, deviation=0.05)).fit(seed=number)
    ns, drawn = ends(fitted)
    lower, higher = (ns.index(n) for n in truth.named)
    every, pair = simultaneous(drawn), (min(lower, higher), max(lower, higher))
    right = np.array([truth.reward(n, np.array([LAST]))[0] for n in ns])
    wrong = [p for p, sign in every.items() if sign * (right[p[0]] - right[p[1]]) <= 0]
    apart = drawn[:, higher] - drawn[:, lower]
    real = right[higher] - right[lower]
    low, high = np.quantile(apart, QUANTILES)
    return {
        "told": told(fitted, *truth.named),
        "told simultaneously": every.get(pair) == (1 if lower > higher else -1),
        "some wrong pair told simultaneously": bool(wrong),
        "mean difference over the true": apart.mean() / real,
        "sd of the difference over the gain": apart.std() / truth.gain[truth.named[0]],
        "covers the difference": low <= real <= high,
    }


def null(seeds: int, deviation: float, number: int) -> dict[str, float]:
    """Return whether a flat world gives rise to a claim."""
    rng = np.random.default_rng([number, 13])
    truth = world("flat", rng)
    fitted = Frontier(sweep(truth, rng, seeds=seeds, deviation=deviation)).fit(seed=number)
    best = fitted.decide(LAST).known
    pairs = bool(simultaneous(ends(fitted)[1]))
    learned = fitted.posterior.model.deviation(fitted.posterior.theta, "seeds")[:, 0]
    return {"any claim": best or pairs, "best": best, "pair": pairs, "sd of seeds, learned": float(np.median(learned))}


def seeds_named(seeds: int, given: bool, number: int) -> dict[str, float]:
    """Return whether the number of seeds that ``next`` names after a pilot is right, and suffices.

    Args:
        seeds: Of each n in the pilot.
        given: Whether the pair is named beforehand; else it is the first two of the pilot.
        number: Of the sweep.
    """
    rng = np.random.default_rng([number, 17])
    truth = world_with_gap("peak", rng, gap=GAP)
    pilot = sweep(truth, rng, seeds=seeds, deviation=0.15)
    fitted = Frontier(pilot).fit(seed=number)
    found = plan(fitted, LAST, tell=(truth.named[0], truth.named[1]) if given else None)
    lower, higher = sorted((c.rollouts_per_problem for c in found.pair or ()), key=lambda n: truth.gain[n])
    if truth.gain[lower] == truth.gain[higher]:
        return {"the two differ": 0.0, "named over needed": np.nan, "told with that many": np.nan}
    more = [
        row
        for n in (lower, higher)
        for seed in range(seeds, found.seeds or MOST_SEEDS)
        for row in run(truth, rng, n=n, seed=seed, deviation=0.15)
    ]
    whole = pl.concat([pilot, pl.DataFrame(more, schema=pilot.schema)]) if more else pilot
    return {
        "the two differ": 1.0,
        "named over needed": (found.seeds or np.inf) / seeds_needed(truth),
        "told with that many": told(Frontier(whole).fit(seed=number), lower, higher),
    }


def seeds_needed(truth: World) -> float:
    """Seeds of each of the named pair that tell them apart in four sweeps of five, by the formula of ``next``."""
    low, high = (float(truth.reward(n, np.array([LAST]))[0]) for n in truth.named)
    variance = (0.15 * (high - truth.start)) ** 2 + high * (1 - high) / SAMPLING + LASTING**2
    return float(np.ceil(2 * 2.8016**2 * variance / (high - low) ** 2))


def named_statistic(records: Records) -> dict[str, float]:
    """Means, and of the number named the median and how often it is near."""
    ratio = records["named over needed"][records["the two differ"] == 1]
    rest = means({k: v for k, v in records.items() if k != "named over needed"})
    return {
        **rest,
        "median named over needed": float(np.median(ratio)) if len(ratio) else np.nan,
        "named within 25 %": float((np.abs(ratio - 1) <= 0.25).mean()),
        "none named": float(np.isinf(ratio).mean()),
    }


GAPS = ("step", "peak", "parabola")
POWERFUL: dict[str, Bounds] = {"told": (0.8, None), "told simultaneously": (0.6, None)}
ENOUGH: dict[str, Bounds] = {"told with that many": (0.75, None), "median named over needed": (0.75, 1.25)}
CASES = (
    *(Case(name=f"{kind}-2-0.05", one=partial(gap, kind, 2), wanted=POWERFUL, sweeps=150) for kind in GAPS),
    *(
        Case(name=f"flat-{seeds}-{sd:g}", one=partial(null, seeds, sd), wanted={"any claim": (None, most)}, sweeps=150)
        for seeds, sd, most in (
            (1, 0.03, 0.05),
            (1, 0.06, 0.05),
            (1, 0.12, 0.12),
            (2, 0.05, 0.05),
            (2, 0.15, 0.05),
            (3, 0.05, 0.05),
        )
    ),
    *(
        Case(
            name=f"{name}-{s}-0.15",
            one=partial(seeds_named, s, given),
            wanted=ENOUGH,
            statistic=named_statistic,
            sweeps=25,
        )
        for name, given in (("pair", True), ("seeds", False))
        for s in (2, 5)
    ),
)

if __name__ == "__main__":
    main(__doc__, CASES)

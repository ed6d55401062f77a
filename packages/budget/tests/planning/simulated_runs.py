"""Rewards of runs whose course is known, and how often each is judged as what: ``python simulated_runs.py``.

A healthy run is flat, rises evenly, levels off or rises late, by 0.4; around that its entries differ by normal noise of
0.01, 0.03 or 0.08, of which neighbours share none, half or 0.8. A collapsed one loses all in its second half.
"""

from __future__ import annotations

import random
from collections import Counter
from math import exp, sqrt

from isocompute.budget.planning.diagnosis import trend

HEALTHY = {
    "flat": lambda part: 0.4,
    "rises": lambda part: 0.3 + 0.4 * part,
    "levels off": lambda part: 0.3 + 0.4 * (1 - exp(-6 * part)),
    "rises late": lambda part: 0.3 + 0.4 / (1 + exp(-12 * (part - 0.6))),
}
NOISES, LENGTHS, SHARED = (0.01, 0.03, 0.08), (12, 15, 30, 60, 120, 500), (0.0, 0.5, 0.8)


def run(shape, entries, noise, shared, rng, *, fall=None):
    """Rewards by step; from the part ``fall`` of the run on all that was gained, and half of the rest, is lost."""
    state, rewards = rng.gauss(0, 1), []
    for step in range(1, entries + 1):
        state = shared * state + sqrt(1 - shared**2) * rng.gauss(0, 1)
        level = shape(step / entries) if fall is None or step < fall * entries else 0.15
        rewards.append((step, min(1.0, max(0.0, level + noise * state))))
    return rewards


def states(shapes, entries, shared, number, rng, *, fall=None):
    """How often runs are judged as what, of noises in turn."""
    runs = (run(shape, entries, NOISES[k % 3], shared, rng, fall=fall) for shape in shapes for k in range(number))
    return Counter(trend(each).state for each in runs)


if __name__ == "__main__":
    print("entries  shared  of healthy runs, by shape: collapsed, fell (%)  of runs that lose all: found (%)")
    every, number = Counter(), 300
    for entries in LENGTHS:
        for shared in SHARED:
            rng, said = random.Random(0), []
            for shape in HEALTHY.values():
                found = states([shape], entries, shared, number, rng)
                every += found
                said.append("".join(f"{100 * found[state] / number:5.1f}" for state in ("collapsed", "fell")))
            lost = states([HEALTHY["levels off"]], entries, shared, number, rng, fall=0.6)
            late = 100 * (lost["collapsed"] + lost["fell"]) / number
            print(f"{entries:>7}  {shared:>6}  {' |'.join(said)}  {late:5.1f}")
    print("; ".join(f"{state} {100 * count / every.total():.2f} %" for state, count in every.most_common()))

"""What the other runs of a sweep say, against the same rules written as loops over the others."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.frontier.data.curves import Array
from isocompute.frontier.posterior.runs import Run, Setting
from isocompute.frontier.posterior.siblings import SIGNIFICANT, Level, Siblings, View, view
from real_runs import made


def sweep(seed: int, count: int) -> list[Run]:
    """Runs of few settings: some end early, lack evaluations, begin elsewhere, have a grid of their own or no start."""
    rng, runs = np.random.default_rng(seed), []
    grids = [np.concatenate([[0.0], np.geomspace(1e3, 1e5, rng.integers(2, 15))]) for _ in range(2)]
    for _ in range(count):
        compute = grids[rng.integers(2)].copy()
        if rng.random() < 0.3:
            compute = np.delete(compute, rng.integers(len(compute)))
        if rng.random() < 0.3:
            compute = compute[: rng.integers(1, len(compute) + 1)]
        if rng.random() < 0.2:
            compute = compute * rng.choice([0.9, 1.01, 1.1])
        gain = rng.choice([0.0, 0.3, 0.5]) * (1 - np.exp(-compute / 2e4))
        reward = rng.binomial(200, rng.choice([0.2, 0.2, 0.2, 0.6]) / 2 + gain) / 200
        rate = (reward * 200 + 0.5) / 201
        run = made(compute, reward, np.sqrt(rate * (1 - rate) / 200), trials=200.0)
        group = str(rng.choice(["", "", "x"]))
        cell = Setting(rollouts_per_problem=int(rng.choice([2, 8])), problems_per_batch=8, group=group)
        runs.append(replace(run, cell=cell))
    return runs


def start(own: View, others: list[View]) -> tuple[Level, int]:
    starts = [v.first for v in others if v.run.cell.group == own.run.cell.group and v.run.compute[0] == 0]
    if not starts:
        return own.first, 0
    rewards = [s.reward for s in starts]
    error = float(np.median([s.error for s in starts])) / float(np.sqrt(len(set(rewards))))
    return Level(reward=float(np.median(rewards)), error=error), len(starts)


def gain(own: View, others: list[View], starts: list[Level]) -> float | None:
    last, gains = float(own.compute[-1]), []
    for other, first in zip(others, starts, strict=True):
        if other.run.last >= 0.9 * last:
            best = other.best(last)
            own_gain = best.reward - first.reward if best.above(first) else 0.0
            gains.append((own_gain, other.setting == own.setting))
    gained = [g for g, same in gains if same and g > 0]
    if not gained and 2 * sum(g > 0 for g, _ in gains) >= len(gains):
        gained = [g for g, _ in gains if g > 0]
    usual = float(np.median(gained)) if gained else 0.0
    return usual if usual > 2 * SIGNIFICANT * own.best(last).error else None


def end(own: View, others: list[View]) -> tuple[float, int] | None:
    same = [o for o in others if o.setting == own.setting]
    for siblings, least in ((same, 2), (others, max(2, (len(others) + 1) // 2))):
        lasts = [o.run.last for o in siblings]
        sharing = [sum(abs(other - last) <= 0.1 * last for other in lasts) for last in lasts]
        if max(sharing, default=0) >= least:
            return max(last for last, n in zip(lasts, sharing, strict=True) if n == max(sharing)), max(sharing)
    return None


def missing(own: View, others: list[View]) -> Array:
    same = [o for o in others if o.setting == own.setting]
    runs = [o.run for o in (same if len(same) > 1 else others)]
    points = sorted({c for run in runs for c in run.compute.tolist() if c <= own.run.last * 1.02})
    grid = [-1.0]
    for point in points if len(runs) > 1 else []:
        have = sum(np.abs(run.compute - point).min() <= 0.02 * point for run in runs)
        if have >= 2 and have > sum(run.last >= point * 0.98 for run in runs) / 2:
            grid.append(point)
    kept = np.array([b for a, b in pairwise(grid) if b - a > 0.02 * b])
    absent = np.array([p for p in kept if np.abs(own.run.compute - p).min() > 0.02 * p])
    return absent if 2 * len(absent) <= len(kept) else absent[:0]


@given(st.integers(0, 10**6), st.integers(1, 14))
@settings(max_examples=60, deadline=None)
def test_all_others_together_say_what_they_say_one_by_one(seed: int, count: int) -> None:
    views = [view(run, 1.0) for run in sweep(seed, count)]
    # The last two are compared with the others, of which they are none.
    known = views[:-2] if count > 4 else views
    siblings = Siblings(known)
    starts = [siblings.start_of(v) for v in known]
    for own in views:
        others = [v for v in known if v is not own]
        assert siblings.common_start(own) == start(own, others)
        rest = [s for v, s in zip(known, starts, strict=True) if v is not own]
        assert siblings.usual_gain(own) == gain(own, others, rest)
        assert siblings.planned_end(own) == end(own, others)
        assert siblings.longest(own) == max((o.run.last for o in others), default=own.run.last)
        np.testing.assert_array_equal(siblings.missing_points(own), missing(own, others))

"""Runs with known curves, made without any code of the model."""

from collections.abc import Callable

import numpy as np
from isocompute.frontier.posterior.runs import Runs, Setting

TRIALS = 1200


def exponential(start: float, gain: float, half: float) -> Callable[[np.ndarray], np.ndarray]:
    """R0 + G·(1 − 2^(−C/C_half))."""
    return lambda compute: start + gain * (1 - 0.5 ** (compute / half))


def sweep(
    curves: dict[Setting, Callable[[np.ndarray], np.ndarray]],
    *,
    seeds: int = 2,
    deviation: float = 0.03,
    last: float = 1e5,
    points: int = 14,
    seed: int = 0,
) -> Runs:
    """Runs of every setting, whose gain differs by a share from seed to seed."""
    rng = np.random.default_rng(seed)
    compute = np.concatenate([[0.0], np.geomspace(last / 50, last, points)])
    rows = []
    for curve in curves.values():
        for _ in range(seeds):
            truth = curve(compute)
            truth = truth[0] + (truth - truth[0]) * (1 + deviation * rng.standard_normal())
            rows.append(rng.binomial(TRIALS, np.clip(truth, 0, 1)) / TRIALS)
    reward = np.array(rows)
    rate = (reward * TRIALS + 0.5) / (TRIALS + 1)
    return Runs(
        cells=tuple(curves),
        cell=np.repeat(np.arange(len(curves)), seeds),
        compute=np.tile(compute, (len(rows), 1)),
        reward=reward,
        error=np.sqrt(rate * (1 - rate) / TRIALS),
        seen=np.ones(reward.shape, dtype=np.bool_),
        base=np.zeros(len(rows), dtype=np.int64),
        trials=np.full(reward.shape, float(TRIALS)),
    )


def line(ns: tuple[int, ...], gains: tuple[float, ...], halves: tuple[float, ...], **settings: float) -> Runs:
    """A sweep over n at one B_p."""
    cells = [Setting(rollouts_per_problem=n, problems_per_batch=8) for n in ns]
    curves = {c: exponential(0.2, g, h) for c, g, h in zip(cells, gains, halves, strict=True)}
    return sweep(curves, **settings)  # type: ignore[arg-type]

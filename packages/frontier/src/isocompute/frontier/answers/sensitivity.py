"""What a wrong n or B_p costs at one budget (Playbook, Figure 10), and the smallest stable B_p (Appendix C)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from ..errors import Flag, FrontierError
from ..fitting.intervals import UPPER, band
from ..fitting.pooling import shrunk
from .candidates import FARTHEST_EXTRAPOLATION, measured, rewards_at, within_reach
from .results import Fits
from .storage import measured_by


def sensitivity(fits: Fits | str | Path, *, compute: float) -> pl.DataFrame:
    """Reward of every (n, B_p) at one compute, and how far each is below the best.

    Args:
        fits: Fits, or the folder that holds them.
        compute: The budget, in the unit of the fit.

    Returns:
        ``rollouts_per_problem``, ``problems_per_batch``, ``reward`` with its 95 % interval, ``regret`` (best
        minus this, in reward, of differences shrunk as in ``pooling``) with its interval, and ``standing``:
        ``measured`` where the curve's own data reach, ``extrapolated`` beyond, ``refused`` beyond four times their
        compute, where reward and regret are null.

    Raises:
        FrontierError: The compute is not positive, or there is no fitted curve within reach of it.
    """
    if not compute > 0:
        raise FrontierError(f"compute is {compute:g}; it must be above 0")
    found = measured_by(fits)
    curves, refused = within_reach(found.curves, compute)
    if not curves:
        raise FrontierError(
            f"compute of {compute:g} is beyond {FARTHEST_EXTRAPOLATION:g} times what any curve was measured at"
        )
    point, rewards = rewards_at(curves, compute)
    pooled = shrunk(point, rewards, found.degrees)
    regrets = pooled.max(axis=1, keepdims=True) - pooled
    usual = pooled.mean(axis=0)
    low, high = band(rewards)
    regret_low, regret_high = band(regrets)
    known = {
        "reward": point, "reward_low": low, "reward_high": high,
        "regret": usual.max() - usual, "regret_low": regret_low, "regret_high": regret_high,
    }  # fmt: skip
    standing = ["measured" if measured(c, compute) else "extrapolated" for c in curves]
    return pl.DataFrame(
        {
            "rollouts_per_problem": [c.rollouts_per_problem for c in (*curves, *refused)],
            "problems_per_batch": [c.problems_per_batch for c in (*curves, *refused)],
            **{name: [*values.tolist(), *([None] * len(refused))] for name, values in known.items()},
            "standing": [*standing, *(["refused"] * len(refused))],
        }
    )


def smallest_stable(fits: Fits, *, rollouts_per_problem: int, tolerance: float = 0.01) -> int:
    """The smallest B_p at one n that does not collapse and is not inferior to the best one.

    A test of non-inferiority: with 97.5 % confidence it ends less than the tolerance below the best. A B_p that
    is merely not known to be worse does not pass, so few or noisy runs give a larger answer, never a smaller one.

    Args:
        fits: Fits of curves of several B_p.
        tolerance: Largest loss of reward that is accepted.

    Raises:
        FrontierError: No curve of this n was fitted, or every B_p collapses.
    """
    own = [c for c in fits.fitted if c.curve.rollouts_per_problem == rollouts_per_problem]
    if not own:
        raise FrontierError(f"no curve of n = {rollouts_per_problem} was fitted")
    shared = np.array([min(c.curve.support[1] for c in own)])
    steady = [c for c in own if Flag.TAIL_FALLING not in c.flags and c.draws is not None]
    if not steady:
        raise FrontierError(f"at n = {rollouts_per_problem} every B_p measured falls at its end: none is stable")
    ends = [c.draws.at(shared)[:, 0] for c in steady if c.draws is not None]
    best = int(np.argmax([np.median(e) for e in ends]))
    for c, end in sorted(zip(steady, ends, strict=True), key=lambda pair: pair[0].curve.problems_per_batch):
        if np.quantile(ends[best] - end, UPPER) <= tolerance:
            return c.curve.problems_per_batch
    return steady[best].curve.problems_per_batch

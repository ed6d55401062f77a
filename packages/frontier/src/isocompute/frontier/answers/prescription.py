"""How to split a budget: the n that the refits favour at that compute, with how often each n wins.

Every curve is extrapolated from its own data: up to four times their compute it competes and is flagged, beyond that
it is refused, however far the others reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from ..data.units import amount, counted
from ..errors import Flag, FrontierError
from ..fitting.intervals import band
from ..fitting.pooling import best_shares
from .candidates import FARTHEST_EXTRAPOLATION, Candidate, measured, rewards_at, within_reach
from .results import Fits
from .storage import measured_by


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One (n, B_p).

    Attributes:
        rollouts_per_problem: n.
        problems_per_batch: B_p.
        probability: In how many of the refits it is best at the budget, of those that are not refused.
        reward: Reward expected of it, or None where it is refused.
        reward_low: Lower end of the 95 % interval.
        reward_high: Upper end.
        support: Compute that it was measured at.
        standing: ``measured``, ``extrapolated`` beyond its own support, or ``refused``: beyond four times that.
    """

    rollouts_per_problem: int
    problems_per_batch: int
    probability: float
    reward: float | None
    reward_low: float | None
    reward_high: float | None
    support: tuple[float, float]
    standing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prescription:
    """An allocation of a budget, as in ``allocation.json``.

    Attributes:
        budget: The budget.
        unit: Its unit, ``rollouts``.
        rollouts_per_problem: n.
        problems_per_batch: B_p.
        update_steps: M, the most that fit.
        learning_rate: Scaled by the root of the batch from an anchor, or None without one.
        candidates: Every (n, B_p), most probable first, those refused last.
        supported: Compute that the prescribed one was measured at.
        flags: Why to read it with care.
        within_run: Whether some candidate has one seed, so that percentages leave out how seeds differ.
    """

    budget: int
    unit: str
    rollouts_per_problem: int
    problems_per_batch: int
    update_steps: int
    learning_rate: float | None
    candidates: tuple[Alternative, ...]
    supported: tuple[float, float]
    flags: tuple[Flag, ...]
    within_run: bool = False

    def as_dict(self) -> dict[str, Any]:
        """As in ``allocation.json``."""
        plain = asdict(self)
        plain["flags"] = [str(f) for f in self.flags]
        plain["candidates"] = [{**asdict(c), "support": list(c.support)} for c in self.candidates]
        plain["supported"] = list(self.supported)
        return plain

    def summary(self) -> str:
        """One line to be printed."""
        chosen = self.candidates[0]
        competing = [c for c in self.candidates if c.standing != "refused"]
        rate = f", learning rate {self.learning_rate:.3g}" if self.learning_rate else ""
        flags = f" [{', '.join(f.replace('_', ' ') for f in self.flags)}]" if self.flags else ""
        share = f"best in {chosen.probability:.0%} of refits{', within-run,' if self.within_run else ''}"
        return (
            f"for {self.budget:,} {self.unit}: n = {self.rollouts_per_problem}, B_p = {self.problems_per_batch}, "
            f"M = {self.update_steps:,}{rate}; {share} against {counted(len(competing) - 1, 'other')}, expected reward "
            f"{chosen.reward:.3f} ({chosen.reward_low:.3f} to {chosen.reward_high:.3f}){flags}"
        )

    def table(self) -> str:
        """The candidates, a line each, to be printed."""
        best_in = "best in, within-run" if self.within_run else "best in"
        lines = [f"   n  B_p  {best_in}   reward (95 %)             measured to"]
        for c in self.candidates:
            head = f"{c.rollouts_per_problem:4d} {c.problems_per_batch:4d}"
            to = f"{amount(c.support[1])}" + ("" if c.standing == "measured" else f", {c.standing}")
            if c.reward is None:
                lines.append(f"{head}  {'—':>{len(best_in)}}   {'—':22}    {to}")
                continue
            reward = f"{c.reward:.3f} ({c.reward_low:.3f} to {c.reward_high:.3f})"
            lines.append(f"{head}  {c.probability:{len(best_in)}.0%}   {reward:22}    {to}")
        return "\n".join(lines)


def prescribe(
    fits: Fits | str | Path, *, budget: int, anchor: float | None = None, anchor_batch: int | None = None
) -> Prescription:
    """Prescribe an allocation.

    Args:
        fits: Fits, or the folder that holds them.
        budget: Rollouts to spend.
        anchor: Learning rate found at a batch of ``anchor_batch`` rollouts.

    Raises:
        FrontierError: The fits are not in rollouts, or the budget is beyond four times the
            compute that any curve was measured at, or too small for one step.
    """
    found = measured_by(fits)
    unit = found.unit
    if unit != "rollouts":
        raise FrontierError(f"the fits are in {unit}; an allocation is prescribed from fits in rollouts")
    curves, refused = within_reach(found.curves, budget)
    if not curves:
        last = max(c.support[1] for c in found.curves)
        raise FrontierError(
            f"a budget of {budget:,} rollouts is {budget / last:.1f} times the {last:,.0f} that were measured, "
            f"and beyond {FARTHEST_EXTRAPOLATION:g} times nothing is prescribed: extend the sweep"
        )
    point, rewards = rewards_at(curves, budget)
    reached = np.ones((len(curves), 1), dtype=bool)
    share = best_shares(point[:, None], rewards[:, :, None], reached, found.degrees)[:, 0]
    order = sorted(range(len(curves)), key=lambda i: (-share[i], -point[i]))
    low, high = band(rewards)
    best = curves[order[0]]
    batch = best.rollouts_per_problem * best.problems_per_batch
    if budget < batch:
        raise FrontierError(f"a budget of {budget:,} rollouts is smaller than one step of {batch:,}")
    flags = _flags(best, curves, refused, budget, float(share[order[0]]))
    rate = anchor * sqrt(batch / anchor_batch) if anchor and anchor_batch else None
    return Prescription(
        budget=int(budget),
        unit=unit,
        rollouts_per_problem=best.rollouts_per_problem,
        problems_per_batch=best.problems_per_batch,
        update_steps=int(budget) // batch,
        learning_rate=rate,
        candidates=(
            *(_alternative(curves[i], budget, float(share[i]), (float(point[i]), float(low[i]), float(high[i])))
              for i in order),
            *(_alternative(c, budget, 0.0, None) for c in refused),
        ),
        supported=best.support,
        flags=flags,
        within_run=any(Flag.WITHIN_RUN_ONLY in c.flags for c in curves),
    )  # fmt: skip


def _flags(
    best: Candidate, curves: Sequence[Candidate], refused: Sequence[Candidate], budget: int, share: float
) -> tuple[Flag, ...]:
    flags = list(best.flags)
    if not measured(best, budget):
        flags.append(Flag.BEYOND_SUPPORT)
    if refused or (measured(best, budget) and not all(measured(c, budget) for c in curves)):
        flags.append(Flag.RIVALS_UNMEASURED)
    if share < 0.8:
        flags.append(Flag.NOT_DISTINGUISHABLE)
    return tuple(flags)


def _alternative(
    curve: Candidate, budget: float, share: float, reward: tuple[float, float, float] | None
) -> Alternative:
    known, low, high = reward or (None, None, None)
    standing = "refused" if reward is None else "measured" if measured(curve, budget) else "extrapolated"
    return Alternative(
        rollouts_per_problem=curve.rollouts_per_problem, problems_per_batch=curve.problems_per_batch,
        probability=share, reward=known, reward_low=low, reward_high=high, support=curve.support, standing=standing,
    )  # fmt: skip

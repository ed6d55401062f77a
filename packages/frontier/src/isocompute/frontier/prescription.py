"""How to split a budget: the n that the refits favour at that compute, with how often each n wins."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from .errors import Flag, FrontierError
from .results import Fits, candidates

FARTHEST = 4.0
"""A prescription is refused beyond this multiple of the largest compute measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One n: how often it is best at the budget, and the reward expected of it with its 95 % interval."""

    rollouts_per_problem: int
    problems_per_batch: int
    probability: float
    reward: float
    reward_low: float
    reward_high: float


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
        candidates: Every n, most probable first.
        supported: Compute that was measured.
        flags: Why to read it with care.
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

    def as_dict(self) -> dict[str, Any]:
        """As in ``allocation.json``."""
        plain = asdict(self)
        plain["flags"] = [str(f) for f in self.flags]
        plain["candidates"] = [asdict(c) for c in self.candidates]
        plain["supported"] = list(self.supported)
        return plain

    def summary(self) -> str:
        """One line for people."""
        chosen = self.candidates[0]
        rate = f", learning rate {self.learning_rate:.3g}" if self.learning_rate else ""
        flags = f" [{', '.join(f.replace('_', ' ') for f in self.flags)}]" if self.flags else ""
        return (
            f"for {self.budget:,} {self.unit}: n = {self.rollouts_per_problem}, B_p = {self.problems_per_batch}, "
            f"M = {self.update_steps:,}{rate}; best in {chosen.probability:.0%} of refits, expected reward "
            f"{chosen.reward:.3f} ({chosen.reward_low:.3f} to {chosen.reward_high:.3f}){flags}"
        )


def prescribe(
    fits: Fits | str | Path, *, budget: int, anchor: float | None = None, anchor_batch: int | None = None
) -> Prescription:
    """Prescribe an allocation.

    Args:
        fits: Fits, or the folder that holds them.
        budget: Rollouts to spend.
        anchor: Learning rate found at ``anchor_batch`` rollouts a batch.
        anchor_batch: That batch.

    Raises:
        FrontierError: The fits are in another unit than rollouts, or the budget is beyond four times the
            compute measured, or too small for one step.
    """
    unit, _, curves = candidates(fits)
    if unit != "rollouts":
        raise FrontierError(f"the fits are in {unit}; an allocation is prescribed from fits in rollouts")
    first, last = min(c.support[0] for c in curves), max(c.support[1] for c in curves)
    if budget > FARTHEST * last:
        raise FrontierError(
            f"a budget of {budget:,} rollouts is {budget / last:.1f} times the {last:,.0f} that were measured, "
            f"and beyond {FARTHEST:g} times nothing is prescribed: extend the sweep"
        )
    at = np.array([float(budget)])
    rewards = np.stack([c.draws.at(at)[:, 0] for c in curves], axis=1)
    share = np.bincount(rewards.argmax(axis=1), minlength=len(curves)) / len(rewards)
    point = np.array([float(c.parameters(at)[0]) for c in curves])
    order = sorted(range(len(curves)), key=lambda i: (-share[i], -point[i]))
    low, high = np.quantile(rewards, [0.025, 0.975], axis=0)
    best = curves[order[0]]
    batch = best.rollouts_per_problem * best.problems_per_batch
    if budget < batch:
        raise FrontierError(f"a budget of {budget:,} rollouts is smaller than one step of {batch:,}")
    flags = list(best.flags)
    if not first <= budget <= last * (1 + 1e-9):
        flags.append(Flag.BEYOND_SUPPORT)
    if share[order[0]] < 0.8:
        flags.append(Flag.NOT_DISTINGUISHABLE)
    rate = anchor * sqrt(batch / anchor_batch) if anchor and anchor_batch else None
    return Prescription(
        budget=int(budget),
        unit=unit,
        rollouts_per_problem=best.rollouts_per_problem,
        problems_per_batch=best.problems_per_batch,
        update_steps=int(budget) // batch,
        learning_rate=rate,
        candidates=tuple(
            Alternative(
                rollouts_per_problem=curves[i].rollouts_per_problem,
                problems_per_batch=curves[i].problems_per_batch, probability=float(share[i]),
                reward=float(point[i]), reward_low=float(low[i]), reward_high=float(high[i]),
            )
            for i in order
        ),
        supported=(first, last),
        flags=tuple(flags),
    )  # fmt: skip

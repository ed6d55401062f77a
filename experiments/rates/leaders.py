"""Which n leads by the pilots' scores, with each n at its best rate and with one rate for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt

from .search import Search
from .trials import NOISE, Tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """The n with the highest score of a pilot, at one B_p.

    Attributes:
        problems_per_batch: B_p.
        common_rate: The rate that every n had; None: each n had the best of its own.
        rollouts_per_problem: The n that leads.
        score: Its score.
        second: The n behind it.
        second_score: The score of that; None where it diverged.
        clear: Whether the two differ by more than two standard errors.
    """

    problems_per_batch: int
    common_rate: float | None
    rollouts_per_problem: int
    score: float
    second: int
    second_score: float | None
    clear: bool


def leaders(searches: Sequence[Search]) -> list[Leader]:
    """Who leads at each B_p of which two n or more were searched.

    Args:
        searches: What was found at every (n, B_p).

    Returns:
        For each B_p the leader with every n at its best rate, then the leader at each rate that all n were tried
        with, lowest rate first. A rate with which every n diverged has none.
    """
    found = []
    for size in sorted({each.problems_per_batch for each in searches}):
        own = sorted((s for s in searches if s.problems_per_batch == size), key=lambda s: s.rollouts_per_problem)
        if len(own) < 2:
            continue
        grids = {each.rollouts_per_problem: {t.learning_rate: t for t in each.grid} for each in own}
        common = sorted(set.intersection(*(set(grid) for grid in grids.values())))
        own_best = {each.rollouts_per_problem: each.chosen for each in own}
        contests: list[tuple[float | None, dict[int, Tried]]] = [(None, own_best)]
        contests += [(rate, {n: grid[rate] for n, grid in grids.items()}) for rate in common]
        found += [leader for rate, entries in contests if (leader := _leader(size, rate, entries)) is not None]
    return found


def upsets(found: Sequence[Leader]) -> list[Leader]:
    """Leaders at a common rate that do not lead when each n has its best rate.

    Args:
        found: From ``leaders``.
    """
    best = {each.problems_per_batch: each.rollouts_per_problem for each in found if each.common_rate is None}
    return [
        each
        for each in found
        if each.common_rate is not None and each.rollouts_per_problem != best[each.problems_per_batch]
    ]


def _leader(size: int, rate: float | None, entries: dict[int, Tried]) -> Leader | None:
    """The n with the highest score, of equal ones the smallest; what diverged comes last."""
    ranked = sorted(entries, key=lambda n: (-_worth(entries[n]), n))
    first, second = entries[ranked[0]], entries[ranked[1]]
    if first.score is None or first.diverged:
        return None
    behind = None if second.diverged else second.score
    return Leader(
        problems_per_batch=size,
        common_rate=rate,
        rollouts_per_problem=ranked[0],
        score=first.score,
        second=ranked[1],
        second_score=behind,
        clear=behind is None or first.score - behind > NOISE * _error(first, second),
    )


def _worth(entry: Tried) -> float:
    return -inf if entry.score is None or entry.diverged else entry.score


def _error(one: Tried, other: Tried) -> float:
    return sqrt((one.standard_error or 0.0) ** 2 + (other.standard_error or 0.0) ** 2)

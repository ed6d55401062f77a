"""Which n leads by the pilots' scores: with each n at its best rate, at a tied one, and with one rate for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot

from .noise import SeedNoise, seed_noise
from .search import Search
from .trials import Tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """The n with the highest score of a pilot, at one B_p.

    Attributes:
        problems_per_batch: B_p.
        common_rate: The rate that every n had; None: each n had the best of its own.
        tied_rate: The rate, tied with its best one, that the n which leads at best rates had instead; None: it had not.
        rollouts_per_problem: The n that leads.
        score: Its score.
        second: The n behind it.
        second_score: The score of that.
        unstable: Every n that diverged or collapsed at this rate in some seed, and so is out of the contest.
        seeds: Seeds of each of the two; the fewer.
        clear: Whether the two differ by more than noise between seeds; never with one seed.
    """

    problems_per_batch: int
    common_rate: float | None
    tied_rate: float | None
    rollouts_per_problem: int
    score: float
    second: int
    second_score: float
    unstable: tuple[int, ...]
    seeds: int
    clear: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contest:
    """What every n of one B_p scored at one choice of rates."""

    entries: Mapping[int, Tried]
    common_rate: float | None = None
    tied_rate: float | None = None

    def ranked(self) -> list[int]:
        """Every stable n, the highest score first, of equal ones the smallest n."""
        scores = {n: each.score for n, each in self.entries.items() if each.stable and each.score is not None}
        return sorted(scores, key=lambda n: (-scores[n], n))


def leaders(searches: Sequence[Search]) -> list[Leader]:
    """Who leads at each B_p of which two n or more were searched.

    What diverged or collapsed in a seed cannot lead, and where fewer than two n are stable there is no contest. Two n
    differ clearly when their scores do by more than ``SeedNoise.errors_needed`` for the contests of this B_p.

    Args:
        searches: What was found at every (n, B_p).

    Returns:
        For each B_p the leader with every n at its best rate; then the leader at each rate that all n were tried with,
        lowest rate first; then that with the first of these leaders at each of its tied rates. The tied rate of
        another n changes no lead, since its score is not above that of its best rate.
    """
    noise = seed_noise(each for found in searches for each in found.grid)
    found = []
    for own in contested(searches).values():
        contests = [each for each in _contests(own) if len(each.ranked()) > 1]
        found += [_leader(own[0].problems_per_batch, each, noise, len(contests)) for each in contests]
    return found


def contested(searches: Sequence[Search]) -> dict[int, list[Search]]:
    """Every B_p of which two n or more were searched, with its searches by n.

    Args:
        searches: What was found at every (n, B_p).
    """
    sizes = sorted({each.problems_per_batch for each in searches})
    own = {size: [each for each in searches if each.problems_per_batch == size] for size in sizes}
    return {size: sorted(s, key=lambda each: each.rollouts_per_problem) for size, s in own.items() if len(s) > 1}


def common_rates(searches: Sequence[Search]) -> list[float]:
    """The rates that all of some searches tried, lowest first."""
    return sorted(set.intersection(*({each.learning_rate for each in found.grid} for found in searches)))


def upsets(found: Sequence[Leader]) -> list[Leader]:
    """Leaders at a common or a tied rate that do not lead when each n has its best rate.

    Args:
        found: From ``leaders``.
    """
    best = best_leaders(found)
    return [each for each in found if each.rollouts_per_problem != best[each.problems_per_batch].rollouts_per_problem]


def best_leaders(found: Sequence[Leader]) -> dict[int, Leader]:
    """The leader at best rates, by B_p.

    Args:
        found: From ``leaders``.
    """
    return {each.problems_per_batch: each for each in found if each.common_rate is None and each.tied_rate is None}


def _contests(own: Sequence[Search]) -> list[_Contest]:
    """Every contest of one B_p, as ``leaders`` orders them."""
    grids = {each.rollouts_per_problem: {t.learning_rate: t for t in each.grid} for each in own}
    best = _Contest(entries={each.rollouts_per_problem: each.chosen for each in own})
    contests = [best]
    contests += [
        _Contest(entries={n: grid[rate] for n, grid in grids.items()}, common_rate=rate) for rate in common_rates(own)
    ]
    for first in best.ranked()[:1]:
        (ties,) = (each.ties for each in own if each.rollouts_per_problem == first)
        contests += [
            _Contest(entries={**best.entries, first: grids[first][rate]}, tied_rate=rate) for rate in ties
        ]  # fmt: skip
    return contests


def _leader(size: int, contest: _Contest, noise: SeedNoise, contests: int) -> Leader:
    first, second, *_ = ranked = contest.ranked()
    one, other = contest.entries[first], contest.entries[second]
    score, behind = one.score or 0.0, other.score or 0.0
    seeds = min(one.seeds, other.seeds)
    error = hypot(noise.error(one), noise.error(other))
    return Leader(
        problems_per_batch=size,
        common_rate=contest.common_rate,
        tied_rate=contest.tied_rate,
        rollouts_per_problem=first,
        score=score,
        second=second,
        second_score=behind,
        unstable=tuple(n for n in contest.entries if n not in ranked),
        seeds=seeds,
        clear=seeds > 1 and score - behind > noise.errors_needed(contests) * error,
    )

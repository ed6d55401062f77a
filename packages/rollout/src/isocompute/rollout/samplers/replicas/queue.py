"""Groups that wait for a replica: their expected cost, and which is next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import polars as pl

from ..sampling import Draw

NOBODY = -1
"""Stands for a replica that failed on a group and whose process has ended."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Problems that were added together, and the row of each."""

    problems: pl.DataFrame
    draw: Draw
    rows: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedGroup:
    """A group to be sampled.

    Attributes:
        cost: Expected number of tokens, prompts included.
        place: Queue position; among equal positions the longest goes first.
        failed_on: The replica that died or hung over it, if any; another one retries it once.
    """

    problem_id: str
    batch: Batch
    cost: float
    place: int
    failed_on: int | None = None


class Expected:
    """Expected response length of a problem (tokens): the mean of its latest group.

    For a new problem it is the mean over all others, or ``longest`` if there are none.
    """

    def __init__(self, longest: int) -> None:
        self._longest = float(longest)
        self._means: dict[str, float] = {}

    def learn(self, problem_id: str, lengths: Sequence[int]) -> None:
        """Record the lengths of a group's responses (tokens)."""
        self._means[problem_id] = fmean(lengths)

    def costs(self, prompts: Mapping[str, int], samples: int) -> dict[str, float]:
        """Return the expected tokens of problems' groups from their prompt lengths: samples × (prompt + response)."""
        other = fmean(self._means.values()) if self._means else self._longest
        return {name: samples * (length + self._means.get(name, other)) for name, length in prompts.items()}


class Queue:
    """Groups not yet given to a replica, by position and longest first; the order changes no token."""

    def __init__(self) -> None:
        self._waiting: list[QueuedGroup] = []

    def add(self, works: Iterable[QueuedGroup]) -> None:
        """Add groups to the queue."""
        self._waiting += works
        self._waiting.sort(key=lambda work: (work.place, -work.cost, work.problem_id))

    def take(self, replica: int) -> QueuedGroup:
        """Take the first group that a replica may answer, which excludes groups that failed on it."""
        at = next(i for i, work in enumerate(self._waiting) if work.failed_on != replica)
        return self._waiting.pop(at)

    def put_back(self, works: Iterable[QueuedGroup], replica: int) -> list[QueuedGroup]:
        """Requeue groups that a replica died or hung over; return those that have also failed on another replica."""
        again = list(works)
        self.add(replace(work, failed_on=replica) for work in again if work.failed_on is None)
        return [work for work in again if work.failed_on is not None]

    def forgive(self) -> None:
        """Let every replica retry groups that failed on one; a second failure is not retried."""
        self._waiting = [work if work.failed_on is None else replace(work, failed_on=NOBODY) for work in self._waiting]

    def reachable(self, replicas: Iterable[int]) -> bool:
        """Return whether one of the replicas may take a waiting group."""
        return any(work.failed_on != replica for replica in replicas for work in self._waiting)

"""Groups that wait for a replica: how long each is expected to take, and which is handed out next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import polars as pl

from ..sampling import Draw

NOBODY = -1
"""In place of a replica that a group has failed on, and whose process has ended."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Problems that were added together, and the row of each."""

    problems: pl.DataFrame
    draw: Draw
    rows: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedGroup:
    """One group that is to be sampled.

    Attributes:
        cost: Tokens that it is expected to take, prompts included.
        place: Its place among those that wait; of those with the same one the longest goes first.
        failed_on: The replica that died or hung over it, if one did; another one tries it once more.
    """

    problem_id: str
    batch: Batch
    cost: float
    place: int
    failed_on: int | None = None


class Expected:
    """Expected tokens of the responses to a problem: the mean of its latest group.

    Of a problem that was not answered yet it is the mean over those that were, and ``longest`` before there is one.
    """

    def __init__(self, longest: int) -> None:
        self._longest = float(longest)
        self._means: dict[str, float] = {}

    def learn(self, problem_id: str, lengths: Sequence[int]) -> None:
        """Note the lengths of a group's responses (tokens)."""
        self._means[problem_id] = fmean(lengths)

    def costs(self, prompts: Mapping[str, int], samples: int) -> dict[str, float]:
        """Return the tokens that the groups of problems take, from those of prompts: samples × (prompt + response)."""
        other = fmean(self._means.values()) if self._means else self._longest
        return {name: samples * (length + self._means.get(name, other)) for name, length in prompts.items()}


class Queue:
    """Groups that no replica has been given, by place and longest first; the order changes no token."""

    def __init__(self) -> None:
        self._waiting: list[QueuedGroup] = []

    def add(self, works: Iterable[QueuedGroup]) -> None:
        """Let further groups wait."""
        self._waiting += works
        self._waiting.sort(key=lambda work: (work.place, -work.cost, work.problem_id))

    def take(self, replica: int) -> QueuedGroup:
        """Take the first group that a replica may answer: what failed on it is left to others."""
        at = next(i for i, work in enumerate(self._waiting) if work.failed_on != replica)
        return self._waiting.pop(at)

    def put_back(self, works: Iterable[QueuedGroup], replica: int) -> list[QueuedGroup]:
        """Let others try the groups that a replica died or hung over; returns those that another one has failed on."""
        again = list(works)
        self.add(replace(work, failed_on=replica) for work in again if work.failed_on is None)
        return [work for work in again if work.failed_on is not None]

    def forgive(self) -> None:
        """Let every replica try what one has failed over; where another one does, too, it does not wait again."""
        self._waiting = [work if work.failed_on is None else replace(work, failed_on=NOBODY) for work in self._waiting]

    def reachable(self, replicas: Iterable[int]) -> bool:
        """Return whether one of some replicas may take a group that waits."""
        return any(work.failed_on != replica for replica in replicas for work in self._waiting)

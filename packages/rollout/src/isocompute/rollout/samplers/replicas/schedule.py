"""Which replica answers which groups: longest first, in chunks, from one queue; none of it changes a token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

CHUNKS = 2
"""Chunks that each replica would take of what waits, were all equally fast: the later ones are smaller, so that a slow
replica takes fewer and all end at about the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One group that is to be sampled.

    Attributes:
        cost: Tokens that it is expected to take, prompts included.
        failed_on: The replica that died or hung over it, if one did; another one tries it once more.
    """

    problem_id: str
    cost: float
    failed_on: int | None = None


class Expected:
    """How many tokens the responses to a problem are expected to have: the mean of its latest group.

    Args:
        longest: Expected before anything was answered, ``max_new_tokens``.
    """

    def __init__(self, longest: int) -> None:
        self._longest = float(longest)
        self._means: dict[str, float] = {}
        self._total = 0.0

    def learn(self, problem_id: str, lengths: Sequence[int]) -> None:
        """Take note of the lengths of a group's responses (tokens)."""
        mean = float(np.mean(lengths)) if len(lengths) else 0.0
        self._total += mean - self._means.get(problem_id, 0.0)
        self._means[problem_id] = mean

    def of(self, problem_id: str) -> float:
        """Tokens of a response; of a problem that was not answered yet, the mean over those that were."""
        if problem_id in self._means or not self._means:
            return self._means.get(problem_id, self._longest)
        return self._total / len(self._means)

    def work(self, prompts: Mapping[str, int], samples: int) -> list[Work]:
        """Return the groups of some problems, with their costs: samples × (prompt + expected response).

        Args:
            prompts: Tokens of each problem's prompt.
        """
        return [Work(problem_id=p, cost=samples * (length + self.of(p))) for p, length in prompts.items()]


class Queue:
    """Groups that wait for a replica."""

    def __init__(self, works: Iterable[Work], replicas: int) -> None:
        self._waiting = sorted(works, key=_longest_first)
        self._replicas = replicas

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, replica: int) -> list[Work]:
        """Return the next groups for a replica that is free: the longest, up to its share of a chunk, at least one.

        What failed on this replica is left to others.
        """
        # One replica has nobody to leave work to.
        chunks = CHUNKS * self._replicas if self._replicas > 1 else 1
        share = sum(work.cost for work in self._waiting) / chunks
        chunk: list[Work] = []
        for work in self._waiting:
            if work.failed_on == replica:
                continue
            if chunk and sum(w.cost for w in chunk) + work.cost > share:
                break
            chunk.append(work)
        taken = {work.problem_id for work in chunk}
        self._waiting = [work for work in self._waiting if work.problem_id not in taken]
        return chunk

    def put_back(self, works: Iterable[Work], replica: int) -> list[Work]:
        """Let other replicas try the groups that one died or hung over.

        Returns:
            Those that another one has failed over before, which do not wait again.
        """
        again = list(works)
        first = [replace(work, failed_on=replica) for work in again if work.failed_on is None]
        self._waiting = sorted([*self._waiting, *first], key=_longest_first)
        return [work for work in again if work.failed_on is not None]

    def reachable(self, replicas: Iterable[int]) -> bool:
        """Whether one of some replicas may take a group that waits."""
        return any(work.failed_on != replica for replica in replicas for work in self._waiting)


def _longest_first(work: Work) -> tuple[float, str]:
    return -work.cost, work.problem_id

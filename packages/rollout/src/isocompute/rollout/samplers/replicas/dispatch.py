"""One call of ``stream``: groups are handed to replicas that are free, and those of a lost one to others, once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa

from ...errors import EngineError, RolloutError
from ..actor import Verifiers
from ..sampling import Draw
from .crew import Event, Member
from .replica import Answered
from .schedule import Queue, Work

if TYPE_CHECKING:
    from .pool import Replicas

SHOWN = 5
"""Groups that an error names."""


class Dispatch:
    """Answers problems with all replicas that hold the current weights."""

    def __init__(self, pool: Replicas, problems: pl.DataFrame, works: list[Work], draw: Draw) -> None:
        self._pool, self._crew = pool, pool.crew
        self._problems, self._draw, self._verifiers = problems, draw, Verifiers.here()
        self._queue = Queue(works, len(pool.crew.members))
        self._missing = {work.problem_id for work in works}
        self._held: dict[int, dict[str, Work]] = {}
        """The groups that each replica was given and has not answered, by its index and by problem."""

    def groups(self) -> Iterator[pa.RecordBatch]:
        """Yield every group once, in the order in which they finish.

        Raises:
            EngineError: A group was lost with two replicas, or no replica is left for one.
            RolloutError: A replica refuses the problems.
        """
        self._hand_out()
        while self._missing:
            if not self._held and not self._queue.reachable(self._pool.able()):
                raise self._crew.nobody(f"answer {_named(self._missing)}")
            event = self._crew.next()
            groups = self._lost(event) if event.lost else self._answered(event)
            # Before the groups are handed out: the replicas go on meanwhile.
            self._hand_out()
            yield from groups

    def close(self) -> None:
        """Take what is unfinished out of the replicas."""
        busy = [self._crew.members[index] for index in self._held]
        self._held = {}
        with suppress(RolloutError):
            self._crew.gather(busy)
        idle = [member for member in busy if member.idle]
        for member in idle:
            self._crew.ask(member, "end", task="end a batch")
        with suppress(RolloutError):
            self._crew.gather(idle)

    def _hand_out(self) -> None:
        """Give every replica that is free and current some groups that wait."""
        self._pool.make_current()
        for member in self._crew.members:
            if member.idle and member.sync == self._pool.sync_number and len(self._queue):
                self._give(member, self._queue.take(member.index))

    def _give(self, member: Member, works: list[Work]) -> None:
        if not works:
            return
        self._held[member.index] = {work.problem_id: work for work in works}
        chunk = self._problems.filter(pl.col("problem_id").is_in(list(self._held[member.index])))
        self._crew.ask(
            member, "answer", chunk, asdict(self._draw), self._verifiers, self._pool.sync_number,
            task=f"answer {_named(self._held[member.index])}",
        )  # fmt: skip

    def _answered(self, event: Event) -> list[pa.RecordBatch]:
        """Take the groups of an answer."""
        member = event.member
        if not isinstance(event.value, Answered):
            return []
        held = self._held[member.index]
        for group in event.value.groups:
            self._take(group, held)
        self._pool.faults.add(event.value.unscored, scored=event.value.scored)
        member.answered += len(event.value.groups)
        if event.value.groups:
            member.deaths = 0
        if not event.value.ended:
            self._crew.ask(member, "go_on", task=f"answer {_named(held)}")
        else:
            del self._held[member.index]
            if held:
                raise RolloutError(f"replica {member.index} has ended without an answer to {_named(held)}")
        return event.value.groups

    def _take(self, group: pa.RecordBatch, held: dict[str, Work]) -> None:
        """Note that a group is there; refuse one of other weights or that was not asked for."""
        problem_id = group["problem_id"][0].as_py()
        versions = set(group["weights_version"].to_pylist())
        if versions != {self._pool.weights_version} or held.pop(problem_id, None) is None:
            raise RolloutError(
                f"a replica has answered problem {problem_id} with weights of version {sorted(versions)}; asked was "
                f"for {_named(self._missing)} with version {self._pool.weights_version}"
            )
        self._missing.remove(problem_id)
        self._pool.expected.learn(problem_id, group["response_ids"].value_lengths().to_pylist())

    def _lost(self, event: Event) -> list[pa.RecordBatch]:
        """Let other replicas answer what a lost one was given; a new process takes its place."""
        member = event.member
        held = self._held.pop(member.index, {})
        twice = self._queue.put_back(held.values(), member.index)
        if twice:
            raise EngineError(f"{_named([work.problem_id for work in twice])} lost with two replicas: {event.lost}")
        self._crew.start(member, self._pool.sampling)
        return []


def _named(problems: object) -> str:
    """The first problems of some, for an error."""
    names = sorted(str(problem) for problem in problems)  # type: ignore[attr-defined]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"the group{'s' if len(names) > 1 else ''} of {', '.join(names[:SHOWN])}{more}"

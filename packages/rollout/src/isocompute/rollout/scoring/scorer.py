"""Scores responses in the background: items in, futures of verdicts out."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..errors import ProblemError, RolloutError
from .judges.text import same
from .rules import Rule, decode_metadata, extraction, rule
from .sandbox.frames import Group, Reply
from .sandbox.process import ScoringConfig, WorkerPool

Problem = tuple[str, str, str]
"""Verifier, answer and metadata: everything that a score depends on besides the response."""
Buffered = tuple[Rule, Problem, list[str], "Future[list[Reply]]"]
"""Buffered responses of a batch to one problem, and the future for their replies."""
ENOUGH = 512
"""Most buffered responses."""
BUFFER_SECONDS = 0.25
"""Time after which buffered responses are sent, at the next call."""
LONGEST_CACHED = 256
"""Characters of the longest response whose verdict is cached; longer ones do not repeat."""
MOST_CACHED = 1 << 18
"""Number of cached verdicts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A response to score; ``metadata`` is that of its problem (``rules.encode_metadata``), if any."""

    verifier: str
    response: str
    answer: str
    metadata: str = ""

    @property
    def problem(self) -> Problem:
        """Everything that its score depends on besides the response."""
        return self.verifier, self.answer, self.metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A rule's verdict on a response.

    Attributes:
        reward: From 0 to 1; 1 only for a right response.
        error: How the response broke its verifier (the column ``score_error``), with a reward of 0; or None.
    """

    reward: float
    error: str | None = None


class Scorer:
    """Scores items by their rules, in sandboxed processes that start with the first item that needs one.

    Threads may share it; after a fork the child starts its own processes. ``exact`` needs no process: it compares two
    texts immediately.
    """

    def __init__(self, config: ScoringConfig | None = None) -> None:
        self.config = config or ScoringConfig()
        self._pools: dict[str, WorkerPool] = {}
        self._buffered: list[Buffered] = []
        self._sent = 0.0
        self._own()
        self._verdicts: dict[tuple[Problem, str], Reply] = {}
        self._checked: set[str] = set()

    def check(self, verifiers: Iterable[str]) -> None:
        """Refuse rules that are unknown, refused or lack their library, before anything is sampled.

        Raises:
            RolloutError: A rule cannot be used, or needs an isolation that this machine's kernel does not offer.
        """
        rules = {found.base: found for found in map(rule, set(verifiers)) if not found.inline}
        waiting = [
            (found.base, self._pool(found.pool).each("check", [found.base]))
            for found in rules.values()
            if found.base not in self._checked
        ]
        for base, future in waiting:
            error = verdict_of(future.result()[0], partial=True).error
            if error is not None:
                raise RolloutError(f"the verifier {base} cannot be used: {error}")
            self._checked.add(base)

    def submit(self, items: Sequence[Item], *, hold: bool = False) -> Future[list[Verdict]]:
        """Score items in the background.

        Args:
            hold: Buffer the items for a moment, which is cheaper if many calls follow one another; ``flush`` sends
                them.

        Returns:
            Their verdicts in order. Its ``result`` raises ``RolloutError`` if an item cannot be scored and its response
            is not at fault, as with missing metadata.
        """
        self._make_own()
        batch: Future[list[Verdict]] = Future()
        try:
            rules = [rule(item.verifier) for item in items]
            replies = [self._known(*pair) for pair in zip(rules, items, strict=True)]
        except Exception as error:
            batch.set_exception(error)
            return batch
        missing: dict[Problem, list[int]] = {}
        for i, reply in enumerate(replies):
            if reply is None:
                missing.setdefault(items[i].problem, []).append(i)
        futures: list[Future[list[Reply]]] = [Future() for _ in missing]

        def finish() -> None:
            try:
                for indices, future in zip(missing.values(), futures, strict=True):
                    for i, reply in zip(indices, future.result(), strict=True):
                        replies[i] = reply
                partial = self.config.partial
                found = [verdict_of(r, partial=partial or w.partial) for r, w in zip(replies, rules, strict=True)]
            except Exception as error:
                # An error raised in the pool's thread would be lost, and the batch would never finish.
                batch.set_exception(error)
            else:
                batch.set_result(found)

        when_all(futures, finish)
        parts = [
            (rules[indices[0]], problem, [items[i].response for i in indices], future)
            for (problem, indices), future in zip(missing.items(), futures, strict=True)
        ]
        with self._lock:
            self._buffered += parts
            self._responses += sum(map(len, missing.values()))
        if not hold or self._responses >= ENOUGH:
            self.flush()
        self.flush(held=BUFFER_SECONDS)
        return batch

    def flush(self, *, held: float = 0.0) -> None:
        """Send buffered responses without waiting for more, if nothing was sent for ``held`` seconds."""
        if not self._buffered or time.monotonic() - self._sent < held:
            return
        with self._lock:
            buffered, self._buffered = self._buffered, []
            self._responses, self._sent = 0, time.monotonic()
        pools: dict[str, dict[Problem, list[Buffered]]] = {}
        for part in buffered:
            pools.setdefault(part[0].pool, {}).setdefault(part[1], []).append(part)
        for pool, problems in pools.items():
            self._send(pool, problems)

    def draw(self, verifier: str, draws: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Generate problems in the sandbox, for a generator that executes programs.

        Args:
            draws: Arguments of ``Judge.draw`` for each problem; a problem that takes too long is left out.
        """
        replies = self._pool(rule(verifier).pool).each("draws", list(draws)).result()
        faults = [reply["fault"] for reply in replies if "fault" in reply]
        if faults:
            raise RolloutError(faults[0])
        return [decode_metadata(reply["problem"], where=verifier) for reply in replies if "problem" in reply]

    def close(self) -> None:
        """End the processes; the next item starts others."""
        if self._owner != os.getpid():
            return
        with self._lock:
            pools = dict(self._pools)
            self._pools.clear()
        _close(pools, self._owner)

    def _own(self) -> None:
        """Make this process the owner of the pools, which end with it or with this object."""
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._buffered = []
        self._responses, self._sent = 0, 0.0
        weakref.finalize(self, _close, self._pools, self._owner)

    def _make_own(self) -> None:
        if self._owner != os.getpid():
            # A fork has none of its parent's threads, and must not read its verdicts or take its locks.
            self._pools = {}
            self._own()

    def _pool(self, name: str) -> WorkerPool:
        self._make_own()
        with self._lock:
            if name not in self._pools:
                self._pools[name] = WorkerPool(name, self.config)
            return self._pools[name]

    def _known(self, wanted: Rule, item: Item) -> Reply | None:
        if wanted.inline:
            found = extraction(wanted.words)(item.response)
            return float(found is not None and same(found, item.answer))
        return self._verdicts.get((item.problem, item.response))

    def _send(self, pool: str, problems: Mapping[Problem, Sequence[Buffered]]) -> None:
        """Send buffered responses in one message, with each problem and each of its responses once."""
        groups: list[Group] = []
        for (_, answer, metadata), parts in problems.items():
            # A policy repeats short responses; each is scored once.
            responses = list(dict.fromkeys(response for _, _, responses, _ in parts for response in responses))
            wanted = parts[0][0]
            groups.append((wanted.base, list(wanted.words), answer, metadata, responses))

        def arrived(done: Future[list[Reply]]) -> None:
            error = done.exception()
            replies = iter(() if error is not None else done.result())
            for (problem, parts), group in zip(problems.items(), groups, strict=True):
                verdicts = dict(zip(group[4], replies, strict=False))
                self._keep(problem, verdicts)
                for _, _, responses, future in parts:
                    if error is not None:
                        future.set_exception(error)
                    else:
                        future.set_result([verdicts[response] for response in responses])

        self._pool(pool).score(groups).add_done_callback(arrived)

    def _keep(self, problem: Problem, verdicts: Mapping[str, Reply]) -> None:
        """Cache replies that would be the same again; the oldest are dropped first."""
        kept = {(problem, response): reply for response, reply in verdicts.items() if _may_be_cached(response, reply)}
        with self._lock:
            self._verdicts |= kept
            while len(self._verdicts) > MOST_CACHED:
                del self._verdicts[next(iter(self._verdicts))]


@cache
def default_scorer() -> Scorer:
    """Return the scorer that this process's samplers share."""
    return Scorer()


def verifier(name: str, *, scorer: Scorer | None = None) -> Callable[..., bool]:
    """Return the rule called ``name`` (``rules``, ``judges``), which scores in a sandboxed process.

    Returns:
        A function of a response, an answer and optional metadata: whether the response is right. Verdicts of short
        responses are cached.

    Raises:
        RolloutError: The rule cannot be used (``Scorer.check``). The returned function raises it if metadata that the
            rule needs are missing or unreadable.
    """
    used = scorer or default_scorer()
    used.check([name])

    def right(response: str, answer: str, metadata: str = "") -> bool:
        item = Item(verifier=name, response=response, answer=answer, metadata=metadata)
        return used.submit([item]).result()[0].reward == 1.0

    return right


def _close(pools: Mapping[str, WorkerPool], owner: int) -> None:
    if os.getpid() == owner:
        for pool in list(pools.values()):
            pool.close()


def _may_be_cached(response: str, reply: Reply) -> bool:
    """Return whether a short response would get the same reply again: a busy machine or low memory may be temporary."""
    if len(response) > LONGEST_CACHED or not isinstance(reply, dict):
        return len(response) <= LONGEST_CACHED
    error = str(reply.get("error", ""))
    return not ("fault" in reply or error.startswith("the verifier's process ended") or error.endswith("by the clock"))


def when_all(futures: Collection[Future[Any]], do: Callable[[], None]) -> None:
    """Call a function once all futures are done, in the thread of the last one."""
    left, lock = len(futures), threading.Lock()

    def one_more(_: object) -> None:
        nonlocal left
        with lock:
            left -= 1
            last = left == 0
        if last:
            do()

    for future in futures:
        future.add_done_callback(one_more)
    if not futures:
        do()


def verdict_of(reply: Reply, *, partial: bool) -> Verdict:
    """Convert a reply to a verdict; fractions are kept if ``partial``, else count as 0.

    Raises:
        ProblemError: No response to the problem can be scored.
        RolloutError: The response could not be scored and is not at fault.
    """
    if isinstance(reply, dict):
        if "unusable" in reply:
            raise ProblemError(reply["unusable"])
        if "fault" in reply:
            raise RolloutError(reply["fault"])
        return Verdict(reward=0.0, error=str(reply["error"]))
    return Verdict(reward=float(reply) if partial else float(reply == 1.0))

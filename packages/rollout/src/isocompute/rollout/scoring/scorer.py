"""Scores responses while an engine goes on: items in, futures of verdicts out."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..errors import RolloutError
from . import metadata as codec
from .config import ScoringConfig
from .extraction import extraction
from .judges.text import same
from .rules import Rule, rule
from .sandbox.layers import Report
from .sandbox.pool import Lane
from .sandbox.process import Group, Reply

LONGEST_CACHED = 256
"""Characters of the longest response whose verdict is cached; longer ones do not occur twice."""
MOST_CACHED = 1 << 18
"""Verdicts that are cached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A response to be scored.

    Attributes:
        verifier: Rule for the reward.
        response: The response's text.
        answer: The reference answer.
        metadata: What the rule needs besides (``metadata.encode``), or nothing.
    """

    verifier: str
    response: str
    answer: str
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a rule says.

    Attributes:
        reward: From 0 to 1; 1 only for a right response.
        error: How the response broke its verifier (the column ``score_error``), which then earns 0; or None.
    """

    reward: float
    error: str | None = None


_Key = tuple[str, str, str, str]
_extraction = cache(extraction)


class Scorer:
    """Scores items by their rules, in sandboxed processes that start with the first item that needs one.

    It may be shared by threads; after a fork the child starts processes of its own. ``exact`` needs no process: it
    compares two texts, and is done at once.

    Args:
        config: Limits of the processes, and what counts as a reward.
    """

    def __init__(self, config: ScoringConfig | None = None) -> None:
        self.config = config or ScoringConfig()
        self._lanes: dict[str, Lane] = {}
        self._own()
        self._verdicts: dict[_Key, Reply] = {}
        self._checked: set[str] = set()

    def check(self, verifiers: Iterable[str]) -> None:
        """Refuse rules that are unknown, refused or lack their library, before anything is sampled.

        Args:
            verifiers: Names of rules.

        Raises:
            RolloutError: One of them cannot be used, or needs an isolation that this machine's kernel does not give.
        """
        rules = {found.base: found for found in map(rule, set(verifiers)) if not found.inline}
        waiting = [
            (found.base, self._lane(found.lane).each("check", [found.base]))
            for found in rules.values()
            if found.base not in self._checked
        ]
        for base, future in waiting:
            error = _verdict(future.result()[0], partial=True).error
            if error is not None:
                raise RolloutError(f"the verifier {base} cannot be used: {error}")
            self._checked.add(base)

    def submit(self, items: Sequence[Item], *, hold: bool = False) -> Future[list[Verdict]]:
        """Score items, in the background.

        Args:
            items: Responses to be scored.
            hold: They may wait a moment for others, which makes scoring cheaper where many calls follow one another;
                ``flush`` ends that.

        Returns:
            Their verdicts in order. Its ``result`` raises ``RolloutError`` when an item cannot be scored through no
            fault of its response, as when metadata are missing.
        """
        batch: Future[list[Verdict]] = Future()
        try:
            rules = [rule(item.verifier) for item in items]
            keys = [_key(item) for item in items]
            found: list[Reply | None] = [self._known(*pair) for pair in zip(rules, keys, strict=True)]
        except Exception as error:
            batch.set_exception(error)
            return batch
        missing: dict[str, dict[_Key, list[int]]] = {}
        for i, reply in enumerate(found):
            if reply is None:
                # A policy gives the same short response many times; it is scored once.
                missing.setdefault(rules[i].lane, {}).setdefault(keys[i], []).append(i)
        pending = _Pending(batch, rules, found, partial=self.config.partial, lanes=len(missing))
        if not missing:
            pending.finish()
        for lane, places in missing.items():
            self._send(lane, places, rules, pending, hold=hold)
        return batch

    def flush(self) -> None:
        """Score what was held without waiting for more."""
        with self._lock:
            lanes = list(self._lanes.values())
        for lane in lanes:
            lane.flush()

    def draw(self, verifier: str, draws: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Generate problems in the sandbox, for a generator that executes programs.

        Args:
            verifier: Rule of the problems.
            draws: For each problem ``task``, ``settings``, ``size``, ``seed`` and ``index``.

        Returns:
            The problems that the generator gave; one that it did not finish in time is left out.

        Raises:
            RolloutError: The generator cannot be used.
        """
        replies = self._lane(rule(verifier).lane).each("draws", list(draws)).result()
        faults = [reply["fault"] for reply in replies if "fault" in reply]
        if faults:
            raise RolloutError(faults[0])
        return [codec.decode(reply["problem"], where=verifier) for reply in replies if "problem" in reply]

    def layers(self) -> Report:
        """Return what each layer of the sandbox came to on this machine; an empty text where it is missing."""
        return self._lane("exact").report().result()

    def close(self) -> None:
        """End the processes; the next item starts others."""
        if self._owner != os.getpid():
            return
        with self._lock:
            lanes = dict(self._lanes)
            self._lanes.clear()
        _close(lanes, self._owner)

    def _own(self) -> None:
        """Make this process the one that the lanes belong to, and end them with it or with this object."""
        self._owner = os.getpid()
        self._lock = threading.Lock()
        weakref.finalize(self, _close, self._lanes, self._owner)

    def _lane(self, name: str) -> Lane:
        if self._owner != os.getpid():
            # A fork has none of its parent's threads, and must not read its verdicts.
            self._lanes = {}
            self._own()
        with self._lock:
            if name not in self._lanes:
                self._lanes[name] = Lane(name, self.config)
            return self._lanes[name]

    def _known(self, wanted: Rule, key: _Key) -> Reply | None:
        _, answer, _, response = key
        if wanted.inline:
            found = _extraction(wanted.words)(response)
            return float(found is not None and same(found, answer))
        if len(response) > LONGEST_CACHED:
            return None
        return self._verdicts.get(key)

    def _send(
        self, lane: str, places: Mapping[_Key, list[int]], rules: Sequence[Rule], pending: _Pending, *, hold: bool
    ) -> None:
        """Send what is missing, with each problem once."""
        problems: dict[tuple[str, str, str], list[_Key]] = {}
        for key in places:
            problems.setdefault(key[:3], []).append(key)
        groups: list[Group] = []
        order: list[_Key] = []
        for (_, answer, metadata), keys in problems.items():
            wanted = rules[places[keys[0]][0]]
            groups.append((wanted.base, list(wanted.words), answer, metadata, [key[3] for key in keys]))
            order.extend(keys)

        def arrived(done: Future[list[Reply]]) -> None:
            error = done.exception()
            if error is not None:
                pending.fail(error)
                return
            for key, reply in zip(order, done.result(), strict=True):
                self._keep(key, reply)
                for place in places[key]:
                    pending.found[place] = reply
            pending.arrived()

        self._lane(lane).score(groups, hold=hold).add_done_callback(arrived)

    def _keep(self, key: _Key, reply: Reply) -> None:
        if len(key[3]) > LONGEST_CACHED or (isinstance(reply, dict) and _may_differ(reply)):
            return
        with self._lock:
            while len(self._verdicts) >= MOST_CACHED:
                del self._verdicts[next(iter(self._verdicts))]
            self._verdicts[key] = reply


class _Pending:
    """A batch that waits for the replies of one or more lanes.

    Args:
        batch: What is waited for.
        rules: The rule of each item.
        found: The reply for each item, None where it is missing.
        partial: Fractions count for every rule.
        lanes: Lanes that have not answered.
    """

    def __init__(
        self,
        batch: Future[list[Verdict]],
        rules: Sequence[Rule],
        found: list[Reply | None],
        *,
        partial: bool,
        lanes: int,
    ) -> None:
        self._batch, self._rules, self._partial = batch, rules, partial
        self.found = found
        self._lanes, self._lock = lanes, threading.Lock()

    def arrived(self) -> None:
        """Count a lane's replies as there."""
        with self._lock:
            self._lanes -= 1
            last = self._lanes == 0
        if last and not self._batch.done():
            self.finish()

    def fail(self, error: BaseException) -> None:
        """Give up."""
        with self._lock:
            if not self._batch.done():
                self._batch.set_exception(error)

    def finish(self) -> None:
        """Make verdicts of the replies."""
        try:
            verdicts = [
                _verdict(reply, partial=self._partial or wanted.partial)
                for reply, wanted in zip(self.found, self._rules, strict=True)
            ]
        except Exception as error:
            # Raised in the pool's thread it would be lost, and the batch waited for without end.
            self._batch.set_exception(error)
        else:
            self._batch.set_result(verdicts)


def _close(lanes: Mapping[str, Lane], owner: int) -> None:
    if os.getpid() == owner:
        for lane in list(lanes.values()):
            lane.close()


def _key(item: Item) -> _Key:
    # Every table brings its own copies of the metadata; the cache keeps one of each.
    return item.verifier, item.answer, sys.intern(item.metadata), item.response


def _may_differ(reply: Mapping[str, Any]) -> bool:
    """Whether scoring again could give another verdict: the machine may have been busy, or short of memory."""
    error = str(reply.get("error", ""))
    return "fault" in reply or error.startswith("the verifier's process ended") or error.endswith("by the clock")


def _verdict(reply: Reply, *, partial: bool) -> Verdict:
    if isinstance(reply, dict):
        if "fault" in reply:
            raise RolloutError(reply["fault"])
        return Verdict(reward=0.0, error=str(reply["error"]))
    return Verdict(reward=float(reply) if partial else float(reply == 1.0))


@cache
def default_scorer() -> Scorer:
    """Return the scorer that this process's samplers share."""
    return Scorer()

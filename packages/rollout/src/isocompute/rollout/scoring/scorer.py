"""Scores responses while an engine goes on: items in, futures of verdicts out."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
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
from .verdicts import Held, Item, Key, Pending, Verdict, verdict_of

__all__ = ["Item", "Scorer", "Verdict", "default_scorer"]

ENOUGH = 512
"""Responses that are held at most."""
HELD_SECONDS = 0.25
"""How long after others held responses are sent, at the next call."""
LONGEST_CACHED = 256
"""Characters of the longest response whose verdict is cached; longer ones do not occur twice."""
MOST_CACHED = 1 << 18
"""Verdicts that are cached."""


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
        self._held: list[Held] = []
        self._own()
        self._verdicts: dict[Key, Reply] = {}
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
            error = verdict_of(future.result()[0], partial=True).error
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
        self._make_own()
        batch: Future[list[Verdict]] = Future()
        try:
            rules = [rule(item.verifier) for item in items]
            keys = [_key(item) for item in items]
            found: list[Reply | None] = [self._known(*pair) for pair in zip(rules, keys, strict=True)]
        except Exception as error:
            batch.set_exception(error)
            return batch
        missing: dict[str, dict[Key, list[int]]] = {}
        for i, reply in enumerate(found):
            if reply is None:
                # A policy gives the same short response many times; it is scored once.
                missing.setdefault(rules[i].lane, {}).setdefault(keys[i], []).append(i)
        pending = Pending(batch, rules, found, partial=self.config.partial, lanes=len(missing))
        if not missing:
            pending.finish()
        for lane, places in missing.items():
            self._hold(Held(lane=lane, places=places, rules=rules, pending=pending))
        if not hold or self._due():
            self.flush()
        return batch

    def flush(self) -> None:
        """Send what is held, without waiting for more."""
        with self._lock:
            held, self._held = self._held, []
            self._responses, self._sent = 0, time.monotonic()
        lanes: dict[str, list[Held]] = {}
        for each in held:
            lanes.setdefault(each.lane, []).append(each)
        for lane, parts in lanes.items():
            self._send(lane, parts)

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
        self._held = []
        self._responses, self._sent = 0, 0.0
        weakref.finalize(self, _close, self._lanes, self._owner)

    def _make_own(self) -> None:
        if self._owner != os.getpid():
            # A fork has none of its parent's threads, and must not read its verdicts or take its locks.
            self._lanes = {}
            self._own()

    def _lane(self, name: str) -> Lane:
        self._make_own()
        with self._lock:
            if name not in self._lanes:
                self._lanes[name] = Lane(name, self.config)
            return self._lanes[name]

    def _known(self, wanted: Rule, key: Key) -> Reply | None:
        _, answer, _, response = key
        if wanted.inline:
            found = _extraction(wanted.words)(response)
            return float(found is not None and same(found, answer))
        if len(response) > LONGEST_CACHED:
            return None
        return self._verdicts.get(key)

    def _hold(self, part: Held) -> None:
        with self._lock:
            self._held.append(part)
            self._responses += len(part.places)

    def _due(self) -> bool:
        """Whether what is held is enough to be sent, or has waited long enough."""
        return self._responses >= ENOUGH or time.monotonic() - self._sent > HELD_SECONDS

    def _send(self, lane: str, parts: Sequence[Held]) -> None:
        """Send what is missing in one message, with each problem and each response to it once."""
        problems: dict[tuple[str, str, str], dict[Key, list[Held]]] = {}
        for part in parts:
            for key in part.places:
                problems.setdefault(key[:3], {}).setdefault(key, []).append(part)
        groups: list[Group] = []
        for (_, answer, metadata), wanted in problems.items():
            first = next(iter(wanted))
            own = wanted[first][0].rule_of(first)
            groups.append((own.base, list(own.words), answer, metadata, [key[3] for key in wanted]))

        def arrived(done: Future[list[Reply]]) -> None:
            error = done.exception()
            if error is not None:
                for part in parts:
                    part.pending.fail(error)
                return
            replies = iter(done.result())
            for wanted in problems.values():
                for key, holders in wanted.items():
                    reply = next(replies)
                    self._keep(key, reply)
                    for part in holders:
                        part.take(key, reply)
            for part in parts:
                part.pending.arrived()

        self._lane(lane).score(groups).add_done_callback(arrived)

    def _keep(self, key: Key, reply: Reply) -> None:
        if len(key[3]) > LONGEST_CACHED or (isinstance(reply, dict) and _may_differ(reply)):
            return
        with self._lock:
            while len(self._verdicts) >= MOST_CACHED:
                del self._verdicts[next(iter(self._verdicts))]
            self._verdicts[key] = reply


def _close(lanes: Mapping[str, Lane], owner: int) -> None:
    if os.getpid() == owner:
        for lane in list(lanes.values()):
            lane.close()


def _key(item: Item) -> Key:
    # Every table brings its own copies of the metadata; the cache keeps one of each.
    return item.verifier, item.answer, sys.intern(item.metadata), item.response


def _may_differ(reply: Mapping[str, Any]) -> bool:
    """Whether scoring again could give another verdict: the machine may have been busy, or short of memory."""
    error = str(reply.get("error", ""))
    return "fault" in reply or error.startswith("the verifier's process ended") or error.endswith("by the clock")


@cache
def default_scorer() -> Scorer:
    """Return the scorer that this process's samplers share."""
    return Scorer()

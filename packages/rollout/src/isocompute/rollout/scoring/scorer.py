"""Scores responses while an engine goes on: items in, futures of verdicts out.

What is scored and what comes of it: items, verdicts, and batches that wait for the replies of several lanes.

Rules that say whether a response is right: no response makes one raise, and what it says is never executed here.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from ..errors import ProblemError, RolloutError
from . import rules as codec
from .config import ScoringConfig
from .judges.text import same
from .rules import Rule, extraction, rule
from .sandbox.frames import Group, Reply
from .sandbox.layers import Report
from .sandbox.process import Lane

Problem = tuple[str, str, str]
"""Verifier, answer and metadata: what a score depends on besides the response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A response to be scored.

    Attributes:
        response: The response's text.
        answer: The reference answer.
        metadata: What the rule needs besides (``metadata.encode``), or nothing.
    """

    verifier: str
    response: str
    answer: str
    metadata: str = ""

    @property
    def problem(self) -> Problem:
        """What its score depends on besides the response."""
        return self.verifier, self.answer, self.metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a rule says.

    Attributes:
        reward: From 0 to 1; 1 only for a right response.
        error: How the response broke its verifier (the column ``score_error``), which then earns 0; or None.
    """

    reward: float
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Responses of a batch to one problem that are not scored yet.

    Attributes:
        rule: Their rule.
        problem: The problem.
        responses: The responses.
        places: Where in the batch each is.
    """

    rule: Rule
    problem: Problem
    responses: list[str]
    places: list[int]


class Pending:
    """A batch that waits for the replies to one or more of its parts.

    Args:
        found: The reply for each item, None where it is missing.
        partial: Fractions count for every rule.
        parts: Parts that are not answered.
    """

    def __init__(
        self,
        batch: Future[list[Verdict]],
        rules: Sequence[Rule],
        found: list[Reply | None],
        *,
        partial: bool,
        parts: int,
    ) -> None:
        self._batch, self._rules, self._partial = batch, rules, partial
        self.found = found
        self._parts, self._lock = parts, threading.Lock()

    def arrived(self, replies: Mapping[int, Reply]) -> None:
        """Take the replies to a part, and finish with the last one.

        Args:
            replies: By their places in the batch.
        """
        with self._lock:
            for place, reply in replies.items():
                self.found[place] = reply
            self._parts -= 1
            last = self._parts == 0
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
                verdict_of(reply, partial=self._partial or wanted.partial)
                for reply, wanted in zip(self.found, self._rules, strict=True)
            ]
        except Exception as error:
            # Raised in the pool's thread it would be lost, and the batch waited for without end.
            self._batch.set_exception(error)
        else:
            self._batch.set_result(verdicts)


def verdict_of(reply: Reply, *, partial: bool) -> Verdict:
    """Return what a reply comes to.

    Args:
        partial: Fractions count.

    Raises:
        ProblemError: No response to the problem can be scored.
        RolloutError: The response could not be scored, through no fault of its own.
    """
    if isinstance(reply, dict):
        if "unusable" in reply:
            raise ProblemError(reply["unusable"])
        if "fault" in reply:
            raise RolloutError(reply["fault"])
        return Verdict(reward=0.0, error=str(reply["error"]))
    return Verdict(reward=float(reply) if partial else float(reply == 1.0))


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
    """

    def __init__(self, config: ScoringConfig | None = None) -> None:
        self.config = config or ScoringConfig()
        self._lanes: dict[str, Lane] = {}
        self._held: list[tuple[Held, Pending]] = []
        self._own()
        self._verdicts: dict[Problem, dict[str, Reply]] = {}
        self._cached = 0
        self._checked: set[str] = set()

    def check(self, verifiers: Iterable[str]) -> None:
        """Refuse rules that are unknown, refused or lack their library, before anything is sampled.

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
            found: list[Reply | None] = [self._known(*pair) for pair in zip(rules, items, strict=True)]
        except Exception as error:
            batch.set_exception(error)
            return batch
        missing: dict[Problem, Held] = {}
        for i, reply in enumerate(found):
            if reply is None:
                problem = items[i].problem
                if problem not in missing:
                    missing[problem] = Held(rule=rules[i], problem=problem, responses=[], places=[])
                missing[problem].responses.append(items[i].response)
                missing[problem].places.append(i)
        pending = Pending(batch, rules, found, partial=self.config.partial, parts=len(missing))
        if not missing:
            pending.finish()
        with self._lock:
            self._held += [(part, pending) for part in missing.values()]
            self._responses += sum(len(part.places) for part in missing.values())
        if not hold or self._due():
            self.flush()
        return batch

    def flush(self) -> None:
        """Send what is held, without waiting for more."""
        with self._lock:
            held, self._held = self._held, []
            self._responses, self._sent = 0, time.monotonic()
        lanes: dict[str, dict[Problem, list[tuple[Held, Pending]]]] = {}
        for part, pending in held:
            lanes.setdefault(part.rule.lane, {}).setdefault(part.problem, []).append((part, pending))
        for lane, problems in lanes.items():
            self._send(lane, problems)

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
        return [codec.decode_metadata(reply["problem"], where=verifier) for reply in replies if "problem" in reply]

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

    def _known(self, wanted: Rule, item: Item) -> Reply | None:
        if wanted.inline:
            found = _extraction(wanted.words)(item.response)
            return float(found is not None and same(found, item.answer))
        of_problem = self._verdicts.get(item.problem)
        return None if of_problem is None else of_problem.get(item.response)

    def _due(self) -> bool:
        """Whether what is held is enough to be sent, or has waited long enough."""
        return self._responses >= ENOUGH or time.monotonic() - self._sent > HELD_SECONDS

    def _send(self, lane: str, problems: Mapping[Problem, list[tuple[Held, Pending]]]) -> None:
        """Send what is missing in one message, with each problem and each response to it once."""
        groups: list[Group] = []
        for (_, answer, metadata), parts in problems.items():
            # A policy gives the same short response many times; it is scored once.
            responses = list(dict.fromkeys(response for part, _ in parts for response in part.responses))
            wanted = parts[0][0].rule
            groups.append((wanted.base, list(wanted.words), answer, metadata, responses))

        def arrived(done: Future[list[Reply]]) -> None:
            error = done.exception()
            replies = iter(() if error is not None else done.result())
            for (problem, parts), group in zip(problems.items(), groups, strict=True):
                verdicts = dict(zip(group[4], replies, strict=False))
                self._keep(problem, verdicts)
                for part, pending in parts:
                    if error is not None:
                        pending.fail(error)
                    else:
                        pending.arrived({i: verdicts[r] for i, r in zip(part.places, part.responses, strict=True)})

        self._lane(lane).score(groups).add_done_callback(arrived)

    def _keep(self, problem: Problem, verdicts: Mapping[str, Reply]) -> None:
        """Cache what would be said again, by problem: the caches of the oldest problems go first."""
        kept = {response: reply for response, reply in verdicts.items() if _may_be_cached(response, reply)}
        with self._lock:
            own = self._verdicts.setdefault(problem, {})
            self._cached += len(kept.keys() - own.keys())
            own |= kept
            while self._cached > MOST_CACHED:
                self._cached -= len(self._verdicts.pop(next(iter(self._verdicts))))


def _close(lanes: Mapping[str, Lane], owner: int) -> None:
    if os.getpid() == owner:
        for lane in list(lanes.values()):
            lane.close()


def _may_be_cached(response: str, reply: Reply) -> bool:
    """Whether a short response would get the same reply again: the machine may have been busy, or short of memory."""
    if len(response) > LONGEST_CACHED or not isinstance(reply, dict):
        return len(response) <= LONGEST_CACHED
    error = str(reply.get("error", ""))
    return not ("fault" in reply or error.startswith("the verifier's process ended") or error.endswith("by the clock"))


@cache
def default_scorer() -> Scorer:
    """Return the scorer that this process's samplers share."""
    return Scorer()


class Verifier(Protocol):
    """A binary reward function: whether a response is right."""

    def __call__(self, response: str, answer: str, metadata: str = "") -> bool:
        """Say whether the response is right."""
        ...


def verifier(name: str, *, seconds: float = 5.0, scorer: Scorer | None = None) -> Verifier:
    """Return the rule called ``name``, which scores in a sandboxed process.

    * ``exact``: the response, stripped, is the answer.
    * ``math``: math-verify finds the answer's value in the response.
    * ``reasoning_gym:TASK``: the task's own scorer, with the settings, question and metadata of the problem's
      ``metadata`` column, gives exactly 1; its partial scores count as wrong.
    * ``runs``: the program in the response prints what each test in the answer wants.
    * ``python:MODULE:FUNCTION``, or a name given by ``register`` or an entry point: a function of your own.

    Words after the name, separated by ``|``, say where in the response the answer stands: ``exact|boxed``,
    ``exact|last_line``, ``exact|after:####``, ``exact|regex:PATTERN``.

    Args:
        name: Name of the rule, as in the ``verifier`` column.
        seconds: Processor time one response may take; what takes more is wrong.
        scorer: Scores with limits of its own, whatever ``seconds`` says.

    Returns:
        The rule; verdicts of short responses are cached.

    Raises:
        RolloutError: There is no such rule, the library it needs is not installed, the task is refused
            (``refused.REFUSED``), or the rule needs an isolation that this machine's kernel does not give. The rule
            itself raises it when metadata that it needs are missing or unreadable.
    """
    if scorer is None:
        scorer = default_scorer() if seconds == default_scorer().config.seconds else _scorer(seconds)
    used = scorer
    used.check([name])

    def right(response: str, answer: str, metadata: str = "") -> bool:
        item = Item(verifier=name, response=response, answer=answer, metadata=metadata)
        return used.submit([item]).result()[0].reward == 1.0

    return right


@cache
def _scorer(seconds: float) -> Scorer:
    return Scorer(ScoringConfig(seconds=seconds))

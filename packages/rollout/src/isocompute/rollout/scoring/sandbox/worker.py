"""The process that scores: groups of responses in, one line for each response out."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from json.encoder import encode_basestring_ascii
from typing import Any

from ...errors import ProblemError, RolloutError
from ..extraction import Extraction, extraction
from ..judges import Judge, Scored
from ..judges.text import TextJudge
from . import layers
from .child import in_a_child, limits_in
from .frames import COMPLETE, READ, Reply, numbered, said
from .probes import tried

PREPARING_SECONDS = 20.0
"""Processor time that a rule may take to load its data."""
LARGEST_PROBLEM = 1 << 20
"""Bytes of the largest problem that is generated here."""
HELD_SECONDS = 0.1
"""How long replies are held back, to be written together; a reply that took longer is written at once."""
PATIENCE = 2
"""Responses to a problem that may take all their time by the clock; the others then have only ``seconds`` of it."""


class Worker:
    """Scores what it reads until its input ends.

    Args:
        judge: What scores the rules of this lane.
        given: File descriptor of the requests, a JSON line each.
        replies: File descriptor of the replies (``frames.numbered``). They are written together, or one by one where
            the request asks for it, so that it shows which response ended the process.
    """

    def __init__(
        self, judge: Judge, settings: dict[str, Any], report: layers.Report, *, given: int, replies: int
    ) -> None:
        self._judge = judge
        self._given, self._replies = given, replies
        self._held: list[bytes] = []
        self._request, self._number = 0, 0
        self._known = TextJudge()
        self._one_by_one, self._written = False, 0.0
        self._may_execute = layers.isolated(report) or settings["allow_unisolated"]
        self._seconds: float = settings["seconds"]
        self._limits = limits_in(
            report, seconds=self._seconds, wall_seconds=settings["wall_seconds"], processes=settings["processes"]
        )
        self._extraction: Callable[..., Extraction] = lru_cache(maxsize=64)(lambda *words: extraction(words))

    def work(self) -> None:
        """Answer requests until there are no more.

        Raises:
            NoProcessError: A response needs a process, and none can be started.
        """
        with os.fdopen(self._given, "rb") as lines:
            for line in lines:
                request = json.loads(line)
                self._request, self._number = request["id"], 0
                self._one_by_one, self._written = request["one_by_one"], time.monotonic()
                self._hold(numbered(self._request, READ))
                self._write()
                try:
                    self._answer(request)
                finally:
                    self._write()

    def _answer(self, request: dict[str, Any]) -> None:
        for base in request.get("check", ()):
            self._checked(base)
        groups = request.get("groups", ())
        # What is known to be right or wrong takes the way of the responses.
        executing = any(self._judge.executing(group[0]) for group in groups)
        before, after = request.get("canaries", ((), ()))
        if before:
            self._scored(*before, executing=executing)
        for group in groups:
            self._scored(*group, executing=self._judge.executing(group[0]))
        if after:
            self._scored(*after, executing=executing)
        for draw in request.get("draws", ()):
            self._drawn(draw)
        for places in request.get("probes", ()):
            self._say(said(in_a_child(partial(_tried, places), self._limits, kinds=("probes",))))
        self._hold(numbered(self._request, COMPLETE))

    def _scored(
        self, base: str, words: list[str], answer: str, metadata: str, responses: list[str], *, executing: bool
    ) -> None:
        try:
            score = self._prepared(base, answer, metadata)
            extract = self._extraction(*words) if words else None
        except RolloutError as error:
            key = "unusable" if isinstance(error, ProblemError) else "fault"
            for _ in responses:
                self._say(said({key: str(error)}))
            return
        own = base.startswith("python:")
        reply = partial(_reply, score, extract, faults=not own)
        # Whoever executes a response may be made to say anything.
        kinds = ("error",) if own else ("error", "unusable")
        limits, late = self._limits, 0
        for response in responses:
            if executing:
                verdict = in_a_child(partial(reply, response=response), limits, kinds=kinds)
                self._say(said(verdict))
                late += verdict == limits.late
                if late == PATIENCE:
                    limits = replace(self._limits, wall_seconds=self._seconds)
                continue
            # Without a handler the signal ends the process, even inside a C function.
            signal.setitimer(signal.ITIMER_PROF, self._seconds)
            self._say(reply(response=response))
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _checked(self, base: str) -> None:
        try:
            self._prepared(base, "", "")
        except RolloutError as error:
            self._say(said({"fault": str(error)}))
            return
        # Where each response is scored in a process of its own, one must be able to start and to answer.
        reply: Reply = in_a_child(lambda: said(1), self._limits) if self._judge.executing(base) else 1
        self._say(said(reply))

    def _prepared(self, base: str, answer: str, metadata: str) -> Scored:
        """Return the function that scores a response, made in a time of its own."""
        if base == "exact":
            return self._known.prepare(base, answer, metadata)
        if self._judge.executing(base) and not self._may_execute:
            raise RolloutError(
                f"the verifier {base} may execute what a response says, and this machine's kernel does not let it be "
                "cut off from the network and from writing files: score elsewhere, or set allow_unisolated if that is "
                "acceptable"
            )
        signal.setitimer(signal.ITIMER_PROF, max(PREPARING_SECONDS, self._seconds))
        try:
            return self._judge.prepare(base, answer, metadata)
        except RolloutError as error:
            raise ProblemError(str(error)) from None
        except Exception as error:
            raise ProblemError(f"the rule {base} cannot be prepared for it ({broken(error)})") from None
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def _drawn(self, draw: dict[str, Any]) -> None:
        """Generate a problem in a child and write it down."""

        def problem() -> bytes:
            try:
                return said({"problem": self._judge.draw(**draw)})
            except RolloutError as error:
                return said({"fault": str(error)})
            except Exception as error:
                return said({"error": broken(error)})

        kinds = ("error", "fault", "problem")
        self._say(said(in_a_child(problem, self._limits, kinds=kinds, largest=LARGEST_PROBLEM)))

    def _say(self, line: bytes) -> None:
        self._hold(numbered(self._request, self._number, line))
        self._number += 1

    def _hold(self, line: bytes) -> None:
        self._held.append(line)
        # Each write wakes a thread of the engine's process.
        if self._one_by_one or time.monotonic() - self._written > HELD_SECONDS:
            self._write()

    def _write(self) -> None:
        left = memoryview(b"".join(self._held))
        self._held.clear()
        while left:
            left = left[os.write(self._replies, left) :]
        self._written = time.monotonic()


def _tried(places: dict[str, Any]) -> bytes:
    return said({"probes": json.dumps(tried(places))})


def _reply(score: Scored, extract: Extraction | None, *, faults: bool, response: str) -> bytes:
    """Score a response; return the line that says its score, or how it broke its rule.

    Args:
        extract: How the answer is extracted, or None.
        faults: Believe an error that says that the problem is at fault; a response that is executed could raise it.
    """
    # Taken before anything is executed, and not looked up again: a response may replace what modules hold.
    encode, kind, numbers = encode_basestring_ascii, type, (bool, int, float)
    try:
        found = response if extract is None else extract(response)
        value: Any = 0.0 if found is None else score(found)
    except RolloutError as error:
        return b'{"%b": %b}\n' % (b"unusable" if faults else b"error", encode(str(error)).encode())
    except Exception as error:
        return b'{"error": %b}\n' % encode(broken(error)).encode()
    # Not isinstance: a class of a response's making could say anything of itself.
    if kind(value) not in numbers or not 0 <= value <= 1:
        reason = f"error: a verifier must return a number from 0 to 1, not {kind(value).__name__}"
        return b'{"error": %b}\n' % encode(reason).encode()
    return b"%a\n" % (0.0 + value)


def broken(error: BaseException) -> str:
    """Return one short line about an exception."""
    words = " ".join(str(error).split())
    return f"error: {type(error).__name__}: {words[:100]}" if words else f"error: {type(error).__name__}"

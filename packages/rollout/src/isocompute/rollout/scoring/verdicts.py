"""What is scored and what comes of it: items, verdicts, and batches that wait for the replies of several lanes."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from ..errors import ProblemError, RolloutError
from .rules import Rule
from .sandbox.frames import Reply

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

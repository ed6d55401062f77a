"""A process that scores, seen from the engine's: requests out, replies in, and a new one where it ended."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

from ...errors import RolloutError
from ..config import ScoringConfig
from . import start
from .canaries import Group, canaries, check
from .child import ended
from .frames import COMPLETE, NO_VERDICT, READ, FrameError, Reply, death_in, number_in, reply_in
from .layers import Report
from .worker import PREPARING_SECONDS

START_SECONDS = 120.0
"""Timeout for starting a process and loading its library."""
END_SECONDS = 2.0
"""Timeout for ending one before it is killed."""
FAILURES = 3
"""Processes that may end one after another without an answer before scoring is given up."""
LONGEST_LINE = 1 << 22
"""Bytes of the longest line that a process may write."""

CLOSED = "the scorer was closed before it had scored all that was submitted"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What came of a request.

    Attributes:
        replies: The replies, in order, up to where it ended.
        died: How the process ended before the request was complete; empty where it was.
        blamed: The response that was being scored may be what ended it.
    """

    replies: list[Reply]
    died: str = ""
    blamed: bool = False


class ScoringProcess:
    """One process of a lane and its replacements; used by one thread at a time.

    Args:
        lane: ``exact``, ``math``, ``reasoning_gym``, ``runs`` or ``python:MODULE:FUNCTION``.
    """

    def __init__(self, lane: str, config: ScoringConfig) -> None:
        self._lane, self._config = lane, config
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._unread = b""
        self._lines: deque[bytes] = deque()
        self._request = 0
        self._stopped = False
        self.report: Report = {}

    @property
    def pid(self) -> int:
        """The first process of the sandbox that runs; 0 for none."""
        return self._process.pid if self._process is not None else 0

    def score(self, groups: Sequence[Group]) -> list[Reply]:
        """Score responses, whatever becomes of the processes that do it, with two whose scores are known.

        Returns:
            A reply for each response, in order.

        Raises:
            RolloutError: No process can be started, or what is known to be right or wrong gets another score.
        """
        replies: list[Reply] = []
        failures, one_by_one, complete = 0, False, False
        total = sum(len(group[4]) for group in groups)
        while not complete:
            request = {"groups": _after(groups, len(replies)), "canaries": canaries(self._lane)}
            answer = self._ask(request, total - len(replies) + 2, one_by_one=one_by_one)
            left = total - len(replies)
            unknown = self._known(answer.replies[:1], right=True) or self._known(
                answer.replies[left + 1 :], right=False
            )
            failed = answer.died or unknown
            # A process whose known responses fail is not believed; one that ends has told how, up to there.
            progress = [] if unknown else answer.replies[1 : left + 1]
            replies += progress
            if answer.blamed and one_by_one and answer.replies and len(replies) < total:
                replies.append({"error": answer.died})
                progress = [*progress, replies[-1]]
            complete = not failed
            failures = failures + 1 if failed and not progress else 0
            if failures == FAILURES:
                raise RolloutError(f"the processes that score {self._lane} keep ending before they answer: {failed}")
            # Of replies that are written together it does not show which response ended the process.
            one_by_one = True
        return replies

    def each(self, kind: str, values: Sequence[Any]) -> list[Reply]:
        """Ask for something else than scores: ``check`` for rules, ``draws`` for problems.

        Returns:
            A reply for each value, in order.

        Raises:
            RolloutError: No process can be started.
        """
        replies: list[Reply] = []
        failures = 0
        while len(replies) < len(values):
            before = len(replies)
            answer = self._ask({kind: list(values[before:])}, len(values) - before, one_by_one=True)
            replies += answer.replies
            if answer.blamed and len(replies) < len(values):
                replies.append({"error": answer.died})
            failures = failures + 1 if len(replies) == before else 0
            if failures == FAILURES:
                raise RolloutError(f"the process that scores {self._lane} does not answer: {answer.died}")
        return replies

    def _known(self, replies: Sequence[Reply], *, right: bool) -> str:
        """Return how a response whose score is known failed; with another score the process is given up."""
        try:
            failed = "".join(check(self._lane, reply, right=right) for reply in replies)
        except RolloutError:
            self.close()
            raise
        if failed:
            self.close()
        return failed

    def started(self) -> Report:
        """Start a process where none runs; return the layers of its sandbox.

        Raises:
            RolloutError: It does not start.
        """
        if self._process is not None and self._process.poll() is None:
            return self.report
        program = start.bubblewrap_for(self._lane, self._config)
        if program:
            # Where it can set up nothing, the sandbox's own layers are around each program.
            with contextlib.suppress(RolloutError):
                return self._started(program)
        return self._started("")

    def _started(self, program: str) -> Report:
        self.close()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            start.command(self._lane, self._config, program), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._errors, bufsize=0, env=start.variables(), start_new_session=True,
        )  # fmt: skip
        line = self._line(START_SECONDS)
        first: dict[str, Any] = json.loads(line) if line else {"fault": self._why()}
        if "ready" not in first:
            self.close()
            raise RolloutError(f"the process that scores {self._lane} did not start: {first.get('fault')}")
        self.report = first["ready"]
        return self.report

    def stop(self) -> None:
        """End the process for good, from any thread; whoever waits for a reply gets an error."""
        self._stopped = True
        process = self._process
        if process is not None:
            with contextlib.suppress(OSError):
                process.terminate()

    def close(self) -> None:
        """End the process; the next request starts another."""
        process, self._process, self._unread = self._process, None, b""
        self._lines.clear()
        if self._errors is not None:
            self._errors.close()
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            # The launcher sees its input closed, and kills everything.
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _ask(self, request: dict[str, Any], count: int, *, one_by_one: bool) -> _Answer:
        """Send a request and read its replies, until all are there or the process that writes them ends."""
        if self._process is not None and self._stray():
            self.close()
        self.started()
        if self._stopped:
            raise RolloutError(CLOSED)
        self._request += 1
        replies: list[Reply] = []
        try:
            self._send({**request, "id": self._request, "one_by_one": one_by_one})
            died, blamed = self._read(replies, count)
        except OSError:
            self.close()
            return _Answer(replies=[], died="it ended before it read a request")
        except FrameError as error:
            self.close()
            # Replies that were written together with what is none cannot be believed; of those written one by one, the
            # last that was waited for.
            return _Answer(replies=replies[: count - 1] if one_by_one else [], died=str(error), blamed=True)
        if died and self._stopped:
            raise RolloutError(CLOSED)
        return _Answer(replies=replies, died=died, blamed=blamed)

    def _read(self, replies: list[Reply], count: int) -> tuple[str, bool]:
        """Append replies; return how the process ended, if it did, and whether a response may be what ended it."""
        read = False
        while True:
            line = self._line(self._config.wall_seconds + PREPARING_SECONDS)
            if not line:
                return self._ended(), read
            if line.startswith(b"{"):
                end = death_in(line)
                if not read:
                    # What it left of the request must not be taken for another.
                    self.close()
                return end["died"], read and not end.get("again")
            number, reply = number_in(line, self._request)
            if number == READ and not read:
                read = True
            elif read and number == len(replies) < count:
                replies.append(reply_in(reply))
            elif number == COMPLETE and len(replies) == count and not self._stray():
                return "", False
            else:
                raise FrameError(NO_VERDICT)

    def _stray(self) -> bool:
        """Whether something was written that nobody waits for."""
        assert self._process is not None
        assert self._process.stdout is not None
        return bool(self._lines or self._unread or select.select([self._process.stdout], [], [], 0)[0])

    def _ended(self) -> str:
        """End a process that does not answer, or has ended; say which."""
        assert self._process is not None
        late = self._process.poll() is None
        self.close()
        if late:
            return f"deadline: more than {self._config.wall_seconds:g} s by the clock"
        return "the verifier's process ended"

    def _why(self) -> str:
        """Why a process has not started: the last line that it wrote."""
        assert self._process is not None
        assert self._errors is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        code = self._process.returncode
        end = f"more than {START_SECONDS:g} s" if code is None else ended(code)
        self._errors.seek(0)
        written = self._errors.read(1 << 20).decode(errors="replace").strip().splitlines()
        return f"{written[-1].strip()[:300]} ({end})" if written else end

    def _send(self, request: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        # An unbuffered pipe may take only a part.
        left = memoryview(json.dumps(request).encode() + b"\n")
        while left:
            left = left[self._process.stdin.write(left) or 0 :]

    def _line(self, seconds: float) -> bytes:
        """Read one line; an empty one when the process ends first or takes longer."""
        assert self._process is not None
        assert self._process.stdout is not None
        end = time.monotonic() + seconds
        while not self._lines:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                return b""
            part = os.read(self._process.stdout.fileno(), 1 << 16)
            if not part:
                return b""
            *lines, self._unread = (self._unread + part).split(b"\n")
            if len(self._unread) > LONGEST_LINE:
                raise FrameError(NO_VERDICT)
            self._lines.extend(lines)
        return self._lines.popleft()


def _after(groups: Sequence[Group], done: int) -> list[Group]:
    """The groups without the first responses."""
    rest: list[Group] = []
    for base, words, answer, metadata, responses in groups:
        skipped = min(done, len(responses))
        done -= skipped
        if skipped < len(responses):
            rest.append((base, words, answer, metadata, responses[skipped:]))
    return rest

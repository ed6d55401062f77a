"""A process that scores, seen from the engine's: requests out, replies in, and a new one where it ended."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import sysconfig
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import RolloutError
from ..config import ScoringConfig
from . import boot
from .layers import Report
from .worker import PREPARING_SECONDS

START_SECONDS = 120.0
"""Timeout for starting a process and loading its library."""
END_SECONDS = 2.0
"""Timeout for ending one before it is killed."""
STARTS = 3
"""Processes that may end without reading a request before scoring is given up."""
PACKAGES = ("site-packages", "dist-packages")
"""Names of the folders of installed libraries."""
ENVIRONMENT = ("LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "TZ")
"""Variables that the process gets; nothing that a token or a key would stand in."""

CLOSED = "the scorer was closed before it had scored all that was submitted"

Group = tuple[str, list[str], str, str, list[str]]
"""Rule, words of extraction, answer, metadata and responses."""
Reply = Any
"""A score, or a mapping: ``error`` is the response's fault, ``unusable`` the problem's, ``fault`` nobody's here."""


class ScoringProcess:
    """One process of a lane and its replacements; used by one thread at a time.

    Args:
        lane: ``exact``, ``math``, ``reasoning_gym`` or ``python:MODULE:FUNCTION``.
        config: Its limits.
    """

    def __init__(self, lane: str, config: ScoringConfig) -> None:
        self._lane, self._config = lane, config
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._lines: deque[bytes] = deque()
        self._stopped = False
        self.report: Report = {}

    def score(self, groups: Sequence[Group]) -> list[Reply]:
        """Score responses, whatever becomes of the processes that do it.

        Args:
            groups: Responses by problem.

        Returns:
            A reply for each response, in order.

        Raises:
            RolloutError: No process can be started.
        """
        replies: list[Reply] = []
        starts, one_by_one = 0, False
        total = sum(len(group[4]) for group in groups)
        while len(replies) < total:
            request = {"groups": _after(groups, len(replies)), "one_by_one": one_by_one}
            read = self._ask(request, replies, total)
            starts = 0 if read else starts + 1
            # Of replies that are written together it does not show which response ended the process.
            one_by_one = True
            if starts == STARTS:
                raise RolloutError(f"the processes that score {self._lane} keep ending before they read a request")
        return replies

    def each(self, kind: str, values: Sequence[Any]) -> list[Reply]:
        """Ask for something else than scores: ``check`` for rules, ``draws`` for problems.

        Args:
            kind: Which.
            values: What is asked, one by one.

        Returns:
            A reply for each value, in order.

        Raises:
            RolloutError: No process can be started.
        """
        replies: list[Reply] = []
        while len(replies) < len(values):
            before = len(replies)
            self._ask({kind: list(values[before:]), "one_by_one": True}, replies, len(values))
            if len(replies) == before:
                raise RolloutError(f"the process that scores {self._lane} does not answer")
        return replies

    def started(self) -> Report:
        """Start a process where none runs; return the layers of its sandbox.

        Raises:
            RolloutError: It does not start.
        """
        if self._process is not None and self._process.poll() is None:
            return self.report
        self.close()
        user_code = self._lane.startswith("python:")
        path = _path(user_code=user_code)
        settings = {
            "lane": self._lane, "path": path, "readable": readable(path, user_code=user_code), "user_code": user_code,
            "seconds": self._config.seconds, "wall_seconds": self._config.wall_seconds,
            "memory_bytes": self._config.memory_bytes, "allow_unisolated": self._config.allow_unisolated,
            "without": self._config.without,
        }  # fmt: skip
        one_thread = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
        kept = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-B", "-W", "ignore", str(Path(boot.__file__).resolve()), json.dumps(settings)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
            env={**kept, **one_thread, "PYTHONHASHSEED": "0", "HOME": "/"}, start_new_session=True,
        )  # fmt: skip
        line = self._line(START_SECONDS)
        first: dict[str, Any] = json.loads(line) if line else {"fault": f"exit code {self._process.poll()}"}
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

    def _ask(self, request: dict[str, Any], replies: list[Reply], total: int) -> bool:
        """Send a request and append replies until all are there or the worker ends; say whether it was read."""
        self.started()
        if self._stopped:
            raise RolloutError(CLOSED)
        try:
            self._send(request)
        except OSError:
            self.close()
            return False
        read = False
        limit = self._config.wall_seconds + PREPARING_SECONDS
        while len(replies) < total:
            line = self._line(limit)
            if line == b"+":
                read = True
                continue
            reply: Reply = json.loads(line) if line else {"died": self._ended()}
            if not (isinstance(reply, dict) and "died" in reply):
                replies.append(reply)
                continue
            if self._stopped:
                raise RolloutError(CLOSED)
            if not read:
                # What it left of the request must not be taken for another.
                self.close()
                return False
            if request["one_by_one"]:
                replies.append({"error": reply["died"]})
            break
        return True

    def _ended(self) -> str:
        """End a process that does not answer, or has ended; say which."""
        assert self._process is not None
        late = self._process.poll() is None
        self.close()
        if late:
            return f"deadline: more than {self._config.wall_seconds:g} s by the clock"
        return "the verifier's process ended"

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
            self._lines.extend(lines)
        return self._lines.popleft()


def _path(*, user_code: bool) -> list[str]:
    """The ``sys.path`` of a process; a user's verifier may lie in this process's folder, which console scripts lack."""
    here = ""
    with contextlib.suppress(OSError):
        here = str(Path.cwd())
    path = [p or here for p in sys.path]
    return list(dict.fromkeys([*path, here] if user_code and here else path))


def readable(path: Sequence[str], *, user_code: bool) -> list[str]:
    """Return the folders that scoring needs: the interpreter's, those of installed libraries and this package's own.

    Args:
        path: The ``sys.path`` of this process.
        user_code: A user's own verifier is scored, which may read whatever it can be imported from.
    """
    package = Path(__file__).resolve().parents[4]
    installed = path if user_code else [p for p in path if Path(p).name in PACKAGES]
    found = [sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), *installed, str(package)]
    return list(dict.fromkeys(p for p in found if Path(p).is_dir()))


def _after(groups: Sequence[Group], done: int) -> list[Group]:
    """The groups without the first responses."""
    rest: list[Group] = []
    for base, words, answer, metadata, responses in groups:
        skipped = min(done, len(responses))
        done -= skipped
        if skipped < len(responses):
            rest.append((base, words, answer, metadata, responses[skipped:]))
    return rest

"""math-verify in a process of its own, so that a time limit works in any thread.

Some responses, such as a tower of powers, keep sympy busy for ever. math-verify's own timeout is a signal, which only
the main thread of a process may set. Here one long-lived process scores, one JSON line per item; it ends when an item
takes more processor time than allowed, and the next item starts another.

This module, run as a script by its path, is that process; so it imports nothing else of the package.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from typing import Any

START_SECONDS = 120.0
"""Timeout for starting the process."""
MEMORY_BYTES = 4 * 2**30
"""Memory the process may take; an item that needs more is wrong."""
WALL_FACTOR = 10
"""Timeout in wall time, in multiples of the processor time: an item must not become wrong on a busy machine."""


class MathProcess:
    """Scores with math-verify under a time limit; safe to share between threads.

    Args:
        seconds: Processor time one item may take. An item that takes more, or more than ten times that by the
            clock, is wrong.
    """

    def __init__(self, *, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        atexit.register(self.close)

    def right(self, response: str, answer: str) -> bool:
        """Say whether math-verify finds the answer's value in the response.

        Args:
            response: The response's text.
            answer: The reference answer.

        Raises:
            RuntimeError: The process does not start.
        """
        with self._lock:
            process = self._started()
            try:
                self._send(process, {"response": response, "answer": answer, "seconds": self._seconds})
                reply = self._line(process, self._seconds * WALL_FACTOR)
            except OSError:
                reply = b""
            if reply:
                return bool(json.loads(reply))
            # Too late, or ended by its own limit.
            self._end()
            return False

    def close(self) -> None:
        """End the process; the next item starts another."""
        with self._lock:
            self._end()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._owner != os.getpid():
            # A fork shares its parent's pipes and would read the parent's verdicts.
            self._process, self._owner = None, os.getpid()
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", __file__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        if not self._line(self._process, START_SECONDS):
            code = self._process.poll()
            self._end()
            raise RuntimeError(f"the process that runs math-verify did not start (exit code {code})")
        return self._process

    @staticmethod
    def _send(process: subprocess.Popen[bytes], item: dict[str, Any]) -> None:
        assert process.stdin is not None
        # An unbuffered pipe may take only a part.
        left = memoryview(json.dumps(item).encode() + b"\n")
        while left:
            left = left[process.stdin.write(left) or 0 :]

    @staticmethod
    def _line(process: subprocess.Popen[bytes], seconds: float) -> bytes:
        """Read one line; an empty one when the process ends first or takes longer."""
        assert process.stdout is not None
        end = time.monotonic() + seconds
        line = b""
        while not line.endswith(b"\n"):
            left = end - time.monotonic()
            if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                return b""
            part = os.read(process.stdout.fileno(), 4096)
            if not part:
                return b""
            line += part
        return line

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def equivalent(response: str, answer: str) -> bool:
    """Say whether math-verify finds the answer's value in the response, in this process and without a limit.

    Args:
        response: The response's text.
        answer: The reference answer.
    """
    from math_verify import parse, verify

    try:
        gold = parse(f"${answer}$", parsing_timeout=None)
        return bool(verify(gold, parse(response, parsing_timeout=None), timeout_seconds=None))
    except Exception:
        # A response may hold anything; what cannot be read or compared is wrong.
        return False


def serve() -> None:
    """Score items from standard input until it ends."""
    import logging
    import resource
    import signal

    out = os.fdopen(os.dup(1), "wb", buffering=0)
    # What a library prints must not become a verdict.
    os.dup2(2, 1)
    logging.disable(logging.CRITICAL)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    equivalent("1", "1")
    out.write(b"ready\n")
    for line in sys.stdin.buffer:
        item = json.loads(line)
        # Without a handler the signal ends the process, even inside a C function.
        signal.setitimer(signal.ITIMER_PROF, item["seconds"])
        verdict = equivalent(item["response"], item["answer"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        out.write(json.dumps(verdict).encode() + b"\n")


if __name__ == "__main__":
    serve()

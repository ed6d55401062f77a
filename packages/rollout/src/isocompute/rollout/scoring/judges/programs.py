"""Runs a program in its own process with input on standard input; its output is compared elsewhere."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from .. import running

LONGEST_PROGRAM = 100_000
"""Bytes of the longest program, which the kernel takes as one argument."""
FILTER = "{filter}"
"""Placeholder in a command for the file descriptor of a system-call filter."""
LOOK_SECONDS = 0.05
"""Interval between checks whether a program with open output has ended or used up its time."""
_PART = 1 << 16
LAST_BYTES = 1 << 12
"""Bytes kept from the end of a program's standard error."""


class ProgramTooLongError(ValueError):
    """A program has more bytes than the kernel takes as one argument."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """How a program is isolated from the process that starts it."""

    command: tuple[str, ...] = ()
    """Words before a program's command, with ``FILTER`` among them; empty if this process's sandbox suffices."""
    filter: bytes = b""
    """A system-call filter, in the kernel's format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """Outcome of a program.

    Attributes:
        output: Printed bytes, at most one more than allowed.
        code: Its exit code; negative for a signal.
        late: Whether it took too long.
        seconds: Its processor time, including that of its descendants where this process can see them.
        error: The last line on its standard error, which the program may have made up.
    """

    output: bytes
    code: int
    late: bool
    seconds: float
    error: bytes


def run(
    program: str, given: bytes, apart: Apart, *, seconds: float, most: int, processor_seconds: float = math.inf
) -> Ran:
    """Run a Python program.

    Args:
        given: Its standard input.
        seconds: Wall time limit.
        most: Most bytes that it may print.
        processor_seconds: Limit on processor time, including that of its children as far as this process sees them.

    Raises:
        OSError: No process can be started.
        ValueError: The program is too long (``ProgramTooLongError``), or not a text.
    """
    if len(program.encode()) > LONGEST_PROGRAM:
        raise ProgramTooLongError(f"the program has more than {LONGEST_PROGRAM} bytes")
    python = [sys.executable, "-s", "-P", "-B", "-X", "utf8", "-W", "ignore", "-c", program]
    reading, writing = os.pipe()
    try:
        # The filter fits into the pipe; closing the pipe marks its end.
        os.write(writing, apart.filter)
        os.close(writing)
        command = [str(reading) if word == FILTER else word for word in apart.command] + python
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            pass_fds=(reading,) if apart.filter else (),
        )
    finally:
        os.close(reading)
    end, errors = time.monotonic() + seconds, bytearray()
    seen, before = 0.0, spent()

    def late() -> bool:
        nonlocal seen
        used = running.clock(process.pid)
        if apart.command:
            # The wrapper uses no processor time, and the program's processes are visible from here. Those that the
            # program did not wait for end with their namespace, and no process reports their time afterwards.
            used = sum(each.used + each.reaped for each in running.descendants(process.pid, ended=True))
        seen = max(seen, used)
        return time.monotonic() > end or seen > processor_seconds

    try:
        output, is_late = _talk(process, given, late, most, errors)
        if not is_late and len(output) <= most:
            is_late = _late(process, late, errors)
    finally:
        killed = False
        # Without its own namespace the sandbox may not signal others; the worker then ends the program with the
        # response.
        with contextlib.suppress(PermissionError):
            process.kill()
            killed = True
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
    said = bytes(errors).rstrip().rpartition(b"\n")[2]
    code = process.wait() if killed else -signal.SIGKILL
    return Ran(output=output, code=code, late=is_late, seconds=max(seen, spent() - before), error=said)


def spent() -> float:
    """Return the processor time of all programs that this process has run (s)."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _talk(
    process: subprocess.Popen[bytes], given: bytes, late: Callable[[], bool], most: int, errors: bytearray
) -> tuple[bytes, bool]:
    """Write input and read output until it ends, is too long or the time is up; return it and whether time was up."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    left, output = memoryview(given), bytearray()
    os.set_blocking(process.stdin.fileno(), False)
    os.set_blocking(process.stderr.fileno(), False)
    with selectors.DefaultSelector() as pipes:
        pipes.register(process.stdout, selectors.EVENT_READ)
        pipes.register(process.stderr, selectors.EVENT_READ)
        if left:
            pipes.register(process.stdin, selectors.EVENT_WRITE)
        else:
            process.stdin.close()
        looked = time.monotonic()
        while True:
            if time.monotonic() - looked > LOOK_SECONDS:
                if late():
                    return bytes(output), True
                looked = time.monotonic()
            # Checked before its output is read, so that no output is missed.
            ended = process.poll() is not None
            ready = {key.fileobj for key, _ in pipes.select(0 if ended else LOOK_SECONDS)}
            if process.stderr in ready and not _heard(process, errors):
                pipes.unregister(process.stderr)
            if process.stdout in ready:
                part = os.read(process.stdout.fileno(), min(_PART, most + 1 - len(output)))
                output += part
                if not part or len(output) > most:
                    return bytes(output), False
            elif ended:
                # Processes that it started may keep the pipe open.
                return bytes(output), False
            if process.stdin in ready:
                try:
                    left = left[os.write(process.stdin.fileno(), left[:_PART]) :]
                except BrokenPipeError:
                    left = left[:0]
                if not left:
                    pipes.unregister(process.stdin)
                    process.stdin.close()


def _heard(process: subprocess.Popen[bytes], errors: bytearray) -> bool:
    """Read available standard error of a program, and keep its end; return whether there may be more."""
    assert process.stderr is not None
    try:
        part = os.read(process.stderr.fileno(), _PART)
    except BlockingIOError:
        return True
    errors += part
    del errors[:-LAST_BYTES]
    return bool(part)


def _late(process: subprocess.Popen[bytes], late: Callable[[], bool], errors: bytearray) -> bool:
    """Wait until a program that has closed its output ends; return whether its time was up first."""
    while True:
        try:
            process.wait(LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            _heard(process, errors)
            if late():
                return True
        else:
            _heard(process, errors)
            return False

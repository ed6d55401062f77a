"""Runs a command that ends with the process that started this one: ``python watchdog.py COMMAND ...``.

A signal to a process does not reach its children, and SIGKILL leaves it no time to pass anything on. So this program
reads its standard input, whose other end the starting process holds. When that end closes, for whatever reason, the
command and everything below it are killed. The word ``stop`` first asks the command to end by itself (SIGTERM).
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

import psutil

NOT_STARTED = 127
"""Exit code if there is no such program, as in a shell."""
GRACE_SECONDS = 60.0
"""Timeout for a command to save its state and end."""


def main(command: list[str]) -> int:
    """Run a command; return its exit code, or 128 plus the signal's number if it was killed."""
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}", flush=True)
        return NOT_STARTED
    threading.Thread(target=_hold, args=(process,), daemon=True).start()
    code = process.wait()
    return code if code >= 0 else 128 - code


def _hold(process: subprocess.Popen[bytes]) -> None:
    """Wait until the other end is closed, then end the command."""
    said = sys.stdin.read()
    if "stop" in said:
        _tell(process, psutil.Process.terminate)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
    _tell(process, psutil.Process.kill)


def _tell(process: subprocess.Popen[bytes], how: Callable[[psutil.Process], None]) -> None:
    """Signal a command and everything that it has started."""
    with suppress(psutil.NoSuchProcess):
        first = psutil.Process(process.pid)
        for each in [*first.children(recursive=True), first]:
            with suppress(psutil.NoSuchProcess):
                how(each)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

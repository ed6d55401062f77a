"""A command in a session of its own: started, sent signals, and ended with all that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from ..errors import BudgetError
from ..wording import reason

PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
"""Signals that reach the command instead of the one who watches it."""


class Command:
    """A command, and the processes of its group.

    Attributes:
        words: What was started.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, with this process's input, output and environment.

        Raises:
            BudgetError: It cannot be started.
        """
        try:
            self._process = subprocess.Popen(self.words, start_new_session=True)
        except (OSError, ValueError) as error:
            raise BudgetError(f"{self.words[0]}: cannot be started ({reason(error)})") from None

    @property
    def started(self) -> bool:
        """Whether it was started."""
        return self._process is not None

    def wait(self, seconds: float) -> int | None:
        """Wait for its first process to end.

        Returns:
            Its exit status, the negative number of the signal that ended it, or None if it still runs.
        """
        if self._process is None:
            return None
        try:
            return self._process.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            return None

    def send(self, number: int) -> None:
        """Send a signal to every process of its group; nothing happens where there is none left."""
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def runs(self) -> bool:
        """Whether a process of its group is left, once the first one was waited for."""
        if self._process is None:
            return False
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        # Where nobody waits for orphans, as in many containers, they stay as zombies.
        return not Path("/proc/self/stat").exists() or _living(self._process.pid)


@contextmanager
def passing_on(command: Command) -> Iterator[None]:
    """Let signals to this process reach the command; those that this process ignores stay ignored (nohup).

    What arrives before the command was started ends this process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def pass_on(number: int, _: object) -> None:
        if not command.started:
            _exit(number)
        command.send(number)

    before = {}
    for name in PASSED_ON:
        number = getattr(signal, name)
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, pass_on)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def require_groups() -> None:
    """Refuse systems without process groups.

    Raises:
        BudgetError: This is Windows.
    """
    if sys.platform == "win32":
        raise BudgetError("a command is followed on Linux and macOS only, since Windows has no process groups")


def _living(group: int) -> bool:
    """Whether a process group has a member that is not a zombie."""
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError, ValueError):
            # Its name, in brackets, may hold anything.
            state, _, of_group = place.read_text(errors="replace").rpartition(")")[2].split()[:3]
            if int(of_group) == group and state not in "ZX":
                return True
    return False


def _exit(number: int) -> NoReturn:
    raise SystemExit(128 + number)

"""SIGTERM and SIGINT: what runs may save its state first; a second signal ends it at once."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import is_for_the_user

SAME_SECONDS = 2.0
"""Signals within this time are one, which a terminal sent to a group and a command passed on."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(KeyboardInterrupt):
    """A signal asked this process to end.

    Attributes:
        exit_code: What a process that a signal ended exits with, as a shell sees it.
    """

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        self.exit_code = 128 + number
        super().__init__(f"stopped by {self.signal.name}")


def exit_code(command: Callable[[], int | None]) -> int:
    """Run a command of a command line: an error a user can act on is one line and exit code 2, a signal its own."""
    try:
        return command() or 0
    except (ValueError, OSError) as error:
        if not is_for_the_user(error):
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Stopped as stopped:
        print(f"{stopped}: what was done is kept, and the same command continues", file=sys.stderr)
        return stopped.exit_code


def raise_stopped(number: int, _: Any = None) -> None:
    """Handle a signal where there is nothing to save."""
    raise Stopped(number)


def install() -> None:
    """End this process by ``Stopped`` on a signal; called again once Ray, which installs handlers itself, has started.

    Outside of the main thread, where Python takes no handlers, nothing changes.
    """
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            signal.signal(number, raise_stopped)


def installed() -> bool:
    """Whether ``install`` was called, and nothing else has replaced a handler since."""
    return any(signal.getsignal(number) is raise_stopped for number in SIGNALS)


@contextmanager
def deferred() -> Iterator[Callable[[], int | None]]:
    """Note the first signal, and raise ``Stopped`` for it at the end of the block.

    Yields:
        A function that returns the number of the signal that came, or None.

    Raises:
        Stopped: A signal came; a second one ends the block where it is.
    """
    came: list[int] = []
    first = 0.0

    def note(number: int, frame: Any) -> None:
        nonlocal first
        if not came:
            came.append(number)
            first = time.monotonic()
        elif time.monotonic() - first > SAME_SECONDS:
            raise Stopped(came[0])

    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield lambda: came[0] if came else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        raise Stopped(came[0])

"""Ends exchanges with a server at their deadlines: a socket's own timeout begins again with every byte."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

TICK_SECONDS = 0.05


@dataclass(slots=True, kw_only=True)
class Limit:
    """An exchange under way.

    Attributes:
        deadline: When it is ended (``time.monotonic``).
        halt: Ends it as soon as it is set.
        ended: Whether it was ended.
    """

    connection: socket.socket
    deadline: float
    halt: threading.Event
    ended: bool = False


class Watch:
    """A thread that shuts down sockets whose time is up; it runs while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._limits: dict[int, Limit] = {}
        self._running = False

    @contextlib.contextmanager
    def limited(self, connection: socket.socket, *, deadline: float, halt: threading.Event) -> Iterator[Limit]:
        """Limit what is done with a socket meanwhile.

        Args:
            deadline: When it is shut down (``time.monotonic``).
            halt: Shuts it down as soon as it is set.

        Yields:
            The limit, which says afterwards whether it was reached.
        """
        limit = Limit(connection=connection, deadline=deadline, halt=halt)
        with self._lock:
            self._limits[id(limit)] = limit
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="server-deadlines", daemon=True).start()
        try:
            yield limit
        finally:
            with self._lock:
                del self._limits[id(limit)]

    def _run(self) -> None:
        while True:
            time.sleep(TICK_SECONDS)
            with self._lock:
                if not self._limits:
                    self._running = False
                    return
                now = time.monotonic()
                for limit in self._limits.values():
                    if not limit.ended and (now > limit.deadline or limit.halt.is_set()):
                        limit.ended = True
                        with contextlib.suppress(OSError):
                            # Not SSLSocket.shutdown, which takes the TLS state from a thread that reads.
                            socket.socket.shutdown(limit.connection, socket.SHUT_RDWR)

"""Several servers as one: a request goes to the least busy; one that keeps failing is left out for a while."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Container, Sequence
from itertools import starmap
from typing import TypeVar

from ...errors import RolloutError
from .client import Client, Failed

ATTEMPTS = 4
"""Attempts at one request, over all servers."""

FIRST_PAUSE_SECONDS = 0.5
"""Before an attempt at a server that has just failed; each further pause is twice as long."""

MAX_WAIT_SECONDS = 60.0
"""Longest pause before an attempt, whatever ``Retry-After`` asks for, and longest time that a server is left out."""

FAILURES_IN_A_ROW = 3
"""After which a server is left out; after one where there is no connection."""

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")


class Server:
    """One of several servers, and how it does."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.refused: frozenset[str] = frozenset()
        """Groups of optional fields that it does not take (``fields.Body``)."""
        self.in_flight = 0
        self.left_out_until = 0.0
        """Until when others are asked instead."""
        self.busy_until = 0.0
        """Until when it asks to be left alone."""
        self.failures_in_a_row = 0


class Servers:
    """Servers of one model.

    Args:
        clients: One per server, at least one.
    """

    def __init__(self, clients: Sequence[Client]) -> None:
        if not clients:
            raise RolloutError("there is no server; base_urls must name at least one")
        addresses = [client.base_url for client in clients]
        for address in addresses:
            if addresses.count(address) > 1:
                raise RolloutError(f"base_urls names the server {address} twice; each must be named once")
        self.all = [Server(client) for client in clients]
        self._lock = threading.Lock()

    def __str__(self) -> str:
        addresses = [server.client.base_url for server in self.all]
        return f"the server at {addresses[0]}" if len(addresses) == 1 else f"the servers at {', '.join(addresses)}"

    def answered(self, ask: Callable[[Server], Answer], halt: threading.Event) -> Answer:
        """Return the answer to one request, from whichever server gives it.

        Args:
            ask: Asks a server; what it raises besides ``Failed`` is not tried again.
            halt: Ends waiting as soon as it is set.

        Raises:
            Failed: All attempts failed; the message says where and how. ``unreachable`` says that there was no
                connection at any of them.
        """
        failures: dict[Server, list[Failed]] = {}
        for attempt in range(1, ATTEMPTS + 1):
            server = self._begin(failures, attempt, halt)
            try:
                answer = ask(server)
            except Failed as error:
                self._failed(server, error)
                failures.setdefault(server, []).append(error)
                if attempt == ATTEMPTS or halt.is_set():
                    unreachable = all(e.unreachable for errors in failures.values() for e in errors)
                    raise Failed("; ".join(starmap(_said, failures.items())), unreachable=unreachable) from None
            else:
                server.failures_in_a_row = 0
                return answer
            finally:
                with self._lock:
                    server.in_flight -= 1
        raise AssertionError("the last attempt returns or raises")

    def close(self) -> None:
        """Close all idle connections."""
        for server in self.all:
            server.client.close()

    def _begin(self, tried: Container[Server], attempt: int, halt: threading.Event) -> Server:
        """Choose a server for an attempt, wait until it may be asked, and count the request as in flight there."""
        now = time.monotonic()
        with self._lock:
            # Where none is free, waiting for one would hold up a request that may fail anyway.
            free = [s for s in self.all if max(s.left_out_until, s.busy_until) <= now] or self.all
            server = min([s for s in free if s not in tried] or free, key=lambda s: s.in_flight)
            server.in_flight += 1
        pause = FIRST_PAUSE_SECONDS * 2 ** (attempt - 2) if server in tried else 0.0
        halt.wait(max(pause, server.busy_until - now))
        return server

    def _failed(self, server: Server, error: Failed) -> None:
        """Leave a server out that keeps failing, and leave one alone that asks for it."""
        with self._lock:
            now = time.monotonic()
            server.failures_in_a_row += 1
            server.busy_until = max(server.busy_until, now + min(error.wait_seconds, MAX_WAIT_SECONDS))
            excess = server.failures_in_a_row - (1 if error.unreachable else FAILURES_IN_A_ROW)
            if excess < 0 or server.left_out_until > now:
                return
            seconds = min(FIRST_PAUSE_SECONDS * 2.0 ** min(excess, 10), MAX_WAIT_SECONDS)
            server.left_out_until = now + seconds
        log.warning("the server at %s is left out for %.1f s (%s)", server.client.base_url, seconds, error)


def _said(server: Server, failures: Sequence[Failed]) -> str:
    """How a server failed at a request."""
    last, count = failures[-1], len(failures)
    what = "does not answer" if last.unreachable else "failed once" if count == 1 else f"failed {count} times"
    return f"the server at {server.client.base_url} {what} ({last})"

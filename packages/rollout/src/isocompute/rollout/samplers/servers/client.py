"""Servers over HTTP: connections that stay open, a deadline for the whole answer, a limit on its size.

Of several servers the least busy one gets a request; one that keeps failing is left out for a while.
"""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import json
import logging
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from itertools import starmap
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from ...errors import RolloutError

TICK_SECONDS = 0.05


@dataclass(slots=True, kw_only=True)
class Limit:
    """An exchange under way, ended at its deadline (``time.monotonic``) or as soon as ``halt`` is set."""

    connection: socket.socket
    deadline: float
    halt: threading.Event
    ended: bool = False


class Watch:
    """A thread that shuts down sockets whose time is up: a socket's own timeout begins again with every byte."""

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


MAX_BYTES = 64 * 2**20
"""Longest answer read: one of 32,768 tokens with its log-probabilities is about 10 MB."""

MAX_CONNECT_SECONDS = 10.0

AGAIN = {408, 409, 425, 429}
"""Statuses below 500 after which the same request may succeed."""


class Refused(Exception):  # noqa: N818
    """The server says that a request is wrong; sending it again does not help."""

    def __init__(self, reason: str, *, status: int) -> None:
        super().__init__(reason)
        self.status = status


class Failed(Exception):  # noqa: N818
    """The server failed at a request that may succeed at another time or elsewhere.

    Args:
        unreachable: Whether there was no connection at all.
        wait_seconds: How long the server asks to be left alone.
    """

    def __init__(self, reason: str, *, unreachable: bool = False, wait_seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.unreachable = unreachable
        self.wait_seconds = wait_seconds


class Client:
    """Asks one server, from many threads at a time.

    Args:
        base_url: The server's address, such as ``http://localhost:8000/v1``; without a path ``/v1`` is added.
        api_key: Sent as a bearer token, to this address only: redirects are not followed.
        timeout_seconds: Deadline of one answer, from the request to its last byte.

    Raises:
        RolloutError: The address is not valid.
    """

    def __init__(self, base_url: str, *, api_key: str | None = None, timeout_seconds: float = 600.0) -> None:
        self._url = _address(base_url)
        self.base_url = self._url.geturl()
        self.timeout_seconds = timeout_seconds
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._secure = ssl.create_default_context() if self._url.scheme == "https" else None
        self._proxy = _proxy(self._url)
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        self._watch = Watch()

    def ask(self, route: str, body: Mapping[str, Any] | None, *, halt: threading.Event | None = None) -> Any:
        """Ask the server and return its JSON.

        Args:
            route: Below the address, such as ``models``.
            body: What to post; None is a GET.
            halt: Ends the exchange as soon as it is set.

        Raises:
            Refused: The server says that the request is wrong.
            Failed: The server cannot be reached, fails, takes too long or answers something else than JSON.
        """
        content = None if body is None else json.dumps(body).encode()
        halt = halt or threading.Event()
        deadline = time.monotonic() + self.timeout_seconds
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is not None:
            try:
                return self._exchange(connection, route, content, deadline, halt)
            except _Stale:
                # A server closes connections that were idle for long: that says nothing about its health.
                pass
        try:
            return self._exchange(self._open(), route, content, deadline, halt)
        except _Stale as error:
            raise Failed(f"it closed the connection without an answer ({error})") from None

    def close(self) -> None:
        """Close the connections that are open and idle."""
        with self._lock:
            connections, self._idle = self._idle, []
        for connection in connections:
            connection.close()

    def _open(self) -> http.client.HTTPConnection:
        seconds = min(MAX_CONNECT_SECONDS, self.timeout_seconds)
        host, port = (self._proxy or self._url).hostname or "", (self._proxy or self._url).port
        connection: http.client.HTTPConnection
        if self._secure is not None:
            connection = http.client.HTTPSConnection(host, port, timeout=seconds, context=self._secure)
            if self._proxy is not None:
                connection.set_tunnel(self._url.hostname or "", self._url.port)
        else:
            connection = http.client.HTTPConnection(host, port, timeout=seconds)
        try:
            connection.connect()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise Failed(str(error) or type(error).__name__, unreachable=True) from None
        connection.sock.settimeout(self.timeout_seconds)
        return connection

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        route: str,
        content: bytes | None,
        deadline: float,
        halt: threading.Event,
    ) -> Any:
        """Send one request, read its answer, and keep the connection if it is good for another."""
        keep = False
        path = f"{self._url.path}/{route}"
        if self._proxy is not None and self._secure is None:
            path = f"{self._url.scheme}://{self._url.netloc}{path}"
        with self._watch.limited(connection.sock, deadline=deadline, halt=halt) as limit:
            try:
                response = _sent(connection, path, content, self._headers)
                status, headers = response.status, response.headers
                data = _whole(response, limit=MAX_BYTES if status == 200 else 4096)
                keep = status == 200 and not response.will_close
            except (OSError, http.client.HTTPException, Failed) as error:
                if limit.ended or isinstance(error, TimeoutError):
                    late = f"no whole answer came within {self.timeout_seconds:g} s"
                    raise Failed("the request was given up" if halt.is_set() else late) from None
                if isinstance(error, _Stale | Failed):
                    raise
                raise Failed(f"its answer was cut off ({str(error) or type(error).__name__})") from None
            finally:
                keep = keep and not limit.ended
                if not keep:
                    connection.close()
        if keep:
            with self._lock:
                self._idle.append(connection)
        return _judged(status, response.reason, headers, data)


class _Stale(http.client.HTTPException):
    """The connection was closed before a byte of the answer came."""


def _sent(
    connection: http.client.HTTPConnection, path: str, content: bytes | None, headers: Mapping[str, str]
) -> http.client.HTTPResponse:
    """Send a request and return its answer's beginning."""
    try:
        connection.request("GET" if content is None else "POST", path, body=content, headers=dict(headers))
        return connection.getresponse()
    except (ConnectionError, http.client.RemoteDisconnected) as error:
        raise _Stale(str(error) or type(error).__name__) from None


def _whole(response: http.client.HTTPResponse, *, limit: int) -> bytes:
    """Read a body; one of an error is cut at the limit, any other may not be longer."""
    data = bytearray()
    while part := response.read(min(2**16, limit + 1 - len(data))):
        data += part
        if len(data) > limit:
            if response.status != 200:
                return bytes(data)
            raise Failed(f"its answer is longer than {limit // 2**20} MiB")
    if response.length:
        # http.client raises nothing where the end of a read of limited size is early.
        raise Failed(f"its answer was cut off ({response.length:,} bytes are missing)")
    return bytes(data)


def _judged(status: int, reason: str, headers: Message, data: bytes) -> Any:
    """Return the JSON of an answer, or raise what its status says."""
    if status == 200:
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise Failed(f"its answer is not JSON ({str(error)[:100]})") from None
    said = f"{status} {reason}" + _message(data)
    if 300 <= status < 400:
        raise Refused(f"{said}: it redirects to {headers.get('Location')}; give that address", status=status)
    if status >= 500 or status in AGAIN:
        raise Failed(said, wait_seconds=_seconds(headers.get("Retry-After")))
    raise Refused(said, status=status)


def _message(data: bytes) -> str:
    """Return the server's message about an error, in one line."""
    text = data.decode("utf-8", "replace")
    try:
        body = json.loads(text)
        details = body.get("error", body)
        text = str(details.get("message", text)) if isinstance(details, dict) else str(details)
    except (ValueError, AttributeError, RecursionError):
        pass
    first = text.strip().splitlines()[:1]
    return f": {first[0][:300]}" if first else ""


def _seconds(retry_after: str | None) -> float:
    """Return the seconds of a header ``Retry-After``: a number or a date."""
    if not retry_after:
        return 0.0
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time())
    except ValueError:
        return 0.0


def _address(base_url: str) -> SplitResult:
    """Check an address and complete it."""
    wrong = RolloutError(f"base_url is {base_url!r}; it must be like http://localhost:8000/v1")
    try:
        url = urlsplit(base_url)
        if url.scheme not in {"http", "https"} or not url.hostname or (url.port is not None and url.port < 1):
            raise wrong
    except ValueError:
        raise wrong from None
    return url._replace(path=url.path.rstrip("/") or "/v1", query="", fragment="")


def _proxy(url: SplitResult) -> SplitResult | None:
    """Return the proxy that the environment names for an address (``HTTP_PROXY``, ``HTTPS_PROXY``, ``NO_PROXY``)."""
    named = urllib.request.getproxies().get(url.scheme)
    if not named or urllib.request.proxy_bypass(url.netloc):
        return None
    return urlsplit(named if "//" in named else f"http://{named}")


ATTEMPTS = 4
"""Attempts at one request, over all servers."""

FIRST_PAUSE_SECONDS = 0.5
"""Before an attempt at a server that has just failed; each further pause is twice as long."""

MAX_WAIT_SECONDS = 60.0
"""Longest pause before an attempt, whatever ``Retry-After`` asks for, and longest time that a server is left out."""

FAILURES_IN_A_ROW = 3
"""After which a server is left out; after one where there is no connection."""

log = logging.getLogger(__name__)
Result = TypeVar("Result")


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

    def answered(self, ask: Callable[[Server], Result], halt: threading.Event) -> Result:
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
    """Say how a server failed at a request."""
    last, count = failures[-1], len(failures)
    what = "does not answer" if last.unreachable else "failed once" if count == 1 else f"failed {count} times"
    return f"the server at {server.client.base_url} {what} ({last})"

"""HTTP client for servers: persistent connections, a deadline for the whole answer, a limit on its size.

Among several servers the least busy one gets a request; one that keeps failing is left out for a while.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from typing import Any, TypeVar

import httpx2

from ...contract.files import reason_of
from ...errors import RolloutError

LOOK_SECONDS = 0.2
"""Interval between checks whether a wait was interrupted."""
MAX_BYTES = 64 * 2**20
"""Largest answer (bytes): one of 32,768 tokens with log-probabilities takes about 10 MB."""
MAX_ERROR_BYTES = 4096
MAX_CONNECT_SECONDS = 10.0
MAX_IDLE_SECONDS = 4.0
"""How long a connection is kept for another request: uvicorn, and so vLLM, closes it after 5 s."""
AGAIN = {408, 409, 425, 429}
"""Statuses below 500 after which the same request may succeed."""
UNREACHABLE = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError)
ATTEMPTS = 4
"""Attempts at one request, over all servers."""
FIRST_PAUSE_SECONDS = 0.5
"""Pause before retrying a server that has just failed; each further pause is twice as long."""
MAX_WAIT_SECONDS = 60.0
"""Longest pause before an attempt, whatever ``Retry-After`` says, and longest time that a server is left out."""
FAILURES_IN_A_ROW = 3
"""Failures in a row after which a server is left out; a single failure suffices if there is no connection."""

log = logging.getLogger(__name__)
Result = TypeVar("Result")
_loops: dict[int, asyncio.AbstractEventLoop] = {}
"""Event loop by process id, since a fork has none of its parent's threads."""
_starting = threading.Lock()


def background() -> asyncio.AbstractEventLoop:
    """Return the event loop of all server requests, which runs in its own thread so that callers need not wait."""
    with _starting:
        if os.getpid() not in _loops:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="servers", daemon=True).start()
        return _loops[os.getpid()]


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in the servers' event loop, and return its result."""
    future = asyncio.run_coroutine_threadsafe(work, background())
    # If polars handles the signal, Ctrl-C does not interrupt a wait without a timeout.
    while not future.done():
        wait([future], timeout=LOOK_SECONDS)
    return future.result()


class Refused(Exception):  # noqa: N818
    """The server rejects a request as wrong; sending it again does not help."""

    def __init__(self, reason: str, *, status: int) -> None:
        super().__init__(reason)
        self.status = status


class Failed(Exception):  # noqa: N818
    """The server failed at a request that may succeed later or on another server."""

    def __init__(self, reason: str, *, unreachable: bool = False, wait_seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.unreachable = unreachable
        """Whether there was no connection at all."""
        self.wait_seconds = wait_seconds
        """How long the server asks clients to wait."""


class Server:
    """One server with any number of requests at a time, through a proxy if the environment names one.

    Args:
        base_url: The server's address, such as ``http://localhost:8000/v1``; without a path ``/v1`` is added. A user
            and password in it are sent as basic authentication if there is no key, and dropped if there is one.
        api_key: Sent as a bearer token, stripped of white space, and to this address only: redirects are not followed.
        timeout_seconds: Deadline of one answer, from the request to its last byte.

    Attributes:
        refused: Optional fields of a request that it rejects (``protocols.Body``).
        left_out_until: Time until which other servers are used instead.
        busy_until: Time until which it asks clients to wait.
    """

    def __init__(self, base_url: str, *, api_key: str | None = None, timeout_seconds: float = 600.0) -> None:
        key = (api_key or "").strip()
        self.base_url = _address(base_url, keyed=bool(key))
        self._seconds = timeout_seconds
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if key:
            if not (key.isascii() and key.isprintable()):
                raise RolloutError("api_key has characters that no key has; it must be printable ASCII")
            self._headers["Authorization"] = f"Bearer {key}"
        self._clients: dict[int, httpx2.AsyncClient] = {}
        """Clients by process id, since a fork must not share its parent's connections."""
        self._http()
        self.refused: frozenset[str] = frozenset()
        self.in_flight = self.failures_in_a_row = 0
        self.left_out_until = self.busy_until = 0.0

    def __str__(self) -> str:
        return f"the server at {self.base_url}"

    def _http(self) -> httpx2.AsyncClient:
        if os.getpid() not in self._clients:
            try:
                self._clients[os.getpid()] = httpx2.AsyncClient(
                    headers=self._headers,
                    timeout=httpx2.Timeout(None, connect=MAX_CONNECT_SECONDS),
                    limits=httpx2.Limits(keepalive_expiry=MAX_IDLE_SECONDS),
                )
            except (ImportError, ValueError, httpx2.InvalidURL) as error:
                raise RolloutError(f"a proxy that the environment names cannot be used ({error})") from None
        return self._clients[os.getpid()]

    async def ask(self, route: str, body: Mapping[str, Any] | None) -> Any:
        """Call a route below the server's address and return its JSON; without a body it is a GET.

        Raises:
            Refused: The server says that the request is wrong.
            Failed: The server cannot be reached, fails, takes too long or answers with something other than JSON.
        """
        method, content = ("GET", None) if body is None else ("POST", json.dumps(body).encode())
        try:
            async with (
                asyncio.timeout(self._seconds),
                self._http().stream(method, f"{self.base_url}/{route}", content=content) as response,
            ):
                return _judged(response, await _whole(response))
        except UNREACHABLE as error:
            raise Failed(_cause(error), unreachable=True) from None
        except TimeoutError:
            raise Failed(f"no whole answer came within {self._seconds:g} s") from None
        except httpx2.HTTPError as error:
            raise Failed(f"its answer was cut off ({_cause(error)})") from None

    async def close(self) -> None:
        """Close the connections."""
        await self._http().aclose()


def _cause(error: BaseException) -> str:
    """Return the root cause of an error, since the libraries' own errors say less."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    if isinstance(error, BaseExceptionGroup):
        error = error.exceptions[-1]
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)
    return reason_of(error)


async def _whole(response: httpx2.Response) -> bytes:
    """Read a body: that of an error is cut at the limit, any other must not exceed it."""
    data = bytearray()
    async for part in response.aiter_bytes():
        data += part
        if response.status_code != 200 and len(data) > MAX_ERROR_BYTES:
            break
        if len(data) > MAX_BYTES:
            raise Failed(f"its answer is longer than {MAX_BYTES // 2**20} MiB")
    return bytes(data)


def _judged(response: httpx2.Response, data: bytes) -> Any:
    """Return the JSON of an answer, or raise the error of its status."""
    status, headers = response.status_code, response.headers
    if status == 200:
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise Failed(f"its answer is not JSON ({str(error)[:100]})") from None
    # The server's message, in one line.
    text = data.decode("utf-8", "replace")
    with suppress(ValueError, AttributeError, RecursionError):
        body = json.loads(text)
        details = body.get("error", body)
        text = str(details.get("message", text)) if isinstance(details, dict) else str(details)
    first = text.strip().splitlines()[:1]
    said = f"{status} {response.reason_phrase}" + (f": {first[0][:300]}" if first else "")
    if 300 <= status < 400:
        raise Refused(f"{said}: it redirects to {headers.get('Location')}; give that address", status=status)
    if status >= 500 or status in AGAIN:
        raise Failed(said, wait_seconds=_seconds(headers.get("Retry-After", "0")))
    raise Refused(said, status=status)


def _seconds(retry_after: str) -> float:
    """Parse a ``Retry-After`` header, a number or a date, to seconds."""
    with suppress(ValueError):
        return max(0.0, float(retry_after))
    with suppress(ValueError):
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time())
    return 0.0


def _address(base_url: str, *, keyed: bool) -> str:
    """Check and complete an address; credentials in it would replace a key."""
    try:
        url = httpx2.URL(base_url)
    except httpx2.InvalidURL:
        url = httpx2.URL()
    if url.scheme not in {"http", "https"} or not url.host or url.port == 0:
        raise RolloutError(f"base_url is {base_url!r}; it must be like http://localhost:8000/v1")
    if keyed:
        url = url.copy_with(userinfo=b"")
    return str(url.copy_with(path=url.path.rstrip("/") or "/v1", query=None, fragment=None))


class Servers:
    """Servers of one model."""

    def __init__(self, servers: Sequence[Server]) -> None:
        addresses = [server.base_url for server in servers]
        for address in addresses:
            if addresses.count(address) > 1:
                raise RolloutError(f"base_urls names the server {address} twice; each must be named once")
        self.all = servers

    def __str__(self) -> str:
        return " and ".join(map(str, self.all))

    async def answered(self, ask: Callable[[Server], Awaitable[Result]]) -> Result:
        """Return the answer to one request, from any of the servers.

        Args:
            ask: Calls a server; errors other than ``Failed`` are not retried.

        Raises:
            Failed: All attempts failed; the message says where and how. ``unreachable`` means that no attempt had a
                connection.
        """
        failures: dict[Server, list[Failed]] = {}
        for attempt in range(ATTEMPTS):
            now = time.monotonic()
            # If no server is free, waiting for one would delay a request that may fail anyway.
            free = [s for s in self.all if max(s.left_out_until, s.busy_until) <= now] or self.all
            server = min([s for s in free if s not in failures] or free, key=lambda s: s.in_flight)
            pause = FIRST_PAUSE_SECONDS * 2 ** (attempt - 1) if server in failures else 0.0
            server.in_flight += 1
            try:
                await asyncio.sleep(max(pause, server.busy_until - time.monotonic()))
                answer = await ask(server)
            except Failed as error:
                self._failed(server, error)
                failures.setdefault(server, []).append(error)
            else:
                server.failures_in_a_row = 0
                return answer
            finally:
                server.in_flight -= 1
        said = []
        for server, errors in failures.items():
            last, count = errors[-1], len(errors)
            what = "does not answer" if last.unreachable else "failed once" if count == 1 else f"failed {count} times"
            said.append(f"{server} {what} ({last})")
        unreachable = all(error.unreachable for errors in failures.values() for error in errors)
        raise Failed("; ".join(said), unreachable=unreachable)

    async def close(self) -> None:
        """Close all connections."""
        for server in self.all:
            await server.close()

    def _failed(self, server: Server, error: Failed) -> None:
        """Leave out a server that keeps failing, and wait for one that asks for it."""
        now = time.monotonic()
        server.failures_in_a_row += 1
        server.busy_until = max(server.busy_until, now + min(error.wait_seconds, MAX_WAIT_SECONDS))
        excess = server.failures_in_a_row - (1 if error.unreachable else FAILURES_IN_A_ROW)
        if excess < 0 or server.left_out_until > now:
            return
        seconds = min(FIRST_PAUSE_SECONDS * 2.0 ** min(excess, 10), MAX_WAIT_SECONDS)
        server.left_out_until = now + seconds
        log.warning("%s is left out for %.1f s (%s)", server, seconds, error)

"""One server over HTTP on loopback, which answers in every way that servers and networks do."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from isocompute.rollout import RolloutError
from isocompute.rollout.samplers.servers import client as client_module
from isocompute.rollout.samplers.servers.client import Client, Failed, Refused
from serving import free_port


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    reply: Callable[[Any], None]
    seen: list[Any]

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers["Authorization"], self.client_address, None))
        type(self).reply(self)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append((self.path, self.headers["Authorization"], self.client_address, body))
        type(self).reply(self)

    def give(self, code: int, content: bytes, sent: int | None = None, **headers: str) -> None:
        self.send_response(code)
        for name, value in {"Content_Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content[:sent])

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextlib.contextmanager
def server(reply: Callable[[Any], None]) -> Iterator[tuple[str, list[Any]]]:
    """A server that replies so; yields its address and what it saw."""
    seen: list[Any] = []
    handler = type("Replies", (Handler,), {"reply": staticmethod(reply), "seen": seen})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        running.daemon_threads = True
        running.handle_error = lambda *_: None  # type: ignore[method-assign]
        threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}", seen
        running.shutdown()


def test_one_connection_serves_many_requests_and_the_key_goes_along() -> None:
    with server(lambda handler: handler.give(200, b'{"right": "\\u00e9"}')) as (url, seen):
        client = Client(url, api_key="secret")
        assert [client.ask("models", {"n": n}) for n in range(5)] == [{"right": "é"}] * 5
        assert client.ask("models", None) == {"right": "é"}
        assert {(path, key) for path, key, _, _ in seen} == {("/v1/models", "Bearer secret")}
        assert [body for *_, body in seen] == [*({"n": n} for n in range(5)), None]
        assert len({address for _, _, address, _ in seen}) == 1
        client.close()


def test_a_connection_that_the_server_closed_while_idle_is_opened_again() -> None:
    def reply(handler: Any) -> None:
        handler.give(200, b"1")
        # Without saying so, as servers do after some seconds.
        handler.close_connection = True

    with server(reply) as (url, seen):
        client = Client(url)
        for _ in range(5):
            assert client.ask("models", None) == 1
            time.sleep(0.02)
        assert len({address for _, _, address, _ in seen}) == 5


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (lambda h: h.give(200, b"<html>"), r"its answer is not JSON"),
        (lambda h: h.give(200, b"[" * 100_000), r"its answer is not JSON"),
        (lambda h: h.give(200, b'{"a": 1}', sent=4, Connection="close"), r"\(4 bytes are missing\)"),
        (lambda h: setattr(h, "close_connection", True), "closed the connection"),
        (lambda h: h.wfile.write(b"nonsense\r\n\r\n"), r"cut off \(nonsense"),
        (lambda h: h.give(500, b'{"error": {"message": "no memory\\nat line 3"}}'), r"^500 .*Error: no memory$"),
        (lambda h: h.give(503, b""), r"^503 Service Unavailable$"),
    ],
    ids=["page", "deep", "short", "silent", "no HTTP", "500", "503"],
)
def test_what_a_server_does_wrong_is_said(reply: Any, reason: str) -> None:
    with server(reply) as (url, _), pytest.raises(Failed, match=reason) as failed:
        Client(url, timeout_seconds=20).ask("completions", {})
    assert not failed.value.unreachable


def chunks(handler: Any) -> None:
    """Half of a chunked body."""
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    handler.wfile.write(b"5\r\n[1, 2\r\n")
    handler.close_connection = True


def drip_body(handler: Any) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    drip(handler)


def drip(handler: Any) -> None:
    """A byte at a time: no single read ever times out."""
    for _ in range(1000):
        handler.wfile.write(b" ")
        time.sleep(0.02)


def test_a_chunked_body_that_ends_early_is_cut_off() -> None:
    with server(chunks) as (url, _), pytest.raises(Failed, match="cut off"):
        Client(url).ask("completions", {})


@pytest.mark.slow
@pytest.mark.parametrize("reply", [lambda h: time.sleep(5), drip_body, drip], ids=["hang", "body", "headers"])
def test_the_deadline_covers_the_whole_answer(reply: Any) -> None:
    with server(reply) as (url, _), pytest.raises(Failed, match=r"answer came within 0.3 s"):
        Client(url, timeout_seconds=0.3).ask("completions", {})


def test_an_exchange_is_given_up_when_it_is_told_to() -> None:
    halt = threading.Event()
    with server(lambda h: (halt.set(), time.sleep(5))) as (url, _), pytest.raises(Failed, match="given up"):
        Client(url, timeout_seconds=60).ask("completions", {}, halt=halt)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_is_limited_in_size(monkeypatch: pytest.MonkeyPatch, chunked: bool) -> None:
    monkeypatch.setattr(client_module, "MAX_BYTES", 2**20)

    def reply(handler: Any) -> None:
        if not chunked:
            handler.give(200, b" " * 2**21)
            return
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for _ in range(2**11):
            handler.wfile.write(b"400\r\n" + b" " * 2**10 + b"\r\n")

    with server(reply) as (url, _), pytest.raises(Failed, match="longer than 1 MiB"):
        Client(url).ask("completions", {})


def test_refusals_are_not_failures_and_redirects_are_not_followed() -> None:
    with server(lambda h: h.give(401, b'{"error": "who are you?"}')) as (url, seen):
        with pytest.raises(Refused, match="401 Unauthorized: who are"):
            Client(url).ask("models", None)
        assert len(seen) == 1
    elsewhere = "http://elsewhere/v1"
    moved = pytest.raises(Refused, match=f"it redirects to {elsewhere}; give that address")
    with server(lambda h: h.give(307, b"", Location=elsewhere)) as (url, _), moved:
        Client(url, api_key="secret").ask("models", None)


def test_a_server_says_how_long_it_wants_to_be_left_alone() -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    for said, least, most in (("7", 7, 7), (later, 90, 100), ("-3", 0, 0), ("soon", 0, 0)):
        with (
            server(lambda h, said=said: h.give(429, b"", Retry_After=said)) as (url, _),
            pytest.raises(Failed) as failed,
        ):
            Client(url).ask("models", None)
        assert least <= failed.value.wait_seconds <= most


def test_a_server_that_is_not_there_is_unreachable() -> None:
    with pytest.raises(Failed, match="refused") as failed:
        Client(f"http://127.0.0.1:{free_port()}").ask("models", None)
    assert failed.value.unreachable


@pytest.mark.parametrize(
    "address", ["localhost:8000", "ftp://a/v1", "http://", "http://a:0/v1", "http://a:x/v1", "http://[::1/v1", ""]
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(RolloutError, match="http://localhost:8000/v1"):
        Client(address)


@pytest.mark.parametrize(
    ("given", "used"), [("http://a", "http://a/v1"), ("http://a:1/", "http://a:1/v1"), ("https://a/b/", "https://a/b")]
)
def test_an_address_is_completed(given: str, used: str) -> None:
    assert Client(given).base_url == used


def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with server(lambda h: h.give(200, b"1")) as (url, seen):
        monkeypatch.setenv("http_proxy", url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert Client("http://far.example:99/v1").ask("models", None) == 1
        assert seen[0][0] == "http://far.example:99/v1/models"
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert Client(url).ask("models", None) == 1
        assert seen[1][0] == "/v1/models"

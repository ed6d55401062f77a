"""One server over HTTP, which answers in every way that servers do; and several: who is asked, and who is left out."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from isocompute.rollout import RolloutError
from serving import Handler, Loopback

pytest.importorskip("httpx2")

from isocompute.rollout.samplers.servers import client as client_module
from isocompute.rollout.samplers.servers.client import Failed, Refused, Server, Servers, run


class Replies(Handler):
    reply: Callable[[Any], None]
    seen: list[Any]

    def respond(self, body: bytes | None) -> None:
        asked = None if body is None else json.loads(body)
        self.seen.append((self.path, self.headers["Authorization"], self.client_address, asked))
        type(self).reply(self)


@contextlib.contextmanager
def server(reply: Callable[[Any], None]) -> Iterator[tuple[str, list[Any]]]:
    """A server that replies so; yields its address and what it saw."""
    seen: list[Any] = []
    running = Loopback(type("Replying", (Replies,), {"reply": staticmethod(reply), "seen": seen}))
    yield running.url.removesuffix("/v1"), seen
    running.end()


def test_one_connection_serves_many_requests_and_the_key_goes_along() -> None:
    with server(lambda handler: handler.give(200, b'{"right": "\\u00e9"}')) as (url, seen):
        client = Server(url, api_key="secret")
        assert [run(client.ask("models", {"n": n})) for n in range(5)] == [{"right": "é"}] * 5
        assert run(client.ask("models", None)) == {"right": "é"}
        assert {(path, key) for path, key, _, _ in seen} == {("/v1/models", "Bearer secret")}
        assert [body for *_, body in seen] == [*({"n": n} for n in range(5)), None]
        assert len({address for _, _, address, _ in seen}) == 1
        run(client.close())


@pytest.mark.parametrize("key", ["clé", "se\ncret", "se\x7fcret"])
def test_a_key_that_is_none_is_refused_unseen(key: str) -> None:
    with pytest.raises(RolloutError, match="api_key") as refused:
        Server("http://a", api_key=key)
    assert key not in str(refused.value)


def test_a_key_is_sent_without_blanks_around_it_and_goes_before_credentials_in_the_address() -> None:
    with server(lambda handler: handler.give(200, b"1")) as (url, seen):
        address = url.replace("//", "//user:password@")
        keyed = Server(address, api_key=" secret\r\n")
        run(keyed.ask("models", None))
        run(Server(address).ask("models", None))
        assert (seen[0][1], seen[1][1].split()[0]) == ("Bearer secret", "Basic")
        assert keyed.base_url == f"{url}/v1"


def test_a_fork_has_connections_of_its_own() -> None:
    with server(lambda handler: handler.give(200, b"1")) as (url, seen):
        client = Server(url)
        run(client.ask("models", None))
        forked = os.fork()
        if forked == 0:
            signal.alarm(20)
            os._exit(run(client.ask("models", None)) - 1)
        assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0
        run(client.ask("models", None))
        assert [address == seen[0][2] for _, _, address, _ in seen] == [True, False, True]


ELSEWHERE = "http://elsewhere/v1"


@pytest.mark.parametrize(
    ("reply", "kind", "reason"),
    [
        (lambda h: h.give(200, b"<html>"), Failed, r"its answer is not JSON"),
        (lambda h: h.give(200, b" " * 2**21), Failed, "longer than 1 MiB"),
        (lambda h: h.give(200, b'{"a": 1}', sent=4, Connection="close"), Failed, r"received 4 bytes, expected 8"),
        (
            lambda h: h.give(500, b'{"error": {"message": "no memory\\nat line 3"}}'),
            Failed,
            r"^500 .*Error: no memory$",
        ),
        (lambda h: h.give(401, b'{"error": "who are you?"}'), Refused, "401 Unauthorized: who are"),
        (lambda h: h.give(307, b"", Location=ELSEWHERE), Refused, f"it redirects to {ELSEWHERE}; give that address"),
    ],
    ids=["page", "long", "short", "500", "refusal", "redirect"],
)
def test_what_a_server_does_wrong_or_refuses_is_said_and_redirects_are_not_followed(
    reply: Any, kind: type[Exception], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "MAX_BYTES", 2**20)
    with server(reply) as (url, seen), pytest.raises(kind, match=reason) as failed:
        run(Server(url, api_key="secret", timeout_seconds=20).ask("completions", {}))
    assert not getattr(failed.value, "unreachable", False)
    assert len(seen) == 1


def drip_body(handler: Any) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    drip(handler)


def drip_headers(handler: Any) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX:")
    drip(handler)


def drip(handler: Any) -> None:
    """A byte at a time: no single read ever times out."""
    for _ in range(1000):
        handler.wfile.write(b" ")
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("reply", [drip_body, drip_headers])
def test_the_deadline_covers_the_whole_answer(reply: Any) -> None:
    with server(reply) as (url, _), pytest.raises(Failed, match=r"answer came within 0.3 s"):
        run(Server(url, timeout_seconds=0.3).ask("completions", {}))


def test_a_server_says_how_long_it_wants_to_be_left_alone() -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    for said, least, most in (("7", 7, 7), (later, 90, 100), ("-3", 0, 0), ("soon", 0, 0)):
        with (
            server(lambda h, said=said: h.give(429, b"", Retry_After=said)) as (url, _),
            pytest.raises(Failed) as failed,
        ):
            run(Server(url).ask("models", None))
        assert least <= failed.value.wait_seconds <= most


@pytest.mark.parametrize("address", ["localhost:8000", "ftp://a/v1", "http://", "http://a:0/v1", "http://[::1/v1", ""])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(RolloutError, match="http://localhost:8000/v1"):
        Server(address)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "FIRST_PAUSE_SECONDS", 0.001)


class Asked:
    """Requests to servers that are not there: notes who is asked, and fails where it is told to."""

    def __init__(self, fails: Callable[[Server], Exception | None] = lambda server: None) -> None:
        self.by: list[Server] = []
        self._fails = fails

    async def __call__(self, server: Server) -> str:
        self.by.append(server)
        error = self._fails(server)
        if error is not None:
            raise error
        return "answer"


@pytest.fixture
def three() -> Servers:
    return Servers([Server(f"http://host{i}/v1") for i in range(3)])


def test_a_request_goes_to_the_server_with_the_fewest_in_flight(three: Servers) -> None:
    held: list[Server] = []

    async def ask(server: Server) -> None:
        held.append(server)
        if len(held) < 6:
            await three.answered(ask)

    run(three.answered(ask))
    assert [held.count(server) for server in three.all] == [2, 2, 2]
    assert [server.in_flight for server in three.all] == [0, 0, 0]


def test_a_failed_request_goes_to_another_server_at_once_and_the_last_failure_says_where_and_how_often(
    three: Servers,
) -> None:
    asked = Asked(lambda s: Failed(f"busy {len(asked.by)}", unreachable=s not in (three.all[0], three.all[2])))
    with pytest.raises(Failed) as failed:
        run(three.answered(asked))
    assert asked.by == [*three.all, three.all[0]]
    assert str(failed.value) == (
        "the server at http://host0/v1 failed 2 times (busy 4); "
        "the server at http://host1/v1 does not answer (busy 2); the server at http://host2/v1 failed once (busy 3)"
    )
    assert not failed.value.unreachable
    # No connection anywhere is told apart.
    with pytest.raises(Failed, match="does not answer") as failed:
        run(Servers([Server("http://host/v1")]).answered(asked))
    assert failed.value.unreachable


def test_a_refusal_is_not_tried_again(three: Servers) -> None:
    asked = Asked(lambda server: Refused("401", status=401))
    with pytest.raises(Refused):
        run(three.answered(asked))
    assert len(asked.by) == 1
    assert [server.in_flight for server in three.all] == [0, 0, 0]


def test_a_dead_server_is_left_out_and_comes_back(
    three: Servers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client_module, "FIRST_PAUSE_SECONDS", 30.0)
    dead = three.all[0]
    asked = Asked(lambda server: Failed("refused", unreachable=True) if asked.by == [dead] else None)
    for _ in range(10):
        run(three.answered(asked))
    assert asked.by.count(dead) == 1
    assert caplog.messages == ["the server at http://host0/v1 is left out for 30.0 s (refused)"]
    dead.left_out_until = 0.0
    for server in three.all[1:]:
        server.in_flight = 1
    run(three.answered(asked))
    assert asked.by[-1] is dead
    assert dead.failures_in_a_row == 0


def test_a_server_that_asks_for_it_is_left_alone_up_to_a_bound(three: Servers) -> None:
    busy = three.all[0]
    for wait, least in ((5.0, 5.0), (10_000.0, 60.0)):
        busy.busy_until, before = 0.0, time.monotonic()
        run(three.answered(Asked(lambda s, wait=wait: Failed("429", wait_seconds=wait) if s is busy else None)))
        assert before + least <= busy.busy_until <= time.monotonic() + least


def test_a_request_does_not_wait_for_the_only_server_once_it_is_left_out() -> None:
    only = Servers([Server("http://host/v1")])
    only.all[0].left_out_until = time.monotonic() + 1000
    assert run(only.answered(Asked())) == "answer"


def test_addresses_are_completed_and_each_server_is_named_once() -> None:
    for given, used in (("http://a", "http://a/v1"), ("http://a:1/", "http://a:1/v1"), ("https://a/b/", "https://a/b")):
        assert Server(given).base_url == used
    with pytest.raises(RolloutError, match="server http://a/v1 twice"):
        Servers([Server("http://a"), Server("http://a/v1/")])

"""Several servers: who is asked, how often, and who is left out."""

import threading
import time
from typing import Any

import pytest
from isocompute.rollout import RolloutError
from isocompute.rollout.samplers.servers import client
from isocompute.rollout.samplers.servers.client import ATTEMPTS, Client, Failed, Refused, Server, Servers


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "FIRST_PAUSE_SECONDS", 0.001)


@pytest.fixture
def three() -> Servers:
    return Servers([Client(f"http://host{i}/v1") for i in range(3)])


def test_a_request_goes_to_the_server_with_the_fewest_in_flight(three: Servers) -> None:
    halt = threading.Event()
    held: list[Server] = []

    def nested(depth: int) -> Any:
        def ask(server: Server) -> None:
            held.append(server)
            if depth:
                three.answered(nested(depth - 1), halt)

        return ask

    three.answered(nested(5), halt)
    assert [held.count(server) for server in three.all] == [2, 2, 2]
    assert [server.in_flight for server in three.all] == [0, 0, 0]


def test_a_failed_request_goes_to_another_server_at_once(three: Servers) -> None:
    asked: list[Server] = []

    def ask(server: Server) -> str:
        asked.append(server)
        if len(asked) < 3:
            raise Failed("no")
        return "yes"

    assert three.answered(ask, threading.Event()) == "yes"
    assert asked == three.all


def test_a_failure_says_where_and_how_often(three: Servers) -> None:
    asked: list[Server] = []

    def ask(server: Server) -> None:
        asked.append(server)
        raise Failed(f"busy {len(asked)}", unreachable=server is three.all[1])

    with pytest.raises(Failed) as failed:
        three.answered(ask, threading.Event())
    assert asked == [*three.all, three.all[0]]
    assert len(asked) == ATTEMPTS
    assert str(failed.value) == (
        "the server at http://host0/v1 failed 2 times (busy 4); "
        "the server at http://host1/v1 does not answer (busy 2); the server at http://host2/v1 failed once (busy 3)"
    )
    assert not failed.value.unreachable


def test_no_connection_anywhere_is_told_apart(three: Servers) -> None:
    def ask(server: Server) -> None:
        raise Failed("refused", unreachable=True)

    with pytest.raises(Failed, match="does not answer") as failed:
        three.answered(ask, threading.Event())
    assert failed.value.unreachable


def test_a_refusal_is_not_tried_again(three: Servers) -> None:
    asked: list[Server] = []

    def ask(server: Server) -> None:
        asked.append(server)
        raise Refused("401", status=401)

    with pytest.raises(Refused):
        three.answered(ask, threading.Event())
    assert len(asked) == 1
    assert [server.in_flight for server in three.all] == [0, 0, 0]


def test_a_dead_server_is_left_out_and_comes_back(
    three: Servers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client, "FIRST_PAUSE_SECONDS", 30.0)
    dead, halt = three.all[0], threading.Event()
    asked: list[Server] = []

    def ask(server: Server) -> None:
        asked.append(server)
        if server is dead and len(asked) == 1:
            raise Failed("refused", unreachable=True)

    for _ in range(10):
        three.answered(ask, halt)
    assert asked.count(dead) == 1
    assert caplog.messages == ["the server at http://host0/v1 is left out for 30.0 s (refused)"]
    dead.left_out_until = 0.0
    for server in three.all[1:]:
        server.in_flight = 1
    three.answered(ask, halt)
    assert asked[-1] is dead
    assert dead.failures_in_a_row == 0


def test_a_server_that_asks_for_it_is_left_alone_up_to_a_bound(three: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    busy, halt = three.all[0], threading.Event()
    monkeypatch.setattr(client.time, "monotonic", lambda: 1000.0)
    for wait, until in ((5.0, 1005.0), (10_000.0, 1060.0)):
        busy.busy_until = 0.0

        def ask(server: Server, wait: float = wait) -> None:
            if server is busy:
                raise Failed("429", wait_seconds=wait)

        three.answered(ask, halt)
        assert busy.busy_until == until


def test_a_request_does_not_wait_for_a_server_that_is_left_out() -> None:
    only, halt = Servers([Client("http://host/v1")]), threading.Event()
    only.all[0].left_out_until = time.monotonic() + 1000
    assert only.answered(lambda server: "back", halt) == "back"


def test_waiting_for_the_only_server_ends_when_it_is_told_to() -> None:
    only, halt = Servers([Client("http://host/v1")]), threading.Event()

    def ask(server: Server) -> None:
        halt.set()
        raise Failed("429", wait_seconds=60.0)

    with pytest.raises(Failed, match="failed once"):
        only.answered(ask, halt)


def test_servers_are_named_once_and_there_is_one() -> None:
    with pytest.raises(RolloutError, match="must name at least one"):
        Servers([])
    with pytest.raises(RolloutError, match="server http://a/v1 twice"):
        Servers([Client("http://a"), Client("http://a/v1/")])

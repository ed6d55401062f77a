"""Answers of servers, right and wrong ones, and requests at a time: everything once, nothing left behind."""

import asyncio
import subprocess
import sys
from concurrent.futures import CancelledError
from dataclasses import replace
from typing import Any

import pytest
from isocompute.rollout.samplers.sampling import Request, Response

pytest.importorskip("httpx2")

from isocompute.rollout.samplers.servers.client import background, run
from isocompute.rollout.samplers.servers.openai import in_parallel
from isocompute.rollout.samplers.servers.protocols import Reply, Wrong, read, response_of

ASKED = Request(prompt_ids=[3, 12, 3, 14], seed=1, max_new_tokens=4)
GIVEN = Reply(
    finish_reason="stop",
    text="12",
    ids=[3, 4, 1],
    tokens=["1", "2", ""],
    logprobs=[-1.0, -2.0, -3.0],
    completion_tokens=3,
    stopped_at=None,
)
TEXT = replace(GIVEN, ids=None)


def found_in(tiny: Any, answer: Reply, *, stops: bool = False) -> Response:
    return response_of(answer, ASKED, tokenizer=tiny.tokenizer, vocabulary=20, ends=[1], stops=stops)


def test_token_ids_are_taken_as_they_are(tiny: Any) -> None:
    found = found_in(tiny, GIVEN)
    assert (found.ids.tolist(), found.logprobs.tolist()) == ([3, 4, 1], [-1.0, -2.0, -3.0])
    assert (found.finish_reason, found.text, found.retokenized) == ("stop", None, False)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"finish_reason": "abort"}, "finished with 'abort'"),
        ({"completion_tokens": 4}, "counts 4 tokens and gives 3"),
        ({"logprobs": [-1.0]}, "1 log-probabilities for 3"),
        ({"logprobs": [-1.0, 0.5, -1.0]}, r"a log-probability of 0\.5"),
        ({"logprobs": [-1.0, "x", -1.0]}, "not numbers"),
        ({"ids": [3, 20, 1]}, "token 20"),
        ({"ids": [3, 4.5, 1]}, "not a list of integers"),
        ({"ids": [3, True, "1"]}, "not a list of integers"),
        ({"ids": [3] * 5, "completion_tokens": 5}, "5 tokens, and at most 4"),
        ({"finish_reason": "length"}, "3 of 4 tokens; the server"),
        ({"ids": None, "text": None}, "neither text nor token ids"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_right_is_named(tiny: Any, change: dict[str, Any], reason: str) -> None:
    with pytest.raises(Wrong, match=reason):
        found_in(tiny, replace(GIVEN, **change))


def test_text_is_tokenized_and_keeps_log_probabilities_of_the_same_tokens_only(tiny: Any) -> None:
    found = found_in(tiny, TEXT)
    assert (found.ids.tolist(), found.text, found.retokenized) == ([3, 4, 1], "12", True)
    assert found.logprobs.tolist() == [-1.0, -2.0, -3.0]
    joined = found_in(tiny, replace(TEXT, tokens=["12", ""], logprobs=[-1.0, -3.0]))
    assert (joined.ids.tolist(), joined.logprobs.tolist()) == ([3, 4, 1], [])
    silent = found_in(tiny, replace(TEXT, tokens=[], logprobs=[]))
    assert silent.logprobs.tolist() == []


def test_the_token_that_ended_a_text_is_added_only_where_it_is_known(tiny: Any) -> None:
    for stopped_at, stops, ids in (
        (None, False, [3, 4, 1]),
        (None, True, [3, 4]),
        ("3", True, [3, 4]),
        (5, True, [3, 4, 5]),
    ):
        found = found_in(tiny, replace(TEXT, stopped_at=stopped_at), stops=stops)
        assert found.ids.tolist() == ids
    cut = replace(TEXT, finish_reason="length", completion_tokens=4, tokens=[], logprobs=[])
    assert found_in(tiny, cut).ids.tolist() == [3, 4]


def test_a_stop_text_is_cut_off_where_the_server_says(tiny: Any) -> None:
    stopped = replace(GIVEN, ids=[3, 4, 5], text="12", stopped_at="3")
    assert found_in(tiny, stopped, stops=True).text == "12"
    assert found_in(tiny, GIVEN, stops=True).text is None


@pytest.mark.parametrize("answer", [None, {}, {"choices": []}, {"choices": [{}, {}]}, {"choices": [1]}])
def test_an_answer_has_one_choice(answer: Any) -> None:
    with pytest.raises(Wrong, match="choices"):
        read(answer, ASKED, protocol="chat")


def test_everything_is_done_once_and_what_is_done_first_comes_out_first() -> None:
    assert dict(in_parallel(200, same, at_a_time=8)) == {index: index for index in range(200)}
    assert list(in_parallel(0, same, at_a_time=8)) == []
    first = asyncio.Event()

    async def later(index: int) -> bool:
        return index > 0 or await first.wait()

    results = in_parallel(3, later, at_a_time=3)
    assert {next(results)[0], next(results)[0]} == {1, 2}
    background().call_soon_threadsafe(first.set)
    assert list(results) == [(0, True)]


async def same(index: int) -> int:
    return index


async def turns() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


# A stray cancellation must not be waited for without end.
@pytest.mark.parametrize("kind", [ValueError, asyncio.CancelledError])
def test_an_error_ends_the_work_and_is_raised(kind: type[BaseException]) -> None:
    async def work(index: int) -> int:
        if index == 5:
            raise kind("five")
        return index

    with pytest.raises((kind, CancelledError)):
        list(in_parallel(10**6, work, at_a_time=4))


def test_closing_early_ends_what_is_under_way() -> None:
    ended: list[int] = []

    async def work(index: int) -> None:
        try:
            await asyncio.sleep(600 * index)
        finally:
            ended.append(index)

    results = in_parallel(5, work, at_a_time=5)
    next(results)
    results.close()
    run(turns())
    assert sorted(ended) == [0, 1, 2, 3, 4]


INTERRUPTED = """
import asyncio, os, signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
import polars  # whose own handler lets no wait without a timeout end
from isocompute.rollout.samplers.servers.client import run
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    run(asyncio.sleep(600))
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.slow("another process")
def test_an_interrupt_ends_waiting_for_a_server() -> None:
    program = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "interrupted\n"

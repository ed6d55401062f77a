"""Work for many threads: everything once, in the order of finishing, and nothing left behind."""

import threading
import time

import pytest
from isocompute.rollout.samplers.servers.openai import in_parallel


def test_everything_is_done_once() -> None:
    done = dict(in_parallel(200, lambda index, halt: index * index, threads=8))
    assert done == {index: index * index for index in range(200)}
    assert dict(in_parallel(0, lambda index, halt: index, threads=8)) == {}


def test_what_is_done_first_comes_out_first() -> None:
    first = threading.Event()

    def work(index: int, halt: threading.Event) -> str:
        if index == 0:
            first.wait(20)
        return str(index)

    results = in_parallel(3, work, threads=3)
    assert {next(results), next(results)} == {(1, "1"), (2, "2")}
    first.set()
    assert list(results) == [(0, "0")]


def test_who_takes_slowly_is_not_overrun() -> None:
    begun: list[int] = []
    results = in_parallel(1000, lambda index, halt: begun.append(index), threads=4)
    next(results)
    time.sleep(0.2)
    # One was taken, eight wait in the queue, and each of four threads holds one.
    assert len(begun) <= 1 + 8 + 4
    results.close()


def test_an_error_ends_the_work_and_is_raised() -> None:
    def work(index: int, halt: threading.Event) -> int:
        if index == 5:
            raise ValueError("five")
        return index

    with pytest.raises(ValueError, match="five"):
        list(in_parallel(10**6, work, threads=4))


def test_closing_early_wakes_the_threads() -> None:
    woken = []

    def work(index: int, halt: threading.Event) -> int:
        if index:
            woken.append(halt.wait(60))
        return index

    results = in_parallel(5, work, threads=5)
    next(results)
    results.close()
    assert woken == [True] * 4
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("server-")]

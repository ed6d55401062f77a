"""Work for many threads, whose results come out in the order in which they are done."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Generator
from typing import TypeVar

JOIN_SECONDS = 2.0
"""How long the end waits for threads; one that is still connecting ends by itself."""

Result = TypeVar("Result")


def in_parallel(
    count: int, work: Callable[[int, threading.Event], Result], *, threads: int
) -> Generator[tuple[int, Result], None, None]:
    """Do ``work(0)`` to ``work(count - 1)``, begun in that order.

    At most twice as many results as threads wait to be taken: who takes them slowly is not overrun. Closing the
    iterator ends the work.

    Args:
        count: How much there is to do.
        work: Called with an index, and with an event that is set when it must end.

    Yields:
        Indices and results, as they are done.

    Raises:
        BaseException: What a call of ``work`` raised, which ends the others.
    """
    halt = threading.Event()
    done: queue.Queue[tuple[int, Result | None, BaseException | None]] = queue.Queue(2 * threads)
    indices = iter(range(count))
    lock = threading.Lock()

    def put(*result: object) -> None:
        while not halt.is_set():
            with contextlib.suppress(queue.Full):
                done.put(result, timeout=0.1)  # type: ignore[arg-type]
                return

    def run() -> None:
        while not halt.is_set():
            with lock:
                index = next(indices, None)
            if index is None:
                return
            try:
                put(index, work(index, halt), None)
            except BaseException as error:
                put(index, None, error)

    workers = [threading.Thread(target=run, name=f"server-{i}", daemon=True) for i in range(min(threads, count))]
    for worker in workers:
        worker.start()
    try:
        for _ in range(count):
            index, result, error = done.get()
            if error is not None:
                raise error
            yield index, result  # type: ignore[misc]
    finally:
        halt.set()
        deadline = time.monotonic() + JOIN_SECONDS
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))

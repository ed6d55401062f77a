"""math-verify in a process of its own: timeouts, threads, and its end."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from isocompute.rollout import verifier
from isocompute.rollout.scoring.math_process import MathProcess

pytest.importorskip("math_verify")

TOWER = r"so \boxed{9^{9^{9^{9}}}}"
"""Keeps sympy busy for longer than anybody waits."""


def test_a_response_that_never_ends_is_wrong_in_any_thread_and_the_next_one_is_scored() -> None:
    right = verifier("math", seconds=1.0)
    verdicts: list[bool] = []

    def score() -> None:
        verdicts.extend(right(text, "0.5") for text in (r"\boxed{1/2}", TOWER, "so 1/2", r"\boxed{2}"))

    begun = time.monotonic()
    thread = threading.Thread(target=score)
    thread.start()
    thread.join(timeout=120)
    assert verdicts == [True, False, True, False]
    assert time.monotonic() - begun < 60


def test_threads_share_one_process_and_get_their_own_verdicts() -> None:
    process = MathProcess(seconds=5.0)
    verdicts: dict[int, bool] = {}
    threads = [
        threading.Thread(target=lambda i=i: verdicts.__setitem__(i, process.right(f"\\boxed{{{i}}}", str(i // 2 * 2))))
        for i in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == {i: i % 2 == 0 for i in range(16)}
    process.close()
    assert process.right("2", "2")
    process.close()


def test_the_process_dies_with_the_one_that_started_it() -> None:
    program = (
        "from isocompute.rollout.scoring.math_process import MathProcess\n"
        "process = MathProcess(seconds=5.0)\n"
        "assert process.right('2', '2')\n"
        "print(process._process.pid, flush=True)\n"
        "input()\n"
    )
    for how in (signal.SIGKILL, None):
        parent = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        if how is None:
            parent.communicate("\n")
        else:
            parent.send_signal(how)
            parent.communicate()
        for _ in range(100):
            if not alive(child):
                break
            time.sleep(0.1)
        assert not alive(child)


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_own_answers_of_the_kinds_math_verify_meets_are_right_in_a_box() -> None:
    right = verifier("math")
    for answer in ("34", "-3.5", r"\frac{1}{2}", "1, 2", r"(0, \infty)", "2x+1", r"\text{yes}", r"\sqrt{2}", "50\\%"):
        assert right(f"\\boxed{{{answer}}}", answer), answer

"""Verdicts: own answers, settings and metadata, time limits."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from isocompute.rollout import RolloutError, metadata, verifier
from isocompute.rollout.math_process import MathProcess
from isocompute.rollout.sources.base import ReasoningGymSource, candidates

TOWER = r"so \boxed{9^{9^{9^{9}}}}"
"""Busies sympy for longer than anybody waits."""


def first(task: str, **settings: Any) -> Any:
    pytest.importorskip("reasoning_gym")
    return next(iter(candidates(ReasoningGymSource(task=task, settings=settings, train=1, validation=1))))


@pytest.mark.parametrize("task", ["sudoku", "arc_agi", "time_intervals", "word_ladder", "knight_swap", "cryptarithm"])
def test_a_scorer_that_reads_metadata_takes_its_own_answer(task: str) -> None:
    problem = first(task)
    right = verifier(problem.verifier)
    assert right(problem.answer, problem.answer, problem.metadata)
    assert not right("nonsense", problem.answer, problem.metadata)


def test_a_scorer_without_the_metadata_it_reads_says_so() -> None:
    problem = first("sudoku")
    with pytest.raises(RolloutError, match=r"the scorer of sudoku needs the metadata .* make the problems table again"):
        verifier(problem.verifier)(problem.answer, problem.answer)
    assert verifier("reasoning_gym:gcd")("4", "4")
    with pytest.raises(RolloutError, match="not a JSON mapping"):
        verifier(problem.verifier)(problem.answer, problem.answer, "[1")


def test_the_scorer_has_the_tasks_own_settings() -> None:
    coarse = first("decimal_arithmetic", max_num_decimal_places=3)
    fine = first("decimal_arithmetic", max_num_decimal_places=8)
    right = verifier("reasoning_gym:decimal_arithmetic")
    # The tolerance is one unit in the last place that the settings allow.
    assert right("1.0005", "1", coarse.metadata)
    assert not right("1.0005", "1", fine.metadata)
    refused = metadata.written({"settings": {"nonsense": 1}})
    with pytest.raises(RolloutError, match=r"refuses the task 'decimal_arithmetic': .*nonsense"):
        right("1", "1", refused)


def test_metadata_come_back_as_a_scorer_compares_them() -> None:
    import datetime

    import numpy as np

    value = {"a": (1, (2, [3])), "b": {4: {"x"}}, "c": np.int64(5), "d": np.eye(1), "e": datetime.date(2026, 1, 2)}
    text = metadata.written(value)
    assert json.loads(text)
    assert metadata.read(text, where="x") == {
        "a": (1, (2, [3])), "b": {"4": ["x"]}, "c": 5, "d": [[1.0]], "e": "2026-01-02"
    }  # fmt: skip


def test_a_verdict_met_again_costs_no_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = first("sudoku")
    right = verifier(problem.verifier)
    assert right(problem.answer, problem.answer, problem.metadata)
    plain = verifier("reasoning_gym:chain_sum")
    monkeypatch.setattr(metadata, "read", None)
    assert right(problem.answer, problem.answer, "".join(problem.metadata))
    assert plain("5=10", "10", first("chain_sum").metadata)


def test_a_response_that_never_ends_is_wrong_in_any_thread_and_the_next_one_is_scored() -> None:
    pytest.importorskip("math_verify")
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
    pytest.importorskip("math_verify")
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
    pytest.importorskip("math_verify")
    program = (
        "from isocompute.rollout.math_process import MathProcess\n"
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
    pytest.importorskip("math_verify")
    right = verifier("math")
    for answer in ("34", "-3.5", r"\frac{1}{2}", "1, 2", r"(0, \infty)", "2x+1", r"\text{yes}", r"\sqrt{2}", "50\\%"):
        assert right(f"\\boxed{{{answer}}}", answer), answer


def test_two_entries_of_one_task_are_two_problems() -> None:
    pytest.importorskip("reasoning_gym")
    source = ReasoningGymSource(task="sudoku", train=1, validation=1)
    one, two = islice(candidates(source), 2)
    assert not verifier(one.verifier)(one.answer, two.answer, two.metadata)

"""Processes that score, when memory or processes run out: replaced, explained, and nothing is left behind."""

import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from isocompute.rollout import RolloutError
from isocompute.rollout.scoring.config import ScoringConfig
from isocompute.rollout.scoring.sandbox import child
from isocompute.rollout.scoring.sandbox.process import sandbox_layers
from isocompute.rollout.scoring.scorer import Item, Scorer
from scoring.processes import descendants

pytestmark = pytest.mark.slow("sandboxes, one after another")

OWN = """
import os

real, forks = os.fork, 0


def fork():
    # Seen from a worker, the machine has no processes left, once and again.
    global forks
    forks += os.getpid() != 1
    if os.getpid() != 1 and FAILS and forks >= 4:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return real()


os.fork = fork


def executes(response, answer, metadata):
    scope = {"os": os}
    exec(response, scope)
    return scope.get("answer") == answer
"""
TOGETHER = """
import time
for i in range(4):
    if os.fork() == 0:
        kept = bytearray(b"1") * (200 << 20)
        time.sleep(3)
        os._exit(0)
for i in range(4): os.wait()
answer = "right"
"""


@pytest.fixture
def scorer(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scorer]:
    for fails in (True, False):
        (tmp_path / f"forking_rules_{fails}.py").write_text(f"FAILS = {fails}\n" + OWN)
    monkeypatch.chdir(tmp_path)
    scorer = Scorer(ScoringConfig(**{"seconds": 5, **getattr(request, "param", {})}))
    yield scorer
    scorer.close()


def items(fails: bool, *responses: str) -> list[Item]:
    item = Item(verifier=f"python:forking_rules_{fails}:executes", response="", answer="right")
    return [dataclasses.replace(item, response=response) for response in responses]


def test_a_failed_fork_replaces_the_worker_and_costs_no_verdict(scorer: Scorer) -> None:
    verdicts = scorer.submit(items(True, *(f"answer = 'right' # {i}" for i in range(9)))).result(timeout=120)
    assert [(v.reward, v.error) for v in verdicts] == [(1, None)] * 9


@pytest.mark.parametrize("scorer", [{"memory_bytes": 2**29}], indirect=True)
def test_the_processes_of_a_response_have_one_limit_of_memory(scorer: Scorer) -> None:
    texts = ("answer = 'right'", TOGETHER, "answer = 'right' ")
    verdicts = scorer.submit(items(False, *texts)).result(timeout=120)
    assert [v.reward for v in verdicts] == [1, 0, 1]
    assert "memory" in str(verdicts[1].error)


@pytest.mark.parametrize(
    "scorer",
    [{"seconds": 2, "without": ("user", "network", "processes")}],
    indirect=True,
    ids=["no limit of the kernel"],
)
def test_processes_without_end_are_ended_where_no_limit_of_the_kernel_counts_them(scorer: Scorer) -> None:
    texts = ("answer = 'right'", "while True: os.fork()", "answer = 'right' ")
    verdicts = scorer.submit(items(False, *texts)).result(timeout=120)
    assert [v.reward for v in verdicts] == [1, 0, 1]
    assert "too many processes" in str(verdicts[1].error)


def test_children_that_have_ended_hide_none_that_runs() -> None:
    ended = "import os, time\nfor _ in range(1500): os.fork() or os._exit(0)\n"
    runs = "print(os.fork() or time.sleep(60), flush=True)\ntime.sleep(60)"
    program = [sys.executable, "-c", ended + runs]
    with subprocess.Popen(program, stdout=subprocess.PIPE, start_new_session=True, text=True) as ancestor:
        assert ancestor.stdout is not None
        running = int(ancestor.stdout.readline())
        try:
            assert running in {process.pid for process in child.descendants(ancestor.pid)}
        finally:
            os.killpg(ancestor.pid, signal.SIGKILL)


def test_the_kernel_ends_a_sandbox_before_an_engine_when_memory_is_short(scorer: Scorer) -> None:
    before = descendants(os.getpid())
    scorer.check(["python:forking_rules_False:executes"])
    started = descendants(os.getpid()) - before
    assert len(started) >= 3
    assert {Path(f"/proc/{pid}/oom_score_adj").read_text().strip() for pid in started} == {"1000"}


def test_a_process_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho first >&2\necho 'libpython3 cannot be loaded' >&2\nexit 127\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(RolloutError, match="did not start: libpython3"):
        sandbox_layers()


def test_a_sandbox_that_is_killed_leaves_no_folder() -> None:
    def folders() -> set[Path]:
        return set(Path(tempfile.gettempdir()).glob("isocompute-*"))

    before, running = folders(), descendants(os.getpid())
    scorer = Scorer(ScoringConfig())
    scorer.layers()
    for pid in descendants(os.getpid()) - running:
        os.kill(pid, signal.SIGKILL)
    scorer.close()
    assert folders() <= before

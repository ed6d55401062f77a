"""Verifiers of one's own in the sandbox: where they are found, what is no fault of a response, and deadlines."""

import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from isocompute.rollout import RolloutError, verifier
from isocompute.rollout.scoring.config import ScoringConfig
from isocompute.rollout.scoring.sandbox import child, layers
from isocompute.rollout.scoring.sandbox.child import Limits, NoProcessError, in_a_child
from isocompute.rollout.scoring.sandbox.frames import said
from isocompute.rollout.scoring.scorer import Item, Scorer

pytestmark = pytest.mark.slow("sandboxes, one after another")

OWN = """
import os, resource, time


def executes(response, answer, metadata):
    exec(response)
    return True


def limited(response, answer, metadata):
    return resource.getrlimit(resource.RLIMIT_NPROC)[0] == int(response)
"""
DIES = """
import os

forks = 0


def count():
    global forks
    forks += 1
    if forks == 2:
        # The first is the worker, the second is the process of a response.
        os._exit(3)


os.register_at_fork(after_in_child=count)


def judge(response, answer, metadata):
    return True
"""
LIMITS = Limits(seconds=5, wall_seconds=60, contained=False, landlock=0, filter=b"", processes=10**6)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that this process runs in, which is not on ``sys.path``, as for a console script."""
    (tmp_path / "own_rules.py").write_text(OWN)
    (tmp_path / "dying_rules.py").write_text(DIES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def scorer(request: pytest.FixtureRequest) -> Iterator[Scorer]:
    scorer = Scorer(ScoringConfig(**getattr(request, "param", {})))
    yield scorer
    scorer.close()


def items(*responses: str, function: str = "executes") -> list[Item]:
    return [Item(verifier=f"python:own_rules:{function}", response=text, answer="") for text in responses]


def test_a_module_in_the_working_folder_is_found() -> None:
    assert verifier("python:own_rules:executes")("pass", "")


@pytest.mark.parametrize("scorer", [{"seconds": 0.2, "wall_factor": 5}], indirect=True)
def test_after_two_responses_that_hang_the_others_of_their_group_wait_less(scorer: Scorer) -> None:
    scorer.check(["python:own_rules:executes"])
    hanging = [f"time.sleep(1000 + {i})" for i in range(4)]
    verdicts = scorer.submit(items(*hanging)).result(timeout=60)
    assert [v.error for v in verdicts] == [
        *["deadline: more than 1 s by the clock"] * 2,
        *["deadline: more than 0.2 s by the clock"] * 2,
    ]


@pytest.mark.parametrize(
    ("scorer", "response", "again"),
    [
        ({"wall_factor": 1000}, "os._exit(3)", True),
        ({"seconds": 0.2, "wall_factor": 1}, "time.sleep(1000)", True),
        ({"wall_factor": 1000}, "raise ValueError", False),
    ],
    indirect=["scorer"],
)
def test_what_may_end_otherwise_next_time_is_scored_again(scorer: Scorer, response: str, again: bool) -> None:
    scorer.check(["python:own_rules:executes"])
    verdict = scorer.submit(items(response)).result(timeout=60)[0]
    assert verdict.error is not None
    scorer.close()
    assert scorer.submit(items(response)).result(timeout=60)[0] == verdict
    # A verdict that is known starts no process.
    assert bool(scorer._pools) == again


def test_a_rule_whose_processes_die_is_refused_before_anything_is_scored(scorer: Scorer) -> None:
    message = "^the verifier python:dying_rules:judge cannot be used: the verifier's process ended .exit code 3.$"
    with pytest.raises(RolloutError, match=message):
        scorer.check(["python:dying_rules:judge"])


def test_a_process_that_cannot_be_forked_is_tried_again_and_is_no_fault_of_the_response(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allow = threading.Timer(0.3, resource.setrlimit, (resource.RLIMIT_NOFILE, (soft, hard)))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        with pytest.raises(NoProcessError, match=r"a response .Too many open"):
            in_a_child(lambda: said(1), LIMITS)
        monkeypatch.setattr(child, "FORK_SECONDS", 20.0)
        allow.start()
        assert in_a_child(lambda: said(1), LIMITS) == 1
    finally:
        allow.join()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_processes_are_limited_where_the_kernel_counts_them_by_themselves(scorer: Scorer) -> None:
    limit = str(layers.PROCESSES)
    alone = layers.counted_alone(scorer._pool("exact").report().result())
    assert scorer.submit(items(limit, function="limited")).result(timeout=60)[0].reward == alone
    assert not layers.counted_alone({"user": ""})
    assert not layers.counted_alone({"user": f"uid {layers.NOBODY}"})
    plain = Scorer(ScoringConfig(without=("user",), allow_unisolated=True))
    assert plain.submit(items(limit, function="limited")).result(timeout=60)[0].reward == 0
    # With the user's others, but not without end.
    assert plain.submit(items("-1", function="limited")).result(timeout=60)[0].reward == 0
    plain.close()


@pytest.mark.parametrize("scorer", [{"without": ("files",)}], indirect=True)
def test_rules_that_execute_are_refused_where_files_could_be_written(scorer: Scorer) -> None:
    with pytest.raises(RolloutError, match="allow_unisolated"):
        scorer.check(["python:own_rules:executes"])

"""Processes that score: deadlines, replacements, threads, forks, their end, and what they may reach."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from isocompute.rollout import RolloutError, verifier
from isocompute.rollout.scoring.config import ScoringConfig, scoring_from
from isocompute.rollout.scoring.sandbox.process import report, sandbox_layers
from isocompute.rollout.scoring.scorer import Item, Scorer
from scoring.processes import descendants

pytestmark = pytest.mark.slow("sandboxes, one after another")

pytest.importorskip("math_verify")

TOWER = r"so \boxed{9^{9^{9^{9}}}}"
"""Keeps sympy busy for longer than anybody waits."""


@pytest.fixture
def scorer() -> Iterator[Scorer]:
    scorer = Scorer(ScoringConfig(seconds=0.5, wall_factor=1000))
    yield scorer
    scorer.close()


def items(*responses: str, answer: str = "0.5", name: str = "math") -> list[Item]:
    return [Item(verifier=name, response=text, answer=answer) for text in responses]


def test_a_response_that_never_ends_is_wrong_and_the_rest_of_its_batch_is_scored(scorer: Scorer) -> None:
    batch = items(r"\boxed{1/2}", TOWER, "so 1/2", TOWER + "!", r"\boxed{2}", r"\frac{1}{2}")
    verdicts = scorer.submit(batch).result(timeout=120)
    assert [v.reward for v in verdicts] == [1, 0, 1, 0, 0, 1]
    late = "deadline: more than 0.5 s of processor time"
    assert [v.error for v in verdicts] == [None, late, None, late, None, None]


def test_an_engine_goes_on_while_responses_are_scored(scorer: Scorer) -> None:
    scorer.check(["math"])
    hanging = scorer.submit(items(TOWER))
    assert not hanging.done()
    assert scorer.submit(items("4 ", name="exact", answer="4")).done()
    assert hanging.result(timeout=60)[0].reward == 0


def test_threads_share_processes_and_get_their_own_verdicts() -> None:
    scorer = Scorer(ScoringConfig(workers=2))
    verdicts: dict[int, bool] = {}

    def score(i: int) -> None:
        batch = items(f"\\boxed{{{i}}}", answer=str(i // 2 * 2))
        verdicts[i] = scorer.submit(batch).result(timeout=60)[0].reward == 1

    threads = [threading.Thread(target=score, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == {i: i % 2 == 0 for i in range(16)}
    scorer.close()
    # Closed is not the end: the next item starts others.
    assert scorer.submit(items("17", answer="17")).result(timeout=60)[0].reward == 1
    scorer.close()


def test_a_forked_process_has_processes_of_its_own(scorer: Scorer) -> None:
    assert scorer.submit(items("3", answer="3")).result(timeout=60)[0].reward == 1
    child = os.fork()
    if child == 0:
        right = scorer.submit(items("7", "8", answer="7")).result(timeout=60)
        scorer.close()
        os._exit(0 if [v.reward for v in right] == [1, 0] else 1)
    again = scorer.submit(items("9", "10", answer="10")).result(timeout=60)
    assert [v.reward for v in again] == [0, 1]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


PROGRAM = """
from isocompute.rollout.scoring.config import ScoringConfig
from isocompute.rollout.scoring.scorer import Item, Scorer
scorer = Scorer(ScoringConfig(seconds=600))
scorer.check(["math"])
scorer.submit([Item(verifier="math", response=r"\\\\boxed{9^{9^{9^{9}}}}", answer="1")])
print("ready", flush=True)
input()
"""


@pytest.mark.parametrize("killed", [True, False])
def test_the_processes_die_with_the_one_that_started_them(killed: bool) -> None:
    marker = f"# {os.urandom(8).hex()}"
    engine = subprocess.Popen(
        [sys.executable, "-c", PROGRAM + marker],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert engine.stdout is not None
    assert engine.stdout.readline() == "ready\n"
    family = descendants(engine.pid)
    assert len(family) >= 3
    if killed:
        engine.send_signal(signal.SIGKILL)
        engine.communicate()
    else:
        # The interpreter's exit waits for no response.
        engine.communicate("\n", timeout=60)
    for _ in range(100):
        if not any(alive(pid) for pid in family):
            break
        time.sleep(0.1)
    assert not [pid for pid in family if alive(pid)]


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_killed_process_is_replaced(scorer: Scorer) -> None:
    scorer.check(["math"])
    for pid in descendants(os.getpid()):
        # A child of an earlier request may end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if b"sandbox/boot.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
    assert scorer.submit(items("11", answer="11")).result(timeout=60)[0].reward == 1


def test_the_sandbox_says_which_layers_it_has() -> None:
    layers = sandbox_layers()
    assert list(layers) == ["no_new_privs", "user", "network", "processes", "files", "seccomp"]
    assert layers["no_new_privs"] == "set"
    bare = sandbox_layers(ScoringConfig(without=("user", "network", "processes", "files", "seccomp")))
    assert {name for name, value in bare.items() if not value} == {"user", "network", "files", "seccomp"}
    assert bare["processes"] == "process group"
    mounts = sandbox_layers(ScoringConfig(without=("landlock",)))["files"]
    assert mounts in {"read-only mounts", ""}
    lines = report(ScoringConfig(seconds=2, without=("network", "files", "seccomp")))
    assert "network (nothing can be reached): missing" in lines
    assert lines[-1] == "rules that may execute a response: refused, for lack of isolation"


def test_rules_that_execute_are_refused_without_isolation_unless_allowed() -> None:
    pytest.importorskip("reasoning_gym")
    without = ("network", "files", "seccomp")
    name = "reasoning_gym:countdown"
    entry = '{"metadata":{"numbers":[1,2],"target":3}}'
    scorer = Scorer(ScoringConfig(without=without))
    with pytest.raises(RolloutError, match=f"^the verifier {name} may execute what a response says, .* allow_unisol"):
        scorer.check([name])
    scorer.check(["reasoning_gym:gcd"])
    scorer.close()
    scorer = Scorer(ScoringConfig(without=without, allow_unisolated=True))
    scorer.check([name])
    item = Item(verifier=name, response="1 + 2", answer="", metadata=entry)
    assert scorer.submit([item]).result(timeout=60)[0].reward == 1
    scorer.close()


def test_settings_are_checked_when_they_are_made() -> None:
    assert scoring_from({"seconds": 2, "without": ["user"]}) == ScoringConfig(seconds=2, without=("user",))
    assert scoring_from({"without": "user,files"}).without == ("user", "files")
    for settings, message in (
        ({"second": 1}, "scoring has no setting 'second'; it has allow_unisolated, "),
        ({"seconds": 0}, "seconds of scoring is 0; it must be above 0"),
        ({"wall_factor": 0.5}, "wall_factor of scoring is 0.5"),
        ({"workers": 0}, "workers of scoring is 0; it must lie between 1 and 256"),
        ({"memory_bytes": 1}, "memory_bytes of scoring is 1"),
        ({"without": ["sound"]}, "the sandbox has no layer 'sound'; it has user, network"),
        ({"seconds": "2"}, "seconds of scoring is '2'; it must be of type int or float"),
        ({"workers": True}, "workers of scoring is True; it must be of type int or None"),
    ):
        with pytest.raises(RolloutError, match=message):
            scoring_from(settings)


def test_the_number_of_processes_is_the_machines_and_not_the_configurations() -> None:
    config = ScoringConfig()
    assert config.workers is None
    assert config.processes == max(1, min(8, len(os.sched_getaffinity(0)) // 2))
    assert ScoringConfig(workers=3).processes == 3


def test_own_answers_of_the_kinds_math_verify_meets_are_right_in_a_box() -> None:
    right = verifier("math")
    for answer in ("34", "-3.5", r"\frac{1}{2}", "1, 2", r"(0, \infty)", "2x+1", r"\text{yes}", r"\sqrt{2}", "50\\%"):
        assert right(f"\\boxed{{{answer}}}", answer), answer

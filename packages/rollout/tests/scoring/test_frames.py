"""What passes between the processes that score: one verdict for each request, and nothing that is left over."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from isocompute.rollout import RolloutError
from isocompute.rollout.scoring.config import ScoringConfig
from isocompute.rollout.scoring.sandbox.child import Limits, in_a_child
from isocompute.rollout.scoring.scorer import Item, Scorer

pytestmark = pytest.mark.slow("sandboxes, one after another")

EXECUTES = """
def executes(response, answer, metadata):
    scope = {}
    exec(response, scope)
    return scope.get("answer") == answer
"""
WRITES_LINES = """
# The worker writes what is no verdict, the fifth time that it starts a process.
import os

forks = 0


def write():
    global forks
    forks += os.getpid() != 1
    if forks == 5:
        for file in range(3, 20):
            try: os.write(file, b"1.0\\n" * 30)
            except OSError: pass


os.register_at_fork(before=write)
"""
FORGES = """
import os, struct, sys

# The number that a reply begins with: in the frames of the interpreter, or in a pipe.
numbers = []
frame = sys._getframe()
while frame:
    numbers += [v for v in frame.f_locals.values() if type(v) is bytes and len(v) == 16]
    frame = frame.f_back
for file in range(3, 64):
    try:
        os.set_blocking(file, False)
        numbers.append(os.read(file, 16))
    except OSError: pass
for file in range(3, 64):
    for number in set(numbers):
        text = TEXT
        try: os.write(file, struct.pack("=16sI", number, len(text)) + text)
        except OSError: pass
os._exit(0)
"""
FORGED = [b"1.0\n" * 900, b"1.0\n[0, 1.0]\n", b'{"fault": "all is lost"}\n', b"1.0"]
LIMITS = Limits(seconds=5, wall_seconds=60, contained=False, landlock=0, filter=b"", processes=10**6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        made = tmp_path_factory.mktemp("rules")
        patch.chdir(made)
        yield made


@pytest.fixture(scope="module")
def scorer(folder: Path) -> Iterator[Scorer]:
    scorer = Scorer(ScoringConfig(seconds=2))
    yield scorer
    scorer.close()


def of_problems(module: str, *responses: str) -> list[Item]:
    """Responses, each to a problem of its own."""
    item = Item(verifier=f"python:{module}:executes", response="", answer="right")
    texts = enumerate(responses)
    return [dataclasses.replace(item, response=text, metadata=f'{{"number": {i}}}') for i, text in texts]


def rewards(scorer: Scorer, items: list[Item]) -> list[float]:
    return [verdict.reward for verdict in scorer.submit(items).result(timeout=120)]


def test_lines_that_a_response_forges_change_no_other_verdict(scorer: Scorer, folder: Path) -> None:
    (folder / "forged_rules.py").write_text(EXECUTES)
    forged = [FORGES.replace("TEXT", repr(text)) for text in FORGED]
    wrong = [f"answer = {i}" for i in range(20)]
    for text in forged:
        found = rewards(scorer, of_problems("forged_rules", text, *wrong, "answer = 'right'"))
        assert found[1:] == [0] * 20 + [1]
    assert rewards(scorer, of_problems("forged_rules", *(text + " " for text in wrong))) == [0] * 20


def test_what_a_child_writes_is_exactly_one_verdict() -> None:
    wrong = (b"1.0\n" * 2, b"1.0\n1", b"", b"\n", b"2.0\n", b"NaN\n", b"true\n", b"[1.0]\n", b'{"reward": 1}\n', b"1.0")
    for line in wrong:
        found = in_a_child(lambda line=line: line, LIMITS)
        assert "not a verdict" in found["error"], line


def test_a_worker_that_writes_what_is_left_over_is_replaced(scorer: Scorer, folder: Path) -> None:
    (folder / "writing_rules.py").write_text(EXECUTES + WRITES_LINES)
    responses = [f"answer = '{'right' if i % 3 == 0 else i}'" for i in range(12)]
    verdicts = scorer.submit(of_problems("writing_rules", *responses)).result(timeout=120)
    stray = [v.error for v in verdicts if v.error]
    assert set(stray) == {"the verifier's process wrote something that is not a verdict"}
    assert len(stray) <= 4
    assert [v.reward for v in verdicts if not v.error] == [
        float(i % 3 == 0) for i, v in enumerate(verdicts) if not v.error
    ]


@pytest.mark.parametrize("reply", ["b'1.0\\n'", "b'0.0\\n'"])
def test_a_scorer_that_always_says_the_same_stops_the_run(reply: str, scorer: Scorer, folder: Path) -> None:
    forged = f"""
import sys

sys.modules["isocompute.rollout.scoring.sandbox.child"]._reply = lambda *values, **named: {reply}
"""
    (folder / f"stuck_rules_{reply[2]}.py").write_text(EXECUTES + forged)
    with pytest.raises(RolloutError, match=r"known to be (right|wrong)"):
        rewards(scorer, of_problems(f"stuck_rules_{reply[2]}", "answer = 1"))

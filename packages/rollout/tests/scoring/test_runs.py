"""``runs``: programs that are right, wrong, late or loud, with bubblewrap and without."""

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.rollout import RolloutError, source_from
from isocompute.rollout.problems.loading import load_checked
from isocompute.rollout.scoring.config import ScoringConfig
from isocompute.rollout.scoring.judges import runs
from isocompute.rollout.scoring.judges.programs import Apart
from isocompute.rollout.scoring.judges.runs import program_of, same_output
from isocompute.rollout.scoring.sandbox import layers, process
from isocompute.rollout.scoring.scorer import Item, Scorer

pytestmark = pytest.mark.slow("programs, some of which take all their time")

SUM = json.dumps([{"input": f"{a} {b}\n", "output": f"{a + b}\n"} for a, b in ((3, 4), (10, -4), (0, 0), (5, 5))])
RIGHT = "print(sum(map(int, input().split())))"
WITHOUT = ((), ("bubblewrap",), ("bubblewrap", "network", "processes"))
SEEN = """
import os, socket
def tried(call, *values):
    try: return call(*values) is None or "done"
    except OSError: return "refused"
print(os.getpid() < 9, os.getuid())
print(tried(socket.socket), tried(os.chmod, "/usr", 0o777), tried(os.listdir, "/home"), tried(os.mkdir, "/usr/x"))
print(tried(open, "/etc/passwd"), tried(os.kill, 1, 0))
print(sorted(os.listdir("/dev")) == ["null", "random", "urandom"])
"""


@pytest.fixture(scope="module")
def scorers() -> Iterator[list[Scorer]]:
    """One with all layers, one without bubblewrap, and one without namespaces either."""
    limits: dict[str, Any] = {"seconds": 2.0, "wall_factor": 3.0, "memory_bytes": 2**29}
    opened = [Scorer(ScoringConfig(**limits, without=without)) for without in WITHOUT]
    yield opened
    for scorer in opened:
        scorer.close()


@pytest.fixture
def scorer(scorers: list[Scorer]) -> Scorer:
    return scorers[0]


@pytest.fixture(params=range(len(WITHOUT)), ids=["all layers", "no bubblewrap", "no namespaces"])
def any_scorer(request: pytest.FixtureRequest, scorers: list[Scorer]) -> Scorer:
    return scorers[request.param]


def rewards(scorer: Scorer, *responses: str, answer: str = SUM, verifier: str = "runs") -> list[float]:
    items = [Item(verifier=verifier, response=text, answer=answer) for text in responses]
    return [verdict.reward for verdict in scorer.submit(items).result(timeout=300)]


def test_bubblewrap_is_used_where_it_is_not_left_out_and_would_run_nothing_as_root(any_scorer: Scorer) -> None:
    scorer = any_scorer
    scorer.check(["runs"])
    report = scorer._pool("runs").report().result()
    used = layers.bubblewrap_path() and "bubblewrap" not in scorer.config.without
    private = os.geteuid() == 0 and report["user"].endswith(layers.READS_AS_ROOT)
    assert (report["files"] == "bubblewrap") == bool(used and not private)


def test_in_bubblewrap_a_program_sees_only_itself_and_what_it_needs() -> None:
    if not layers.bubblewrap_path():
        pytest.skip("bubblewrap is not installed")
    judge = runs.RunsJudge(layers.apart(layers.bubblewrap_path(), process.readable([sys.prefix])))
    seen = "True 65534\nrefused refused refused refused\nrefused True\nTrue"
    tests = json.dumps([{"input": "", "output": seen}])
    assert judge.prepare("runs", tests, "")(SEEN) == 1
    assert [judge.prepare("runs", SUM, "")(text) for text in (RIGHT, "print(7)", "1/0")] == [1, 0.25, 0]
    with pytest.raises(RolloutError, match="starts no program"):
        runs.RunsJudge(Apart(command=("/bin/false",)))


def test_a_program_is_right_when_it_passes_every_test(any_scorer: Scorer) -> None:
    scorer = any_scorer
    half = "print(abs(sum(map(int, input().split()))) if input else 0)\nassert True\nprint"
    fenced = f"I add them.\n```python\n{RIGHT}\n```\nDone."
    wrong = RIGHT.replace("sum", "max")
    assert rewards(scorer, RIGHT, fenced, f"```\n1/0\n```\n{fenced}") == [1, 1, 1]
    assert rewards(scorer, wrong, "1/0", RIGHT + "\n1/0", "", "\0", "nonsense here", RIGHT + ";print(1)") == [0] * 7
    assert rewards(scorer, half, "#" * 200_000) == [1, 0]


def test_a_share_of_the_tests_counts_on_request(scorer: Scorer) -> None:
    positive = "a, b = map(int, input().split())\nprint(a + b if b >= 0 else 'negative')"
    assert rewards(scorer, positive, RIGHT, "print(7)", verifier="runs|partial") == [0.75, 1, 0.25]
    assert rewards(scorer, positive) == [0]


def test_a_program_that_takes_too_much_fails_and_its_neighbours_do_not(scorer: Scorer) -> None:
    greedy = [
        "while True: pass",
        "import time; time.sleep(1000)",
        "a = bytearray(10**9); " + RIGHT,
        "import os\nwhile True: os.write(1, b'1' * 9999)",
    ]
    assert rewards(scorer, *(text for one in greedy for text in (one, f"{RIGHT}  # {one!r}"))) == [0, 1] * len(greedy)


def test_a_test_may_have_less_time_than_a_response(scorer: Scorer) -> None:
    # Far less than the six seconds by the clock that a response has, which go by while others use the processors.
    slow = "import time\nend = time.process_time() + 0.8\nwhile time.process_time() < end: pass\n" + RIGHT
    short, long = (json.dumps({"tests": json.loads(SUM)[:1], "seconds": seconds}) for seconds in (0.5, 2))
    assert rewards(scorer, slow, RIGHT, answer=short) == [0, 1]
    assert rewards(scorer, slow, answer=long) == [1]


def test_a_program_reads_a_long_input_and_one_that_does_not_read_it_may_be_right(scorer: Scorer) -> None:
    long = json.dumps([{"input": "7 " * 200_000, "output": "1400000"}])
    programs = ("print(sum(map(int, input().split())))", "print(1400000)", "print(7)")
    assert rewards(scorer, *programs, answer=long) == [1, 1, 0]
    many = json.dumps([{"input": "", "output": "\n".join(map(str, range(50_000)))}])
    assert rewards(scorer, "for i in range(50_000): print(i)", answer=many) == [1]


def test_a_process_that_keeps_the_output_open_delays_nothing(any_scorer: Scorer) -> None:
    scorer = any_scorer
    leaves = f"import os, time\nif os.fork() == 0: time.sleep(1000)\n{RIGHT}"
    assert rewards(scorer, leaves) == [1]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("7", "problem for runs is '7';"),
        ('{"tests": [], "time": 1}', "of a problem for runs is"),
        ("[]", "holds no tests"),
        ('[{"input": "1"}]', "is no mapping"),
        ('[{"input": "", "output": 7}]', "must have texts"),
        ('{"tests": [], "seconds": true}', "seconds of a test is True"),
    ],
)
def test_tests_that_cannot_be_read_are_no_fault_of_a_response(scorer: Scorer, answer: str, message: str) -> None:
    with pytest.raises(RolloutError, match=message):
        runs.tests_of(answer)
    with pytest.raises(RolloutError, match=message):
        rewards(scorer, RIGHT, answer=answer)


def test_a_source_of_programs_is_loaded_and_problems_without_tests_are_dropped(tmp_path: Any) -> None:
    rows = [{"prompt": f"Add two numbers, please: {i}.", "answer": SUM if i else "[]"} for i in range(300)]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source = {"kind": "file", "path": str(tmp_path / "own.jsonl"), "verifier": "runs", "train": 200, "validation": 9}
    loaded = load_checked(source_from(source))
    assert len(loaded.problems) == 209
    assert set(loaded.dropped["reason"]) <= {"the answer of a problem for runs holds no tests"}


@given(st.lists(st.lists(st.integers(-999, 999), max_size=4), max_size=4))
def test_outputs_are_the_same_up_to_white_space_and_how_numbers_are_written(rows: list[list[int]]) -> None:
    plain = "\n".join(" ".join(map(str, row)) for row in rows)
    wide = "\n".join("   ".join(f"{n}.0" for n in row) + "  " for row in rows) + "\n\n"
    assert same_output(wide, plain)
    assert same_output(plain, wide)
    assert not same_output(plain + " 1", plain)
    assert not same_output("1\n" + plain, plain) or not plain.strip("1\n ")


def test_words_are_compared_as_they_are() -> None:
    assert same_output("YES 1e2", "YES 100")
    for ours, theirs in (("yes", "YES"), ("nan", "NaN"), ("1_000", "1000"), ("١", "1"), ("a b", "a\nb"), ("", "0")):
        assert not same_output(ours, theirs)
    assert not same_output("9" * 100, "9" * 100 + ".0")


def test_the_last_closed_block_is_the_program() -> None:
    assert program_of("x = 1") == "x = 1"
    assert program_of("```python\na\n```\n```py\nb\nc\n```\nand ```inline```") == "b\nc"
    assert program_of("```\na\n```\n```\nb") == "a"

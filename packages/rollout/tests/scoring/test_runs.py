"""``runs``: programs that are right, wrong, late or loud, with bubblewrap and without."""

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from decimal import Decimal, localcontext
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.rollout import RolloutError
from isocompute.rollout.scoring.judges import runs
from isocompute.rollout.scoring.judges.programs import Apart
from isocompute.rollout.scoring.judges.runs import program_of, same_output
from isocompute.rollout.scoring.sandbox import layers, process
from isocompute.rollout.scoring.sandbox.process import ScoringConfig
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


LEAVES_OTHERS = f"""
import os, time
reading, writing = os.pipe()
for _ in range(4):
    if not os.fork():
        while time.process_time() < 0.2: pass
        os.write(writing, b"x")
        time.sleep(60)
for _ in range(4): os.read(reading, 1)
{RIGHT}
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
    any_scorer.check(["runs"])
    report = any_scorer._pool("runs")._put(lambda process: process.started()).result()
    used = layers.bubblewrap_path() and "bubblewrap" not in any_scorer.config.without
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


def test_in_bubblewrap_the_time_of_what_a_program_leaves_behind_counts_in_every_test() -> None:
    if not layers.bubblewrap_path():
        pytest.skip("bubblewrap is not installed")
    judge = runs.RunsJudge(layers.apart(layers.bubblewrap_path(), process.readable([sys.prefix])))
    before = signal.signal(signal.SIGPROF, signal.SIG_IGN)
    # The judge's own time is a small part of it.
    signal.setitimer(signal.ITIMER_PROF, 2.0)
    try:
        # 0.8 s in each of eight tests.
        assert judge.prepare("runs", json.dumps(json.loads(SUM) * 2), "")(LEAVES_OTHERS) < 0.5
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def test_a_program_is_right_when_it_passes_every_test(any_scorer: Scorer) -> None:
    half = "print(abs(sum(map(int, input().split()))) if input else 0)\nassert True\nprint"
    fenced = f"I add them.\n```python\n{RIGHT}\n```\nDone."
    wrong = RIGHT.replace("sum", "max")
    assert rewards(any_scorer, RIGHT, fenced, f"```\n1/0\n```\n{fenced}") == [1, 1, 1]
    assert rewards(any_scorer, wrong, "1/0", RIGHT + "\n1/0", "", "\0", "nonsense here", RIGHT + ";print(1)") == [0] * 7
    assert rewards(any_scorer, half, "#" * 200_000) == [1, 0]


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


DEEP = "def f(n):\n    return n and 1 + f(n - 1)\nprint(f(5000))"
LIMITED = {
    DEEP: "RecursionError",
    "print(10**5000)": "DigitsLimitError",
    "x = " + "9" * 5000: "DigitsLimitError",
    "a = [0] * 10**12": "MemoryError",
    "import threading, time\nfor i in range(99): threading.Thread(target=time.sleep, args=(1,)).start()": "BlockingIO",
    "import os, time\nfor _ in range(99):\n    if os.fork() == 0: time.sleep(1); os._exit(0)": "BlockingIOError",
}


@pytest.mark.parametrize("program", LIMITED)
def test_the_limit_that_ended_a_program_is_named(program: str, any_scorer: Scorer) -> None:
    answer = json.dumps({"tests": [{"input": "", "output": "1"}], "seconds": 1})
    item = Item(verifier="runs", response=program, answer=answer)
    verdict = any_scorer.submit([item]).result(timeout=300)[0]
    assert verdict.reward == 0
    assert re.match(f"(error: )?{LIMITED[program]}", str(verdict.error))


def test_a_limit_takes_nothing_from_a_program_that_passes_other_tests_or_lifts_it(scorer: Scorer) -> None:
    tests = [{"input": "3", "output": "3"}, {"input": "5000", "output": "5000"}]
    deep = DEEP.replace("5000", "int(input())")
    items = [
        Item(verifier=name, response=text, answer=json.dumps(tests))
        for name, text in (("runs|partial", deep), ("runs", f"import sys; sys.setrecursionlimit(9999)\n{deep}"))
    ]
    verdicts = scorer.submit(items).result(timeout=300)
    assert [(verdict.reward, verdict.error) for verdict in verdicts] == [(0.5, None), (1, None)]


def test_what_a_program_says_on_its_standard_error_is_neither_read_out_nor_in_its_way(any_scorer: Scorer) -> None:
    loud = f"import sys\nfor _ in range(5000): print('x' * 99, file=sys.stderr)\n{RIGHT}"
    late = f"{RIGHT}\nimport os, sys\nsys.stdout.flush(); os.close(1); os.write(2, b'x' * 10**6)"
    assert rewards(any_scorer, loud, late) == [1, 1]
    secret = "import sys\nsys.exit('MemoryError: secret')"
    verdict = any_scorer.submit([Item(verifier="runs", response=secret, answer=SUM)]).result(timeout=300)[0]
    assert verdict.reward == 0
    assert "secret" not in str(verdict.error)


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


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("7", "problem for runs is '7';"),
        ('{"tests": [], "time": 1}', "of a problem for runs is"),
        ("[]", "holds no tests"),
        ('[{"input": "1"}]', "is no mapping"),
        ('[{"input": "", "output": "", "tolerance": -1}]', "tolerance of test 1 of a problem for runs is -1"),
        ('[{"input": "", "output": "", "tolerance": 1e999}]', "is inf"),
        ('{"tests": [], "seconds": true}', "seconds of a test is True"),
    ],
)
def test_tests_that_cannot_be_read_are_no_fault_of_a_response(scorer: Scorer, answer: str, message: str) -> None:
    with pytest.raises(RolloutError, match=message):
        rewards(scorer, RIGHT, answer=answer)


def test_words_are_compared_as_they_are() -> None:
    assert same_output("YES 1e2", "YES 100")
    assert same_output("1  2.0 \n\n", "1 2")
    for ours, theirs in (("yes", "YES"), ("nan", "NaN"), ("1_000", "1000"), ("١", "1"), ("a b", "a\nb"), ("", "0")):
        assert not same_output(ours, theirs)
    assert not same_output("9" * 100, "9" * 100 + ".0")


NUMBERS = st.decimals(-(10**9), 10**9, allow_nan=False, allow_infinity=False, places=4)


@given(NUMBERS, st.decimals("-0.999", "0.999", places=3), st.sampled_from(["1e-6", "0.01", "0"]), st.booleans())
def test_numbers_within_the_tolerance_are_equal_and_others_are_not(
    right: Decimal, share: Decimal, tolerance: str, own: bool
) -> None:
    allowed = Decimal(tolerance if own else "1e-6")
    # A task of reasoning-gym narrows the precision of the whole process.
    with localcontext(prec=50):
        near = right + share * allowed * max(1, abs(right))
        far = right + (2 + share) * allowed * max(1, abs(right))
    given_tolerance = allowed if own else None
    assert same_output(f"{near:f}", f"{right:f}", given_tolerance)
    assert same_output(f"{far:f}", f"{right:f}", given_tolerance) == (far == right)


def test_only_wanted_numbers_with_a_point_or_an_exponent_have_the_usual_tolerance() -> None:
    assert same_output("0.3333333333333333", "0.333333333")
    assert same_output("0.30000000000000004", "0.3")
    assert same_output("1000001", "1e6")
    assert not same_output("0.34", "0.333333333")
    assert not same_output("7.0000001", "7")
    assert same_output("7.0000001", "7", Decimal("0.1"))
    assert not same_output("7.0000001", "7.0", Decimal(0))
    assert not same_output("9e999999", "-9e999999")
    for ours, theirs in (("inf", "1e999999"), ("nan", "0.0"), ("inf", "Infinity"), ("-inf", "inf")):
        assert not same_output(ours, theirs, Decimal(10**9))
    assert same_output("nan inf", "nan inf")


TAGS = ("python", "py", "Python", "Python 3", " python title=a", "{.python #a}", "main.py", "py,x")
PROGRAMS = (
    "print(1)",
    "import sys\n\nfor line in sys.stdin:\n    sys.stdout.write(line)\n\n\ndef f():\n\tpass",
    'text = """\n``\n~~\n# 1. a\n> b\n"""\nprint(text)',
    "while True:\n    if input():\n        print('<b>')\n        break",
)
OTHERS = (
    ("bash", "python main.py"),
    ("output", "print(1)"),
    ("python", ">>> print(1)\n1"),
    ("c++", "int main() {}"),
    ("", "7"),
    ("", "3 4"),
    ("", "Result: 7"),
    ("python", ""),
)


@st.composite
def blocks(draw: st.DrawFn, tag: str, text: str) -> str:
    """A fenced block as CommonMark allows it: any mark and length, up to three spaces, a list or a quotation."""
    mark, length = draw(st.sampled_from("`~")), draw(st.integers(3, 6))
    indent = " " * draw(st.integers(0, 3))
    longer, spaces = draw(st.integers(0, 2)), draw(st.integers(0, 3))
    lines = [f"{mark * length}{tag}", *text.split("\n"), f"{' ' * spaces}{mark * (length + longer)}  "]
    lines = [indent + line if line else line for line in lines[:-1]] + [lines[-1]]
    first, rest = draw(st.sampled_from([("", ""), ("- ", "  "), ("1. ", "   "), ("10) ", "    "), ("> ", "> ")]))
    inside = [rest + line if line or rest.startswith(">") else line for line in lines]
    opening = draw(st.booleans())
    if first and opening and not indent:
        # The list item or quotation begins with its fence.
        inside[0] = first + lines[0]
    elif first:
        inside = [f"{first}See:", rest.rstrip(), *inside]
    return "\n".join(inside)


@settings(max_examples=60)
@given(st.data(), st.sampled_from((*TAGS, "")), st.sampled_from(PROGRAMS))
def test_the_program_is_found_whatever_its_fence_and_whatever_else_is_in_the_response(
    data: st.DataObject, tag: str, program: str
) -> None:
    others = st.lists(st.sampled_from(OTHERS), max_size=3)
    earlier = data.draw(st.lists(st.sampled_from(PROGRAMS), max_size=1)) if tag else []
    before = [("python", text) for text in earlier] + data.draw(others)
    parts = [data.draw(blocks(*each)) for each in (*before, (tag, program), *data.draw(others))]
    prose = data.draw(st.sampled_from(["I add them.", "<answer>", "# Code", "***", "Take ```inline``` code."]))
    response = f"\n\n{prose}\n\n".join(["", *parts, ""])
    for ending in ("\n", "\r\n"):
        assert program_of(response.replace("\n", ending)) == program
    cut = response + "```python\nprint("
    assert program_of(cut) == program


def test_fences_that_commonmark_does_not_read_hide_no_program() -> None:
    right = "```python\nprint(1)\n```"
    assert program_of(f"{right}\n\n    ```python\n    print(2)\n    ```") == "print(1)"
    assert program_of(f"{right}\n\n```python `x`\nprint(2)\n\n{right}") == "print(1)"
    assert program_of("````md\n```python\nprint(2)\n```\n````\n" + right) == "print(1)"
    assert program_of("1. Code:\n\n   ```python\n   print(1)\n```\n") == "print(1)"
    assert program_of("<answer>\n```python\nprint(1)\n```\n</answer>") == "print(1)"
    example = "```python\nfrom sys import stdin\ndef solve(x): return x\nprint(solve(1))\n```\nFor example:\n"
    for use in ("print(solve(3))", "assert solve(3) == 3\nprint(stdin)", "for i in range(3):\n    print(solve(i))"):
        assert program_of(f"{example}```python\n{use}\n```") == program_of(example)
    for other in ("print(3)", "def solve(y): return y\nprint(solve(2))", "from x import *\nprint(solve(3))", "solve("):
        assert program_of(f"{example}```python\n{other}\n```") == other
    bare = '"""Like\n```\nsolve(3)\n```\n"""\nprint(1)'
    assert program_of(bare) == bare

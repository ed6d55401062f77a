"""Rules by name: extraction, partial rewards, verifiers of one's own, and what is refused."""

import datetime
import json
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.rollout import RolloutError, verifier
from isocompute.rollout.errors import ProblemError
from isocompute.rollout.scoring.rules import decode_metadata, encode_metadata, extraction, register, rule
from isocompute.rollout.scoring.sandbox.process import ScoringConfig
from isocompute.rollout.scoring.scorer import Item, Scorer

pytestmark = pytest.mark.slow("sandboxes of several libraries")

USER = "python:scoring.user_rules"


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A package whose entry point names a verifier."""
    info = tmp_path_factory.mktemp("rules") / "user_rules-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: user-rules\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[isocompute.rollout.verifiers]\nsays = scoring.user_rules:contains\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(info.parent))
        yield


@pytest.fixture(scope="module")
def scorer(installed: None) -> Iterator[Scorer]:
    opened = Scorer()
    yield opened
    opened.close()


def reward(scorer: Scorer, name: str, response: str, answer: str, metadata: str = "") -> float:
    item = Item(verifier=name, response=response, answer=answer, metadata=metadata)
    return scorer.submit([item]).result(timeout=60)[0].reward


@pytest.mark.parametrize(
    ("words", "response", "found"),
    [
        (["boxed"], r"so \boxed{1} or \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (["boxed"], r"\boxed{1", None),
        (["boxed"], r"\boxed{1} or \boxed{2", None),
        (["boxed"], r"so $\boxed 3$.", "3"),
        (["boxed"], r"\boxed{1} and $\boxed 2$", "2"),
        (["boxed"], r"\boxedness{1}", None),
        (["boxed"], r"$\fbox{3}$", "3"),
        (["boxed"], r"\boxed{1} and \fbox{2}", "1"),
        (["boxed"], r"\boxed{\left\{ 1 \right.}", r"\left\{ 1 \right."),
        (["boxed"], r"\boxed{a \\ \{b\}}", r"a \\ \{b\}"),
        (["boxed"], "1", None),
        (["last_line"], "a\n b \n\n", "b"),
        (["last_line"], " \n", None),
        (["after:</think>", "boxed"], r"maybe \boxed{5}, let me check", None),
        (["after:</think>", "boxed"], r"maybe \boxed{5}</think> so \boxed{6}", "6"),
        (["after:</think>", "boxed"], r"maybe \boxed{5}</think> so \boxed{6}</think> I said 6", None),
        (["after:</think>"], "a</think>", ""),
        (["regex:#### (\\d+)"], "#### 1 #### 23", "23"),
        (["regex:\\d|x"], "1 x", "x"),
        (["regex:\\d"], "x", None),
        (["last_line", "after:="], "9=8\n1+1 = 2", "2"),
    ],
)
def test_an_answer_is_extracted_from_a_response(words: list[str], response: str, found: str | None) -> None:
    assert extraction(tuple(words))(response) == found


def test_extraction_stands_after_a_rule_and_a_pattern_takes_the_rest() -> None:
    assert rule("exact|last_line|after:=").words == ("last_line", "after:=")
    assert rule("exact|regex:(a|partial)|b").words == ("regex:(a|partial)|b",)
    assert rule("exact|partial|boxed").partial
    assert verifier("exact|boxed")(r"so \boxed{4}", "4")
    assert not verifier("exact|boxed")("4", "4")
    assert verifier("exact|regex:(\\d+)\\D*$")("1 or 42.", "42")
    assert rule("exact|after:####|boxed").written("7") == "####\\boxed{7}"
    assert rule("exact|after?:a:|boxed").written("7") == "a:\\boxed{7}"


TEXTS = st.text("ab<>/ ", max_size=9)


@given(st.sampled_from(["</think>", "####", "|=", "a:b"]), st.lists(TEXTS, min_size=1, max_size=4))
def test_a_required_mark_gives_nothing_to_a_response_without_it(mark: str, texts: list[str]) -> None:
    response = mark.join(texts)
    last = texts[-1].strip()
    assert extraction((f"after:{mark}",))(response) == (last if len(texts) > 1 else None)
    assert extraction((f"after?:{mark}",))(response) == last
    if "|" not in mark:
        assert verifier(f"exact|after:{mark}")(response, last) == (len(texts) > 1)
        assert rule(f"exact|after:{mark}").inline


def test_chain_sum_takes_the_end_of_a_worked_solution() -> None:
    pytest.importorskip("reasoning_gym")
    assert rule("reasoning_gym:chain_sum").words == ("after?:=",)
    right = verifier("reasoning_gym:chain_sum")
    assert [right(text, "10") for text in ("2+3+5=5+5=10", "5=10", "5=100", "", "==")] == [True, True] + [False] * 3
    assert verifier("reasoning_gym:chain_sum|last_line")("no\n10", "10")
    assert not verifier("reasoning_gym:chain_sum|last_line")("5=10", "10")


def test_a_fraction_is_a_reward_only_where_asked_for(scorer: Scorer) -> None:
    assert reward(scorer, f"{USER}:contains", "SO", "so") == 0
    assert reward(scorer, f"{USER}:contains|partial", "SO", "so") == 0.25
    partial = Scorer(ScoringConfig(partial=True))
    assert reward(partial, f"{USER}:contains", "SO", "so") == 0.25
    partial.close()
    assert reward(scorer, f"{USER}:contains|boxed", r"\boxed{so}", "so") == 1
    assert not verifier(f"{USER}:contains|partial")("SO", "so")


def test_verifiers_of_ones_own_are_found_by_reference_by_registration_and_by_entry_point(scorer: Scorer) -> None:
    register("contains", "scoring.user_rules:contains")
    assert reward(scorer, "contains", "it says so", "so") == 1
    assert reward(scorer, "contains", "it says so", "so", '{"strict":true}') == 0
    assert reward(scorer, "says", "it says so", "so") == 1
    assert reward(scorer, f"{USER}:Inner.same", "so", "so") == 1
    for name, function, message in (
        ("contains", "scoring.user_rules:raises", "verifier called contains"),
        ("lambda", "<lambda>", "must be python:MODULE:FUNCTION"),
        ("exact", "scoring.user_rules:contains", "verifier cannot be called"),
    ):
        with pytest.raises(RolloutError, match=message):
            register(name, function)


def test_a_verifier_that_breaks_on_a_response_says_how(scorer: Scorer) -> None:
    names = (f"{USER}:raises", f"{USER}:wrong_type")
    verdicts = scorer.submit([Item(verifier=name, response="x", answer="x") for name in names]).result(timeout=60)
    assert [v.reward for v in verdicts] == [0, 0]
    assert [v.error for v in verdicts] == [
        "error: ValueError",
        "error: a verifier must return a number from 0 to 1, not str",
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nonsense", "called 'nonsense'"),
        ("exact|last", "extraction called 'last'"),
        ("exact|after:", "after: of a verifier"),
        ("exact|regex:", "regex: of a verifier"),
        ("exact|regex:(", r"'\(' of a verifier cannot"),
        ("python:os", "verifier python:os must be"),
        (f"{USER}:nothing", "user_rules:nothing"),
        ("python:no_such_module:f", "named 'no_such_module'.;"),
        (f"{USER}:not_a_function", "is no function but of type int"),
        ("reasoning_gym:nonsense", "refuses the task 'nonsense'"),
    ],
)
def test_a_rule_that_cannot_be_used_is_refused_with_a_reason(name: str, message: str) -> None:
    if name.startswith("reasoning_gym"):
        pytest.importorskip("reasoning_gym")
    with pytest.raises(RolloutError, match=f"^.*{message}"):
        verifier(name)


@pytest.mark.parametrize(
    ("name", "answer", "metadata", "message"),
    [
        ("math", "", "", "no value in the reference"),
        ("python:os:getcwd", "4", "[1", "not a JSON mapping"),
        ("reasoning_gym:sudoku", "4", "[1", "not a JSON mapping"),
        ("reasoning_gym:gcd", "4", '{"settings": {"nonsense": 1}}', "'gcd':"),
        # Too deep to be copied, which raises in the judge's own code.
        ("reasoning_gym:gcd", "4", '{"settings": {"a": ' + "[" * 900 + "]" * 900 + "}}", "RecursionError|refuses"),
    ],
)
def test_a_problem_that_no_rule_can_score_is_at_fault_itself(
    name: str, answer: str, metadata: str, message: str
) -> None:
    pytest.importorskip("math_verify")
    pytest.importorskip("reasoning_gym")
    with pytest.raises(ProblemError, match=message):
        verifier(name)("4", answer, metadata)


def test_metadata_come_back_as_a_scorer_compares_them() -> None:
    value = {"a": (1, (2, [3])), "b": {4: {"x"}}, "c": np.int64(5), "d": np.eye(1), "e": datetime.date(2026, 1, 2)}
    text = encode_metadata(value)
    assert json.loads(text)
    expected = {"a": (1, (2, [3])), "b": {"4": ["x"]}, "c": 5, "d": [[1.0]], "e": "2026-01-02"}
    assert decode_metadata(text, where="x") == expected

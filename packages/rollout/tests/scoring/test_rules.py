"""Rules by name: extraction, partial rewards, verifiers of one's own, and what is refused."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from isocompute.rollout import RolloutError, verifier
from isocompute.rollout.scoring.config import ScoringConfig
from isocompute.rollout.scoring.rules import extraction, register, rule
from isocompute.rollout.scoring.scorer import Item, Scorer

pytestmark = pytest.mark.slow("sandboxes of several libraries")

OWN = '''
def contains(response, answer, metadata):
    """Right where the answer occurs; a fraction where it does but for case."""
    if metadata.get("strict") and response != answer:
        return False
    return 1.0 if answer in response else 0.25 * (answer.lower() in response.lower())


def wrong_type(response, answer, metadata):
    return "1"


def raises(response, answer, metadata):
    raise ValueError("no " + response + "\\nsecond line")


class Inner:
    same = staticmethod(lambda response, answer, metadata: response == answer)


not_a_function = 3
'''


@pytest.fixture(scope="module", autouse=True)
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("rules")
    (folder / "rules_of_a_user.py").write_text(OWN)
    (folder / "rules_of_a_user-1.dist-info").mkdir()
    (folder / "rules_of_a_user-1.dist-info" / "METADATA").write_text("Name: rules-of-a-user\nVersion: 1\n")
    (folder / "rules_of_a_user-1.dist-info" / "entry_points.txt").write_text(
        "[isocompute.rollout.verifiers]\nsays = rules_of_a_user:contains\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield


@pytest.fixture(scope="module")
def scorer(own: None) -> Iterator[Scorer]:
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
        (["boxed"], "so \\boxed 3\nas asked", "3"),
        (["boxed"], r"\boxed {1}", "1"),
        (["boxed"], r"\boxed{1} and $\boxed 2$", "2"),
        (["boxed"], r"\boxed", None),
        (["boxed"], r"\boxedness{1}", None),
        (["boxed"], r"$\fbox{3}$", "3"),
        (["boxed"], r"\boxed{1} and \fbox{2}", "1"),
        (["boxed"], r"\fbox{1} and \boxed{2", None),
        (["boxed"], r"\boxed{\left\{ 1 \right.}", r"\left\{ 1 \right."),
        (["boxed"], r"\boxed{a \\ \{b\}}", r"a \\ \{b\}"),
        (["boxed"], "1", None),
        (["last_line"], "a\n b \n\n", "b"),
        (["last_line"], " \n", None),
        (["after:####"], "1 #### 2 #### 3 ", "3"),
        (["after:####"], "3", "3"),
        (["regex:#### (\\d+)"], "#### 1 #### 23", "23"),
        (["regex:\\d|x"], "1 x", "x"),
        (["regex:\\d"], "x", None),
        (["last_line", "after:="], "9=8\n1+1 = 2", "2"),
    ],
)
def test_an_answer_is_extracted_from_a_response(words: list[str], response: str, found: str | None) -> None:
    assert extraction(words)(response) == found


def test_extraction_stands_after_a_rule_and_a_pattern_takes_the_rest() -> None:
    assert rule("exact|last_line|after:=").words == ("last_line", "after:=")
    assert rule("exact|regex:(a|partial)|b").words == ("regex:(a|partial)|b",)
    assert rule("exact|partial|boxed").partial
    assert verifier("exact|boxed")(r"so \boxed{4}", "4")
    assert not verifier("exact|boxed")("4", "4")
    assert verifier("exact|regex:(\\d+)\\D*$")("1 or 42.", "42")
    assert rule("exact|after:####|boxed").written("7") == "####\\boxed{7}"


def test_a_pattern_that_takes_for_ever_is_ended() -> None:
    scorer = Scorer(ScoringConfig(seconds=0.5, wall_factor=1000))
    name = "exact|regex:^(a+)+$"
    batch = [Item(verifier=name, response=text, answer="aa") for text in ("a" * 60 + "!", "aa")]
    late, right = scorer.submit(batch).result(timeout=60)
    scorer.close()
    assert late.error == "deadline: more than 0.5 s of processor time"
    assert (late.reward, right.reward) == (0, 1)


def test_chain_sum_takes_the_end_of_a_worked_solution() -> None:
    pytest.importorskip("reasoning_gym")
    assert rule("reasoning_gym:chain_sum").words == ("after:=",)
    assert verifier("reasoning_gym:chain_sum")("2+3+5=5+5=10", "10")
    assert verifier("reasoning_gym:chain_sum|last_line")("no\n10", "10")
    assert not verifier("reasoning_gym:chain_sum|last_line")("5=10", "10")


def test_a_fraction_is_a_reward_only_where_asked_for(scorer: Scorer) -> None:
    assert reward(scorer, "python:rules_of_a_user:contains", "SO", "so") == 0
    assert reward(scorer, "python:rules_of_a_user:contains|partial", "SO", "so") == 0.25
    partial = Scorer(ScoringConfig(partial=True))
    assert reward(partial, "python:rules_of_a_user:contains", "SO", "so") == 0.25
    partial.close()
    assert reward(scorer, "python:rules_of_a_user:contains|boxed", r"\boxed{so}", "so") == 1
    assert not verifier("python:rules_of_a_user:contains|partial")("SO", "so")


def test_verifiers_of_ones_own_are_found_by_reference_by_registration_and_by_entry_point(scorer: Scorer) -> None:
    register("contains", "rules_of_a_user:contains")
    assert reward(scorer, "contains", "it says so", "so") == 1
    assert reward(scorer, "contains", "it says so", "so", '{"strict":true}') == 0
    assert reward(scorer, "says", "it says so", "so") == 1
    assert reward(scorer, "python:rules_of_a_user:Inner.same", "so", "so") == 1
    import rules_of_a_user

    register("given", rules_of_a_user.contains)
    assert rule("given").base == "python:rules_of_a_user:contains"
    with pytest.raises(RolloutError, match="verifier called contains"):
        register("contains", "rules_of_a_user:raises")
    with pytest.raises(RolloutError, match=r"cannot be imported as .*<lambda>|must be python:MODULE:FUNCTION"):
        register("lambda", lambda *_: True)
    with pytest.raises(RolloutError, match="verifier cannot be called"):
        register("exact", "rules_of_a_user:contains")


def test_a_verifier_that_breaks_on_a_response_says_how(scorer: Scorer) -> None:
    names = ("python:rules_of_a_user:raises", "python:rules_of_a_user:wrong_type")
    verdicts = scorer.submit([Item(verifier=name, response="x", answer="x") for name in names]).result(timeout=60)
    assert [v.reward for v in verdicts] == [0, 0]
    assert [v.error for v in verdicts] == [
        "error: ValueError: no x second line",
        "error: a verifier must return a number from 0 to 1, not str",
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nonsense", "called 'nonsense'"),
        ("", "there is no verifier called ''"),
        ("exact|last", "extraction called 'last'"),
        ("exact|after:", "after: of a verifier"),
        ("exact|regex:", "regex: of a verifier"),
        ("exact|regex:(", r"'\(' of a verifier cannot"),
        ("python:os", "verifier python:os must be"),
        ("python:rules_of_a_user:nothing", "rules_of_a_user:nothing"),
        ("python:no_such_module:f", "named 'no_such_module'.;"),
        ("python:rules_of_a_user:not_a_function", "is no function but of type int"),
        ("reasoning_gym:nonsense", "refuses the task 'nonsense'"),
        ("reasoning_gym:composite", "task composite is refused"),
    ],
)
def test_a_rule_that_cannot_be_used_is_refused_with_a_reason(name: str, message: str) -> None:
    if name.startswith("reasoning_gym"):
        pytest.importorskip("reasoning_gym")
    with pytest.raises(RolloutError, match=f"^.*{message}"):
        verifier(name)


def test_a_response_met_again_is_not_scored_again(tmp_path: Path) -> None:
    scorer = Scorer()
    item = Item(verifier="python:rules_of_a_user:contains", response="so", answer="so")
    scorer.submit([item] * 5).result(timeout=60)
    scorer.close()
    # Known by now: done at once, and no process is started.
    assert scorer.submit([item] * 5).done()
    assert not scorer._pools
    assert "rules_of_a_user" not in sys.modules or sys.modules["rules_of_a_user"].__file__

"""Which made responses are right, and how often a rule is mistaken about them."""

import json
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.rollout import RolloutError
from isocompute.rollout.cli import main
from isocompute.rollout.scoring import Item, default_scorer
from isocompute.rollout.scoring.audit import Row, alike, audit, compare, golds_of, made_of, number_of


def problems(answers: list[str], verifier: str) -> pl.DataFrame:
    ids = [f"p{k}" for k in range(len(answers))]
    asked = [f"What is number {k}?" for k in range(len(answers))]
    return pl.DataFrame({"problem_id": ids, "prompt": asked, "answer": answers, "verifier": verifier})


def shares(rows: list[Row]) -> dict[str, float]:
    return {row.form: row.share for row in rows}


def test_a_comparison_takes_one_way_of_writing_and_no_wrong_answer() -> None:
    rows = audit(problems(["12", "-7", "1500", "3/4"], "exact|boxed"), default_scorer())
    found = shares(rows)
    assert found["as the rule asks for it"] == found["after a sentence"] == 1.0
    # Each is right, and a text comparison refuses it.
    assert found["as a decimal"] == found["with separators of thousands"] == found["as a fraction of LaTeX"] == 0.0
    assert all(row.accepted == 0 for row in rows if not row.right)
    refused = next(row for row in rows if row.form == "as a decimal")
    assert refused.mistakes[0].response == "\\boxed{12.0}"


@pytest.mark.slow
def test_a_rule_that_looks_for_the_answer_anywhere_is_caught() -> None:
    rows = audit(problems([str(k) for k in range(12)], r"exact|regex:\d+"), default_scorer())
    (others,) = (row for row in rows if row.form == "this one or another")
    assert others.share == 1.0
    assert others.mistakes


@pytest.mark.slow
def test_math_reads_the_ways_of_writing_a_number() -> None:
    pytest.importorskip("math_verify")
    rows = audit(problems(["12", "-7", "1500", "3/4"], "math|boxed"), default_scorer())
    assert {row.form: row.share for row in rows if row.right} == {row.form: 1.0 for row in rows if row.right}
    assert (
        sum(row.accepted for row in rows if row.form in ("one more", "the negative", "another problem's answer")) == 0
    )


@pytest.mark.slow
def test_two_rules_are_compared_on_the_same_responses() -> None:
    texts = ["7", "7.0", "8", "7 apples"]
    answered = [(Item(verifier="exact", response=text, answer="7"), "p0") for text in texts]
    rows = compare(answered, r"exact|regex:\d+", default_scorer())
    right, wrong = rows
    assert (right.right, right.accepted, right.responses) == (True, 1, 2)
    assert (wrong.right, wrong.accepted, wrong.responses) == (False, 0, 2)
    assert [mistake.response for mistake in right.mistakes] == ["7 apples"]


def test_a_rule_that_executes_responses_is_refused() -> None:
    with pytest.raises(RolloutError, match="executes responses and its answers are tests"):
        golds_of(problems(["[]"], "runs"))


@given(st.lists(st.integers(-3000, 3000).map(str) | st.sampled_from(["3/4", "0.5", "x+1", "yes"]), min_size=1))
def test_a_made_response_is_of_the_right_answer_or_of_another(answers: list[str]) -> None:
    for gold in golds_of(problems(answers, "exact")):
        assert not alike(gold.other, gold.answer)
        made = {form.name: (form.right, text) for form, text in made_of(gold)}
        for name in ("as a decimal", "with separators of thousands"):
            if name in made:
                assert number_of(made[name][1].replace(",", "")) == gold.number
        for name in ("one more", "the negative", "another problem's answer"):
            if name in made:
                assert not alike(made[name][1], gold.answer)


def test_the_command_says_rates_and_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = problems(["12", "-7", "1500"], "exact|boxed").with_columns(source=pl.lit("own"), split=pl.lit("train"))
    table.write_parquet(tmp_path / "problems.parquet")
    made = tmp_path / "audit.json"
    assert main(["audit-verifier", str(tmp_path / "problems.parquet"), "--json", str(made)]) == 0
    said = capsys.readouterr().out
    assert "exact|boxed: made responses to 3 problems" in said
    assert "false positives: 0.0% (0.0% to" in said
    assert "refused, and right: '\\\\boxed{12.0}' for '12' (p0)" in said
    rows = json.loads(made.read_text())["made"]
    assert {row["form"] for row in rows if row["accepted"] < row["responses"]} > {"as a decimal"}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--reference", "math"], "--rollouts and --reference go together"),
        (["--verifier", "nothing"], "there is no verifier called 'nothing'"),
        (["--limit", "0"], "--limit is 0; it must be at least 1"),
    ],
)
def test_a_wrong_question_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    table = problems(["12"], "exact").with_columns(source=pl.lit("own"), split=pl.lit("train"))
    table.write_parquet(tmp_path / "problems.parquet")
    assert main(["audit-verifier", str(tmp_path / "problems.parquet"), *more]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1

"""Problems that no response can be scored for: a fault of theirs, and of no response."""

from pathlib import Path

import polars as pl
import pytest
from isocompute.rollout import RolloutError, load_checked, source_from, verifier
from isocompute.rollout.errors import ProblemError
from isocompute.rollout.scoring.evaluation import without_unusable
from isocompute.rollout.scoring.scorer import Item, default_scorer

pytestmark = pytest.mark.slow("sandboxes, one after another")

DEEP = '{"settings": {"a": ' + "[" * 900 + "]" * 900 + "}}"
"""Settings too deep to be copied: what prepares the task's scorer raises, in the judge's own code."""
REFUSED = '{"settings": {"nonsense": 1}}'


def test_a_judge_that_raises_in_prepare_is_a_fault_of_the_problem_and_earns_no_response_a_zero() -> None:
    pytest.importorskip("reasoning_gym")
    with pytest.raises(ProblemError, match=r"reasoning_gym:gcd .*(RecursionError|refuses)"):
        verifier("reasoning_gym:gcd")("4", "4", DEEP)
    scorer = default_scorer()
    items = [Item(verifier="reasoning_gym:gcd", response=text, answer="4") for text in ("4", "5")]
    broken = scorer.submit([Item(verifier="reasoning_gym:gcd", response="4", answer="4", metadata=DEEP)], hold=True)
    whole = scorer.submit(items, hold=True)
    scorer.flush()
    # Others that were sent with it are scored, and by the same process.
    assert [verdict.reward for verdict in whole.result(timeout=60)] == [1, 0]
    assert isinstance(broken.exception(timeout=60), ProblemError)


def test_an_answer_that_math_verify_cannot_read_is_a_fault_of_the_problem() -> None:
    pytest.importorskip("math_verify")
    with pytest.raises(ProblemError, match="no value in the reference"):
        verifier("math")(r"\boxed{3}", "")


def test_metadata_that_a_rule_of_ones_own_cannot_be_given_are_a_fault_of_the_problem() -> None:
    with pytest.raises(ProblemError, match="not a JSON mapping"):
        verifier("python:os:getcwd")("4", "4", "[1")


def test_unusable_problems_are_left_out_with_a_reason() -> None:
    pytest.importorskip("reasoning_gym")
    problems = pl.DataFrame(
        {
            "problem_id": list("abcde"),
            "prompt": "p",
            "answer": "4",
            "verifier": ["reasoning_gym:gcd", "reasoning_gym:gcd", "reasoning_gym:sudoku", "python:os:getcwd", "exact"],
            "source": "s",
            "split": "train",
            "metadata": ["", DEEP, "", "[1", ""],
        }
    )
    usable, dropped = without_unusable(problems, default_scorer())
    assert usable["problem_id"].to_list() == ["a", "e"]
    assert dropped["problem_id"].to_list() == ["b", "c", "d"]
    assert "make the problems table again" in dropped["reason"][1]
    with pytest.raises(RolloutError, match="3 problems can be scored,"):
        without_unusable(problems.filter(pl.col("problem_id").is_in(list("bcd"))), default_scorer())


def test_a_source_lists_a_problem_that_cannot_be_scored_and_takes_the_next(tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym")
    rows = {
        "prompt": [f"q{i}" for i in range(200)],
        "answer": "4",
        "note": [REFUSED if i == 5 else "" for i in range(200)],
    }
    pl.DataFrame(rows).write_parquet(tmp_path / "own.parquet")
    own = {"kind": "file", "path": str(tmp_path / "own.parquet"), "verifier": "reasoning_gym:gcd", "metadata": "note"}
    loaded = load_checked(source_from({**own, "train": 99, "validation": 100}))
    assert len(loaded.problems) == 199
    [row] = loaded.dropped.iter_rows(named=True)
    assert row["prompt"] == "q5"
    assert row["reason"].startswith("reasoning-gym refuses the task 'gcd'")

"""Verdicts: own answers, settings and metadata."""

import json
from itertools import islice
from typing import Any

import pytest
from isocompute.rollout import RolloutError, verifier
from isocompute.rollout.problems.reasoning_gym import candidates
from isocompute.rollout.problems.sources import ReasoningGymSource
from isocompute.rollout.scoring import rules

pytestmark = pytest.mark.slow("sandboxes of several libraries")


def first(task: str, **settings: Any) -> Any:
    """The first problem of a task."""
    pytest.importorskip("reasoning_gym")
    return next(iter(candidates(ReasoningGymSource(task=task, settings=settings, train=1, validation=1))))


@pytest.mark.parametrize("task", ["sudoku", "arc_agi", "time_intervals", "word_ladder", "knight_swap", "cryptarithm"])
def test_a_scorer_that_reads_metadata_takes_its_own_answer(task: str) -> None:
    problem = first(task)
    right = verifier(problem.verifier)
    assert right(problem.answer, problem.answer, problem.metadata)
    assert not right("nonsense", problem.answer, problem.metadata)


def test_a_scorer_without_the_metadata_it_reads_says_so() -> None:
    problem = first("sudoku")
    with pytest.raises(RolloutError, match="sudoku needs the metadata"):
        verifier(problem.verifier)(problem.answer, problem.answer)
    assert verifier("reasoning_gym:gcd")("4", "4")
    with pytest.raises(RolloutError, match="not a JSON mapping"):
        verifier(problem.verifier)(problem.answer, problem.answer, "[1")


def test_the_scorer_has_the_tasks_own_settings() -> None:
    coarse = first("decimal_arithmetic", max_num_decimal_places=3)
    fine = first("decimal_arithmetic", max_num_decimal_places=8)
    right = verifier("reasoning_gym:decimal_arithmetic")
    # The tolerance is one unit in the last place that the settings allow.
    assert right("1.0005", "1", coarse.metadata)
    assert not right("1.0005", "1", fine.metadata)
    refused = rules.encode_metadata({"settings": {"nonsense": 1}})
    with pytest.raises(RolloutError, match="'decimal_arithmetic':"):
        right("1", "1", refused)


def test_metadata_come_back_as_a_scorer_compares_them() -> None:
    import datetime

    import numpy as np

    value = {"a": (1, (2, [3])), "b": {4: {"x"}}, "c": np.int64(5), "d": np.eye(1), "e": datetime.date(2026, 1, 2)}
    text = rules.encode_metadata(value)
    assert json.loads(text)
    assert rules.decode_metadata(text, where="x") == {
        "a": (1, (2, [3])),
        "b": {"4": ["x"]},
        "c": 5,
        "d": [[1.0]],
        "e": "2026-01-02",
    }


def test_a_verdict_met_again_costs_no_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = first("sudoku")
    right = verifier(problem.verifier)
    assert right(problem.answer, problem.answer, problem.metadata)
    plain = verifier("reasoning_gym:chain_sum")
    monkeypatch.setattr(rules, "decode_metadata", None)
    assert right(problem.answer, problem.answer, "".join(problem.metadata))
    assert plain("5=10", "10", first("chain_sum").metadata)


def test_two_entries_of_one_task_are_two_problems() -> None:
    pytest.importorskip("reasoning_gym")
    source = ReasoningGymSource(task="sudoku", train=1, validation=1)
    one, two = islice(candidates(source), 2)
    assert not verifier(one.verifier)(one.answer, two.answer, two.metadata)

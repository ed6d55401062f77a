import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.learner.errors import LearnerError
from isocompute.learner.objective.loss import AGGREGATIONS

ROWS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=12)


def columns(rows: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    tokens, groups = np.array(rows).T
    return tokens, np.unique(groups, return_inverse=True)[1]


def test_each_counts_what_its_name_says() -> None:
    """Responses of 1, 3 and 4 tokens; the first two in one group."""
    tokens, groups = np.array([1, 3, 4]), np.array([0, 0, 1])
    assert AGGREGATIONS["token"](tokens, groups) == pytest.approx(np.full(3, 1 / 8))
    assert AGGREGATIONS["sequence"](tokens, groups) == pytest.approx([1 / 3, 1 / 9, 1 / 12])
    assert AGGREGATIONS["prompt"](tokens, groups) == pytest.approx(np.full(3, 1 / 8))
    assert AGGREGATIONS["prompt"](tokens, np.array([0, 1, 1])) == pytest.approx([1 / 2, 1 / 14, 1 / 14])
    assert AGGREGATIONS["constant"](tokens, groups, constant_length=10) == pytest.approx(np.full(3, 1 / 30))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["token", "sequence", "prompt"])
@given(ROWS)
def test_a_loss_of_1_for_every_token_is_1(name: str, rows: list[tuple[int, int]]) -> None:
    tokens, groups = columns(rows)
    assert (AGGREGATIONS[name](tokens, groups) * tokens).sum() == pytest.approx(1.0 if tokens.any() else 0.0)


@given(ROWS)
def test_a_constant_length_knows_no_length(rows: list[tuple[int, int]]) -> None:
    tokens, groups = columns(rows)
    weights = AGGREGATIONS["constant"](tokens, groups, constant_length=20)
    # A response of 20 tokens would count in full, one of 5 a quarter.
    assert (weights * tokens).sum() == pytest.approx(tokens.sum() / 20 / max(1, np.count_nonzero(tokens)))


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_responses_without_tokens_change_nothing(name: str) -> None:
    tokens, groups = np.array([2, 3]), np.array([0, 1])
    more = AGGREGATIONS[name](np.array([2, 0, 3, 0]), np.array([0, 0, 1, 2]), constant_length=8)
    assert more[[0, 2]] == pytest.approx(AGGREGATIONS[name](tokens, groups, constant_length=8))
    assert len(AGGREGATIONS[name](np.zeros(0, int), np.zeros(0, int), constant_length=8)) == 0


def test_a_constant_length_must_be_given() -> None:
    with pytest.raises(LearnerError, match="constant_length"):
        AGGREGATIONS["constant"](np.array([1]), np.array([0]))

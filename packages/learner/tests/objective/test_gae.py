import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.learner.objective.advantages import Ragged, gae, whitened

NUMBERS = st.floats(-2, 2)
ROWS = st.lists(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=6), min_size=1, max_size=5)
SHARES = st.sampled_from([0.0, 0.5, 0.95, 1.0])


def ragged(rows: list[list[float]]) -> Ragged:
    return Ragged(values=np.array([x for row in rows for x in row], float), lengths=np.array([len(r) for r in rows]))


@given(ROWS, SHARES, SHARES)
def test_advantages_are_discounted_sums_of_temporal_differences(
    rows: list[list[tuple[float, float]]], discount: float, gae_lambda: float
) -> None:
    """Equation 16 of the paper, written out row by row."""
    rewards, values = (ragged([[pair[i] for pair in row] for row in rows]) for i in (0, 1))
    advantages, returns = gae(rewards, values, discount=discount, gae_lambda=gae_lambda)
    expected = []
    for row in rows:
        following = [value for _, value in (*row[1:], (0.0, 0.0))][: len(row)]
        deltas = [r + discount * v - value for (r, value), v in zip(row, following, strict=True)]
        expected += [
            sum((discount * gae_lambda) ** (later - here) * deltas[later] for later in range(here, len(row)))
            for here in range(len(row))
        ]
    assert advantages.values == pytest.approx(np.array(expected), abs=1e-9)
    assert returns.values == pytest.approx(advantages.values + values.values)
    assert (advantages.lengths == rewards.lengths).all()


def test_with_both_at_1_a_return_is_the_sum_of_the_rewards_to_come() -> None:
    rewards, values = ragged([[0, 0, 1], [0.5]]), ragged([[0.3, -2, 0.7], [9]])
    _, returns = gae(rewards, values, discount=1.0, gae_lambda=1.0)
    assert returns.values == pytest.approx([1, 1, 1, 0.5])


def test_a_response_knows_nothing_of_the_others() -> None:
    alone, _ = gae(ragged([[0, 1]]), ragged([[0.2, 0.4]]), discount=0.9, gae_lambda=0.8)
    beside, _ = gae(ragged([[5, 5, 5], [0, 1], []]), ragged([[7, 7, 7], [0.2, 0.4], []]), discount=0.9, gae_lambda=0.8)
    assert beside.values[3:] == pytest.approx(alone.values)


@pytest.mark.parametrize(("std", "ddof"), [("sample", 1), ("population", 0)])
@given(st.lists(st.integers(-5, 5), min_size=2, max_size=20).filter(lambda values: len(set(values)) > 1))
def test_whitened_advantages_have_no_mean_and_a_variance_of_1(std: str, ddof: int, values: list[int]) -> None:
    found = whitened(np.array(values, float), std=std)
    assert found.mean() == pytest.approx(0.0, abs=1e-9)
    assert found.var(ddof=ddof) == pytest.approx(1.0, abs=1e-6)
    assert (np.argsort(found, kind="stable") == np.argsort(values, kind="stable")).all()


def test_one_token_or_equal_ones_are_whitened_to_0() -> None:
    assert whitened(np.array([3.0])).tolist() == [0.0]
    assert whitened(np.full(4, 3.0)).tolist() == [0.0] * 4
    assert len(whitened(np.zeros(0))) == 0

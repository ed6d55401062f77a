"""Advantages of responses and of tokens, and the cohorts that responses fall into."""

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.learner.batch.responses import Lists
from isocompute.learner.config import BatchConfig
from isocompute.learner.errors import LearnerError
from isocompute.learner.objective.advantages import (
    gae,
    group_advantages,
    listed,
    ragged,
    response_advantages,
    whitened,
    with_cohorts,
)

GROUPS = st.lists(st.lists(st.floats(0, 1, width=32), min_size=2, max_size=16), min_size=1, max_size=5)
PAIRS = [("group", "none"), ("group", "group"), ("group", "batch"), ("batch", "none"), ("batch", "batch")]


def joined(groups: list[list[float]]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate(groups).astype(float), np.repeat(np.arange(len(groups)), [len(g) for g in groups])


@pytest.mark.slow
@pytest.mark.parametrize(("std", "correction"), [("sample", 1), ("population", 0)])
@pytest.mark.parametrize(("baseline", "scale"), PAIRS)
@given(GROUPS)
@settings(max_examples=15)
def test_advantages_are_the_formula_written_out_with_torch(
    baseline: str, scale: str, std: str, correction: int, groups: list[list[float]]
) -> None:
    """``torch.std`` divides by n − 1 by default, as veRL and TRL do."""
    rewards, index = joined(groups)
    found = response_advantages(rewards, index, baseline=baseline, scale=scale, std=std)
    tensors = [torch.tensor(group, dtype=torch.float64) for group in groups]
    mean = torch.cat(tensors).mean()
    centred = [group - (group.mean() if baseline == "group" else mean) for group in tensors]
    whole = torch.std(torch.cat(centred), correction=correction)
    for i, group in enumerate(centred):
        divisor = {"none": 1.0, "group": torch.std(group, correction=correction) + 1e-6, "batch": whole + 1e-6}[scale]
        assert found[index == i] == pytest.approx((group / divisor).numpy(), abs=1e-6)


@given(GROUPS, st.floats(0.1, 0.9))
def test_equal_rewards_have_an_advantage_of_exactly_0(groups: list[list[float]], reward: float) -> None:
    """Though the mean of three times 0.1 is not 0.1."""
    rewards, index = joined([*groups, [reward] * 3])
    for baseline, scale in PAIRS:
        if baseline == "group":
            assert (response_advantages(rewards, index, scale=scale)[-3:] == 0.0).all()
        assert (response_advantages(np.full(7, reward), np.zeros(7), baseline=baseline, scale=scale) == 0.0).all()


def test_a_group_of_one_is_refused_where_its_mean_is_needed() -> None:
    one = np.array([1.0]), np.array([0])
    with pytest.raises(LearnerError, match=r"rollouts_per_problem"):
        group_advantages(*one)
    assert response_advantages(*one, baseline="batch", scale="batch").tolist() == [0.0]
    both = response_advantages(np.array([1.0, 0.0]), np.array([0, 1]), baseline="batch", scale="batch")
    assert both == pytest.approx([0.5**0.5, -(0.5**0.5)], abs=1e-5)


NUMBERS = st.floats(-2, 2)
PAIRS_OF_ROWS = st.lists(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=6), min_size=1, max_size=5)
SHARES = st.sampled_from([0.0, 0.5, 0.95, 1.0])


def rows_of(rows: list[list[float]]) -> Lists:
    return Lists.of(np.array([x for row in rows for x in row], float), np.array([len(r) for r in rows]))


@given(PAIRS_OF_ROWS, SHARES, SHARES)
def test_advantages_are_discounted_sums_of_temporal_differences(
    rows: list[list[tuple[float, float]]], discount: float, gae_lambda: float
) -> None:
    """Equation 16 of the paper, written out row by row."""
    rewards, values = (rows_of([[pair[i] for pair in row] for row in rows]) for i in (0, 1))
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


@given(st.lists(st.integers(-5, 5), min_size=2, max_size=20).filter(lambda values: len(set(values)) > 1))
def test_whitened_advantages_have_no_mean_and_a_variance_of_1(values: list[int]) -> None:
    for std, ddof in (("sample", 1), ("population", 0)):
        found = whitened(np.array(values, float), std=std)
        assert found == pytest.approx((values - np.mean(values)) / np.std(values, ddof=ddof), abs=1e-6)
    assert whitened(np.array([3.0])).tolist() == [0.0]


LISTS = st.lists(st.lists(st.floats(-4, 4, width=32), max_size=5), min_size=1, max_size=6)


@given(LISTS)
def test_lists_are_read_and_written_again(rows: list[list[float]]) -> None:
    table = pl.DataFrame({"values": pl.Series(rows, dtype=pl.List(pl.Float32))})
    lengths = np.array([len(row) for row in rows])
    found = ragged(table, "values", lengths)
    assert listed("values", found).to_list() == rows
    assert found.sums() == pytest.approx([sum(row) for row in rows])
    matrix = found.padded()
    assert (matrix[found.mask] == found.values).all()
    assert not matrix[~found.mask].any()
    assert [found.values[place] for place in found.last] == [row[-1] for row in rows if row]
    # A part of a table, whose lists do not begin at the start of a buffer.
    assert ragged(table[1:], "values", lengths[1:]).values.tolist() == [x for row in rows[1:] for x in row]


def table(rewards: list[float], problems: list[str], reasons: list[str]) -> pl.DataFrame:
    return pl.DataFrame(
        {"reward": rewards, "problem_id": problems, "finish_reason": reasons, "sample": range(len(rewards))}
    )


def cohorts(batch: pl.DataFrame, **settings: object) -> list[str]:
    return with_cohorts(batch, BatchConfig(**settings))["cohort"].to_list()


def test_cohorts_are_a_partition() -> None:
    batch = table([1, 0, 1, 1, 0], ["a", "a", "b", "b", "b"], ["stop", "stop", "stop", "length", "aborted"])
    assert cohorts(batch) == ["trained", "trained", "trained", "trained", "failed"]
    assert cohorts(batch, filter_zero_variance=True) == ["trained", "trained", "filtered", "filtered", "failed"]
    assert with_cohorts(batch, BatchConfig())["zero_variance"].to_list() == [False, False, True, True, False]


def test_the_first_completed_responses_of_a_group_are_trained_on() -> None:
    reasons = ["stop", "aborted", "stop", "stop", "stop", "stop", "stop"]
    batch = table([1, 0, 1, 0, 1, 0, 1], ["a"] * 4 + ["b"] * 3, reasons)
    expected = ["trained", "failed", "trained", "filtered", "trained", "trained", "filtered"]
    assert cohorts(batch, trained_rollouts=2) == expected
    # By their number, wherever they stand in the table.
    assert cohorts(batch.reverse(), trained_rollouts=2) == expected[::-1]
    assert cohorts(batch, trained_rollouts=9) == cohorts(batch)
    # The first two of rewards 1, 1, 0 teach something: the baseline is that of all three.
    in_part = BatchConfig(trained_rollouts=2, filter_zero_variance=True)
    found = with_cohorts(table([1, 1, 0], ["a"] * 3, ["stop"] * 3), in_part)
    assert found["cohort"].to_list() == ["trained", "trained", "filtered"]
    assert not found["zero_variance"].any()

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from isocompute.learner.errors import LearnerError
from isocompute.learner.objective.advantages import group_advantages, with_advantages, with_cohorts


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=6), min_size=1, max_size=5))
def test_advantages_are_centred_and_scaled_within_each_group(groups: list[list[float]]) -> None:
    rewards = np.array([r for g in groups for r in g])
    index = np.array([i for i, g in enumerate(groups) for _ in g])
    advantages = group_advantages(rewards, index)
    for i, group in enumerate(groups):
        own = advantages[index == i]
        assert own.mean() == pytest.approx(0.0, abs=1e-9)
        if len(set(group)) == 1:
            assert (own == 0.0).all()
        else:
            assert own.std(ddof=1) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(("std", "correction"), [("sample", 1), ("population", 0)])
@given(st.lists(st.lists(st.floats(0, 1, width=32), min_size=2, max_size=16), min_size=1, max_size=5))
def test_advantages_are_those_of_torch(std: str, correction: int, groups: list[list[float]]) -> None:
    """``torch.std`` divides by n − 1 by default, as veRL and TRL do."""
    index = np.array([i for i, g in enumerate(groups) for _ in g])
    found = group_advantages(np.concatenate(groups), index, std=std)
    for i, group in enumerate(groups):
        rewards = torch.tensor(group, dtype=torch.float64)
        deviation = torch.std(rewards) if std == "sample" else torch.std(rewards, correction=correction)
        expected = (rewards - rewards.mean()) / (deviation + 1e-6)
        assert found[index == i] == pytest.approx(expected.numpy(), abs=1e-6)


def test_the_two_standard_deviations_differ_by_a_factor_that_depends_on_n() -> None:
    rewards, group = np.array([1.0, 0.0, 0.0, 0.0]), np.zeros(4, dtype=int)
    assert group_advantages(rewards, group) == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)
    for n in (2, 4, 64):
        rewards, group = np.arange(n) % 2 * 1.0, np.zeros(n, dtype=int)
        ratio = group_advantages(rewards, group, std="population") / group_advantages(rewards, group)
        assert ratio == pytest.approx(np.full(n, (n / (n - 1)) ** 0.5), rel=1e-5)


def test_a_table_takes_the_standard_deviation_it_is_asked_for() -> None:
    batch = table([1, 0, 1], ["a", "a", "a"], ["stop", "stop", "aborted"])
    sample = with_advantages(batch, filter_zero_variance=False)
    population = with_advantages(batch, filter_zero_variance=False, advantage_std="population")
    assert sample["advantage"].to_list() == pytest.approx([0.5**0.5, -(0.5**0.5), 0.0], abs=1e-5)
    assert population["advantage"].to_list() == pytest.approx([1.0, -1.0, 0.0], abs=1e-5)
    with pytest.raises(LearnerError, match="advantage_std is 'mad'; it must be one of sample, population"):
        with_advantages(batch, filter_zero_variance=False, advantage_std="mad")


def test_a_group_of_one_is_refused() -> None:
    with pytest.raises(LearnerError, match="rollouts_per_problem of 2 or more"):
        group_advantages(np.array([1.0]), np.array([0]))


def table(rewards: list[float], problems: list[str], reasons: list[str]) -> pl.DataFrame:
    return pl.DataFrame({"reward": rewards, "problem_id": problems, "finish_reason": reasons})


def test_cohorts_are_a_partition() -> None:
    batch = table([1, 0, 1, 1, 0], ["a", "a", "b", "b", "b"], ["stop", "stop", "stop", "length", "aborted"])
    kept = with_advantages(batch, filter_zero_variance=False)["cohort"].to_list()
    filtered = with_advantages(batch, filter_zero_variance=True)["cohort"].to_list()
    assert kept == ["trained", "trained", "trained", "trained", "failed"]
    assert filtered == ["trained", "trained", "filtered", "filtered", "failed"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 1.0, float("nan"), float("inf")]),
            st.sampled_from(["a", "b"]),
            st.sampled_from(["stop", "length", "aborted"]),
        ),
        min_size=1,
    ),
    st.booleans(),
)
def test_whatever_was_sampled_has_a_cohort(rows: list[tuple[float, str, str]], filtered: bool) -> None:
    """Also where no advantage can be made of it: it was paid for."""
    batch = table(*map(list, zip(*rows, strict=True)))
    cohorts = with_cohorts(batch, filter_zero_variance=filtered)["cohort"].to_list()
    assert [cohort == "failed" for cohort in cohorts] == [reason == "aborted" for _, _, reason in rows]
    assert set(cohorts) <= {"trained", "filtered", "failed"}


def test_the_middle_of_unequal_rewards_is_no_zero_variance() -> None:
    batch = table([0.0, 0.5, 1.0, 0.1, 0.1, 0.1], ["a"] * 3 + ["b"] * 3, ["stop"] * 6)
    found = with_advantages(batch, filter_zero_variance=True)
    assert found["cohort"].to_list() == ["trained"] * 3 + ["filtered"] * 3
    assert found["zero_variance"].to_list() == [False] * 3 + [True] * 3
    # Exactly 0, though the mean of three times 0.1 is not 0.1.
    assert found["advantage"].to_list()[3:] == [0.0] * 3


def test_a_reward_that_is_not_finite_is_refused() -> None:
    with pytest.raises(LearnerError, match="rollout 1 of the batch is not a finite number"):
        group_advantages(np.array([1.0, np.nan]), np.array([0, 0]))


def test_a_batch_of_failed_responses_has_no_advantages() -> None:
    found = with_advantages(table([0, 0], ["a", "a"], ["aborted"] * 2), filter_zero_variance=True)
    assert found["cohort"].to_list() == ["failed"] * 2

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.learner.errors import LearnerError
from isocompute.learner.objective.advantages import (
    BASELINES,
    SCALES,
    group_advantages,
    response_advantages,
    zero_variance,
)

GROUPS = st.lists(st.lists(st.floats(0, 1, width=32), min_size=2, max_size=16), min_size=1, max_size=5)


PAIRS = [(baseline, scale) for baseline in BASELINES for scale in SCALES if (baseline, scale) != ("batch", "group")]


def joined(groups: list[list[float]]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate(groups).astype(float), np.repeat(np.arange(len(groups)), [len(g) for g in groups])


@pytest.mark.slow
@given(st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=6), min_size=1, max_size=5))
def test_advantages_are_centred_and_scaled_within_each_group(groups: list[list[float]]) -> None:
    rewards, index = joined(groups)
    advantages = group_advantages(rewards, index)
    for i, group in enumerate(groups):
        own = advantages[index == i]
        assert own.mean() == pytest.approx(0.0, abs=1e-9)
        if len(set(group)) == 1:
            assert (own == 0.0).all()
        else:
            assert own.std(ddof=1) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("std", "correction"), [("sample", 1), ("population", 0)])
@pytest.mark.parametrize(("baseline", "scale"), PAIRS)
@given(GROUPS)
@settings(max_examples=25)
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


def test_the_two_standard_deviations_differ_by_a_factor_that_depends_on_n() -> None:
    rewards, group = np.array([1.0, 0.0, 0.0, 0.0]), np.zeros(4, dtype=int)
    assert group_advantages(rewards, group) == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)
    for n in (2, 4, 64):
        rewards, group = np.arange(n) % 2 * 1.0, np.zeros(n, dtype=int)
        ratio = group_advantages(rewards, group, std="population") / group_advantages(rewards, group)
        assert ratio == pytest.approx(np.full(n, (n / (n - 1)) ** 0.5), rel=1e-5)


@given(GROUPS, st.floats(0.1, 0.9))
def test_equal_rewards_have_an_advantage_of_exactly_0(groups: list[list[float]], reward: float) -> None:
    """Though the mean of three times 0.1 is not 0.1."""
    rewards, index = joined([*groups, [reward] * 3])
    for baseline, scale in PAIRS:
        if baseline == "group":
            assert (response_advantages(rewards, index, scale=scale)[-3:] == 0.0).all()
        assert (response_advantages(np.full(7, reward), np.zeros(7), baseline=baseline, scale=scale) == 0.0).all()


def test_the_order_of_rows_and_the_names_of_groups_do_not_matter() -> None:
    rewards, groups = np.array([1.0, 0.0, 0.5, 0.25, 0.0]), np.array([7, 3, 7, 3, 3])
    order = np.array([4, 2, 0, 1, 3])
    for baseline, scale in PAIRS:
        whole = response_advantages(rewards, groups, baseline=baseline, scale=scale)
        moved = response_advantages(rewards[order], groups[order] * 10, baseline=baseline, scale=scale)
        assert moved == pytest.approx(whole[order])


def test_a_group_of_one_is_refused_where_its_mean_is_needed() -> None:
    one = np.array([1.0]), np.array([0])
    with pytest.raises(LearnerError, match=r"rollouts_per_problem"):
        group_advantages(*one)
    assert response_advantages(*one, baseline="batch", scale="batch").tolist() == [0.0]
    both = response_advantages(np.array([1.0, 0.0]), np.array([0, 1]), baseline="batch", scale="batch")
    assert both == pytest.approx([0.5**0.5, -(0.5**0.5)], abs=1e-5)


def test_what_is_no_advantage_is_refused() -> None:
    two = np.array([1.0, 0.0]), np.array([0, 0])
    with pytest.raises(LearnerError, match="std is 'mad'"):
        group_advantages(*two, std="mad")
    with pytest.raises(LearnerError, match="baseline is 'gae'"):
        response_advantages(*two, baseline="gae")
    with pytest.raises(LearnerError, match="scale is 'max'"):
        response_advantages(*two, scale="max")
    with pytest.raises(LearnerError, match=r"'group' .*'batch'"):
        response_advantages(*two, baseline="batch")
    with pytest.raises(LearnerError, match="rollout 1 "):
        group_advantages(np.array([1.0, np.nan]), np.array([0, 0]))


def test_the_middle_of_unequal_rewards_is_no_zero_variance() -> None:
    rewards, groups = np.array([0.0, 0.5, 1.0, 0.1, 0.1, 0.1]), np.repeat([0, 1], 3)
    assert zero_variance(rewards, groups).tolist() == [False] * 3 + [True] * 3
    assert group_advantages(rewards, groups)[1] == 0.0


def test_no_responses_have_no_advantages() -> None:
    for baseline, scale in PAIRS:
        assert len(response_advantages(np.zeros(0), np.zeros(0, int), baseline=baseline, scale=scale)) == 0

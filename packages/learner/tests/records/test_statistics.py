import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.learner.config import BatchConfig
from isocompute.learner.objective.advantages import with_cohorts
from isocompute.learner.records.steps import (
    AdvantageStatistics,
    ResponseStatistics,
    advantage_statistics,
    response_statistics,
)

GROUPS = st.lists(
    st.lists(
        st.tuples(st.floats(0, 1, width=32), st.integers(0, 9), st.sampled_from(["stop", "length"])),
        min_size=2,
        max_size=5,
    ),
    min_size=1,
    max_size=4,
)


def batch(groups: list[list[tuple[float, int, str]]]) -> pl.DataFrame:
    rows = [
        {"problem_id": f"p{i}", "reward": reward, "response_ids": [1] * length, "finish_reason": reason}
        for i, group in enumerate(groups)
        for reward, length, reason in group
    ]
    schema = {
        "problem_id": pl.String,
        "reward": pl.Float32,
        "response_ids": pl.List(pl.Int32),
        "finish_reason": pl.String,
    }
    return with_cohorts(pl.DataFrame(rows, schema=schema), BatchConfig())


def scored(logprobs: list[list[float] | None], sampled: list[list[bool] | None] | None = None) -> float | None:
    """The entropy estimate of one group whose tokens have these log-probabilities."""
    table = batch([[(0.0, len(given or []), "stop") for given in logprobs]])
    table = table.with_columns(logprobs=pl.Series(logprobs, dtype=pl.List(pl.Float32)))
    if sampled is not None:
        table = table.with_columns(sampled=pl.Series(sampled, dtype=pl.List(pl.Boolean)))
    found = response_statistics(table)
    assert found is not None
    return found.sampled_entropy


def test_a_batch_worked_out_by_hand() -> None:
    first = [(1.0, 2, "stop"), (0.0, 4, "stop"), (0.0, 6, "stop"), (0.0, 8, "length")]
    found = response_statistics(batch([first]))
    assert found == ResponseStatistics(
        reward=0.25,
        reward_std=0.5,
        zero_variance_share=0.0,
        response_length=5.0,
        truncated_share=0.25,
        response_length_max=8,
    )
    solved = response_statistics(batch([first, [(1.0, 1, "stop")] * 4]))
    assert solved == ResponseStatistics(
        reward=0.625,
        reward_std=0.25,
        zero_variance_share=0.5,
        response_length=3.0,
        truncated_share=0.125,
        response_length_max=8,
    )


@settings(deadline=None, max_examples=50)
@given(GROUPS)
def test_the_reward_spread_is_the_mean_over_groups_of_that_of_torch(groups: list[list[tuple[float, int, str]]]) -> None:
    """What TRL logs as ``reward_std``."""
    import torch

    expected = torch.stack([torch.tensor([r for r, *_ in group], dtype=torch.float64).std() for group in groups]).mean()
    found = response_statistics(batch(groups))
    assert found is not None
    assert found.reward_std == pytest.approx(float(expected), abs=1e-9)


def test_a_group_of_one_has_no_spread() -> None:
    found = response_statistics(batch([[(1.0, 2, "stop")], [(0.0, 2, "stop")]]))
    assert found is not None
    assert (found.reward, found.reward_std) == (0.5, 0.0)


def test_equal_rewards_are_counted_in_groups_of_two_or_more() -> None:
    alone = [[(1.0, 2, "stop")], [(0.0, 2, "stop")]]
    found = response_statistics(batch(alone))
    assert found is not None
    assert found.zero_variance_share is None
    assert "zero_variance_share" not in found.metrics()
    pair, mixed = [(1.0, 2, "stop"), (1.0, 2, "stop")], [(1.0, 2, "stop"), (0.0, 2, "stop")]
    found = response_statistics(batch([*alone, pair, mixed, mixed]))
    assert found is not None
    assert found.zero_variance_share == pytest.approx(1 / 3)


def test_failed_responses_are_left_out() -> None:
    group = [(1.0, 2, "stop"), (0.0, 4, "length")]
    with_failed = response_statistics(batch([[*group, (0.0, 0, "aborted")]]))
    assert with_failed == response_statistics(batch([group]))
    assert response_statistics(batch([[(0.0, 0, "aborted")] * 2])) is None


def test_broken_verifiers_and_interrupted_responses_are_shares_of_the_completed_ones() -> None:
    four = batch([[(1.0, 2, "stop"), (0.0, 3, "stop"), (0.0, 1, "stop"), (0.0, 1, "length")]])
    noted = four.with_columns(
        score_error=pl.Series([None, None, "deadline", None], dtype=pl.String),
        sampled=pl.Series([[True] * 2, [True, False, True], [True], None]),
    )
    found = response_statistics(noted)
    assert found is not None
    assert (found.score_error_share, found.interrupted_share) == (0.25, 0.25)
    plain = response_statistics(four)
    assert plain is not None
    assert (plain.score_error_share, plain.interrupted_share) == (0.0, 0.0)


def test_the_entropy_is_estimated_from_the_tokens_that_were_sampled() -> None:
    assert scored([[-1.0, -2.0], [-3.0]]) == pytest.approx(2.0)
    # Tokens, and not responses, are averaged; what was forced upon the policy does not count.
    assert scored([[-1.0, -99.0, -2.0], [-3.0], []], [[True, False, True], None, []]) == pytest.approx(2.0)
    assert scored([None, []]) is None
    assert scored([[-99.0], []], [[False], []]) is None


def test_the_estimate_of_the_entropy_has_no_bias() -> None:
    """4,000 tokens of a known distribution; the tolerance is four standard errors of their mean."""
    import numpy as np

    shares = np.array([0.5, 0.3, 0.15, 0.05])
    entropy = -(shares * np.log(shares)).sum()
    error = np.sqrt((shares * np.log(shares) ** 2).sum() - entropy**2) / np.sqrt(4000)
    drawn = np.log(shares)[np.random.default_rng(0).choice(4, size=4000, p=shares)]
    assert scored([part.tolist() for part in drawn.reshape(100, 40)]) == pytest.approx(entropy, abs=4 * error)


def test_advantages_are_described_by_response_or_with_a_critic_by_token() -> None:
    by_response = pl.DataFrame({"advantage": [1.5, -0.5, -0.5, -0.5]})
    assert advantage_statistics(by_response) == AdvantageStatistics(advantage=0.0, advantage_std=0.75**0.5)
    by_token = pl.DataFrame({"advantages": [[1.0, 3.0], [2.0], []]}, schema={"advantages": pl.List(pl.Float32)})
    assert advantage_statistics(by_token) == AdvantageStatistics(advantage=2.0, advantage_std=(2 / 3) ** 0.5)
    assert advantage_statistics(by_response.head(0)) is None

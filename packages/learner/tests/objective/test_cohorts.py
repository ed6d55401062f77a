import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.learner.config import BatchConfig
from isocompute.learner.objective.advantages import with_cohorts

ROWS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 1.0, float("nan"), float("inf")]),
        st.sampled_from(["a", "b"]),
        st.sampled_from(["stop", "length", "aborted"]),
    ),
    min_size=1,
)
CONFIGS = st.builds(
    BatchConfig, filter_zero_variance=st.booleans(), trained_rollouts=st.none() | st.integers(min_value=1, max_value=4)
)


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


def test_a_group_that_is_trained_on_in_part_is_judged_as_a_whole() -> None:
    """The first two of rewards 1, 1, 0 teach something: the baseline is that of all three."""
    batch = table([1, 1, 0], ["a"] * 3, ["stop"] * 3)
    found = with_cohorts(batch, BatchConfig(trained_rollouts=2, filter_zero_variance=True))
    assert found["cohort"].to_list() == ["trained", "trained", "filtered"]
    assert not found["zero_variance"].any()


@pytest.mark.slow
@given(ROWS, CONFIGS)
def test_whatever_was_sampled_has_a_cohort(rows: list[tuple[float, str, str]], config: BatchConfig) -> None:
    """Also where no advantage can be made of it: it was paid for."""
    batch = with_cohorts(table(*map(list, zip(*rows, strict=True))), config)
    assert [cohort == "failed" for cohort in batch["cohort"]] == [reason == "aborted" for _, _, reason in rows]
    assert set(batch["cohort"]) <= {"trained", "filtered", "failed"}
    trained = batch.filter(pl.col("cohort") == "trained")
    if config.trained_rollouts is not None and len(trained):
        assert trained["problem_id"].value_counts()["count"].max() <= config.trained_rollouts
    if not config.filter_zero_variance and config.trained_rollouts is None:
        assert "filtered" not in batch["cohort"]


def test_no_responses_have_no_cohorts() -> None:
    assert len(with_cohorts(table([1], ["a"], ["stop"]).clear(), BatchConfig(trained_rollouts=1))) == 0

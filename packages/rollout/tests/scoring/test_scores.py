"""Standard errors of scores, against what they estimate."""

from math import comb

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.rollout import RolloutError
from isocompute.rollout.scoring.evaluation import (
    avg_at_k,
    best_at_k,
    differences,
    sampling_variance,
    scores,
    usual_samples,
    wilson_interval,
    worst_at_k,
)

ESTIMATORS = {"avg": avg_at_k, "best": best_at_k, "worst": worst_at_k}


def counts(successes: list[int], samples: list[int], prefix: str = "q") -> pl.DataFrame:
    return pl.DataFrame(
        {
            "problem_id": [f"{prefix}{i}" for i in range(len(successes))],
            "successes": pl.Series(successes, dtype=pl.Int32),
            "samples": pl.Series(samples, dtype=pl.Int32),
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["avg", "best", "worst"])
@given(st.integers(1, 3), st.integers(0, 6), st.floats(0, 1))
def test_the_variance_from_sampling_is_estimated_without_bias(metric: str, k: int, extra: int, p: float) -> None:
    m = 2 * k + extra
    successes = np.arange(m + 1)
    weights = np.array([comb(m, c) * p**c * (1 - p) ** (m - c) for c in successes])
    values = ESTIMATORS[metric](successes, np.full(m + 1, m), k)
    true = weights @ values**2 - (weights @ values) ** 2
    assert weights @ sampling_variance(metric, successes, np.full(m + 1, m), k) == pytest.approx(true, abs=1e-9)


def test_a_standard_error_is_the_spread_over_questions() -> None:
    found = {score.name: score for score in scores(counts([0, 4, 2, 4], [4] * 4), [1, 2])}
    values = np.array([0, 1, 0.5, 1])
    assert found["avg_at_2"].value == pytest.approx(values.mean())
    assert found["avg_at_2"].standard_error == pytest.approx(values.std(ddof=1) / 2)
    # The only question with both kinds: p (1 - p) / (m - 1) of its four responses.
    assert found["avg_at_2"].sampling_error == pytest.approx(np.sqrt(0.25 / 3) / 4)
    assert list(found) == [f"{metric}_at_{k}" for k in (1, 2) for metric in ("avg", "best", "worst")]


def test_what_too_few_responses_cannot_say_is_not_said() -> None:
    found = {score.name: score for score in scores(counts([1, 0], [4, 4]), [4])}
    assert found["avg_at_4"].sampling_error is not None
    assert found["best_at_4"].sampling_error is None
    single = scores(counts([1], [4]), [1])[0]
    assert single.standard_error is None


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=20))
def test_a_difference_is_that_of_the_means_and_pairing_is_symmetric(pairs: list[tuple[int, int]]) -> None:
    ours = counts([a for a, _ in pairs], [4] * len(pairs))
    theirs = counts([b for _, b in pairs], [4] * len(pairs))
    for mine, other, forth, back in zip(
        scores(ours, [2]),
        scores(theirs, [2]),
        differences(ours, theirs, [2]),
        differences(theirs, ours, [2]),
        strict=True,
    ):
        assert forth.value == pytest.approx(mine.value - other.value)
        assert forth.value == pytest.approx(-back.value)
        assert forth.standard_error == pytest.approx(back.standard_error)


def test_pairing_removes_what_the_questions_have_in_common() -> None:
    ours, theirs = counts([4, 4, 0, 0], [4] * 4), counts([3, 3, 0, 0], [4] * 4)
    paired = differences(ours, theirs, [1])[0]
    assert paired.standard_error is not None
    assert paired.standard_error < min(s.standard_error or 0 for s in (scores(ours, [1])[0], scores(theirs, [1])[0]))


def test_only_questions_of_both_are_paired_and_none_is_refused() -> None:
    ours, theirs = counts([1, 2, 3], [4] * 3), counts([0, 0, 0, 0], [4] * 4)
    assert differences(ours, theirs, [1])[0].questions == 3
    with pytest.raises(RolloutError, match="their 3 and 2 questions"):
        differences(ours, counts([1, 1], [4, 4], "other"), [1])


def test_the_usual_number_of_responses_is_the_most_frequent() -> None:
    assert usual_samples(counts([0] * 5, [4, 4, 4, 3, 8])) == 4
    assert usual_samples(counts([0] * 4, [4, 4, 8, 8])) == 8


def test_a_proportion_of_0_or_1_has_an_interval_and_no_error() -> None:
    none, all_of_them = counts([0] * 50, [8] * 50), counts([8] * 50, [8] * 50)
    for table, value in ((none, 0.0), (all_of_them, 1.0)):
        avg, best, _ = scores(table, [4])
        assert (avg.value, avg.standard_error, avg.sampling_error) == (value, None, None)
        # Questions are the trials of a population; the responses to given questions are trials of their own.
        assert avg.interval == pytest.approx(wilson_interval(value, 50))
        assert avg.sampling_interval == pytest.approx(wilson_interval(value, 400))
        assert best.interval == best.sampling_interval == avg.interval
    mixed = scores(counts([0, 8], [8, 8]), [4])[0]
    assert (mixed.interval, mixed.sampling_interval) == (None, None)
    assert mixed.standard_error is not None
    single = scores(counts([8], [8]), [4])[0]
    assert single.interval == pytest.approx(wilson_interval(1.0, 1))


def test_a_difference_between_proportions_of_0_or_1_has_an_interval_too() -> None:
    none, all_of_them = counts([0] * 50, [8] * 50), counts([8] * 50, [8] * 50)
    same, gained = differences(none, none, [1])[0], differences(all_of_them, none, [1])[0]
    width = wilson_interval(0.0, 50)[1]
    assert (same.value, same.standard_error) == (0.0, None)
    assert same.interval == pytest.approx((-width, width))
    # Newcombe's: the distances of both intervals' ends, added in square.
    assert gained.interval == pytest.approx((1 - width * 2**0.5, 1.0))

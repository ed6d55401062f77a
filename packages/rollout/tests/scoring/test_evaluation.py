"""Evaluations when responses are lost, estimators, standard errors against what they estimate, splits by difficulty."""

from collections.abc import Callable
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.rollout import (
    DifficultySplit,
    RolloutError,
    evaluate,
    histogram,
    response_seed,
    split,
    with_pass_rates,
)
from isocompute.rollout.contract import tables
from isocompute.rollout.scoring.evaluation import (
    METRICS,
    avg_at_k,
    best_at_k,
    differences,
    inside,
    sampling_variance,
    scores,
    usual_samples,
    wilson_interval,
    without_unusable,
    worst_at_k,
)
from isocompute.rollout.scoring.scorer import default_scorer

REQUEST: dict[str, Any] = {"samples": 4, "seed": 1, "at": 64, "run_id": "r"}


def problems(count: int, **columns: Any) -> pl.DataFrame:
    named = {"prompt": "x", "answer": "y", "verifier": "exact", "source": "s", "split": "train", **columns}
    return pl.DataFrame({"problem_id": [f"p{i:02d}" for i in range(count)], **named})


class Stub:
    """A sampler that responds with seeds, and loses the responses that ``lost(round, problem_id, sample)`` names."""

    def __init__(self, lost: Callable[[int, str, int], bool] = lambda *_: False) -> None:
        self.lost, self.rounds = lost, list[int]()

    def sample(self, problems: pl.DataFrame, *, samples: int, first_sample: int = 0, **request: Any) -> pl.DataFrame:
        self.rounds.append(len(problems) * samples)
        rows = []
        for problem_id in problems["problem_id"]:
            for sample in range(first_sample, first_sample + samples):
                key = (request["seed"], request["phase"], request["step"], problem_id, sample)
                token = response_seed(*key) % 1000
                reason = "aborted" if self.lost(len(self.rounds), problem_id, sample) else "stop"
                rows.append((problem_id, sample, request["phase"], token, float(token % 2), reason))
        names = ["problem_id", "sample", "phase", "token", "reward", "finish_reason"]
        return pl.DataFrame(rows, schema=names, orient="row").sort("problem_id", "sample")


def test_aborted_responses_are_tried_again_under_new_indices() -> None:
    whole = evaluate(Stub(), problems(6), **REQUEST)
    sampler = Stub(lambda number, problem, sample: number == 1 and problem == "p00" and sample in {1, 2})
    found = evaluate(sampler, problems(6), **REQUEST)
    assert (sampler.rounds, found.questions) == ([24, 2], 6)
    first = found.rollouts.filter(pl.col("problem_id") == "p00")
    assert first["sample"].to_list() == [0, 1, 2, 3, 4, 5]
    assert first["finish_reason"].to_list()[1:3] == ["aborted"] * 2
    others = pl.col("problem_id") != "p00"
    assert found.rollouts.filter(others).equals(whole.rollouts.filter(others))
    assert found.pass_rates["samples"].to_list() == [4] * 6


def test_more_responses_than_requested_all_count() -> None:
    # Question p00 lacks three and p01 one: both are sampled three more times, and p01 then has six.
    lost = {("p00", 0), ("p00", 1), ("p00", 2), ("p01", 0)}
    found = evaluate(Stub(lambda number, *which: number == 1 and which in lost), problems(6), **REQUEST)
    assert found.pass_rates["samples"].to_list() == [4, 6, 4, 4, 4, 4]
    rates = (found.pass_rates["successes"] / found.pass_rates["samples"]).to_numpy()
    assert found.metrics["avg_at_4"] == pytest.approx(rates.mean())


def test_a_question_that_stays_without_responses_is_left_out() -> None:
    sampler = Stub(lambda number, problem, sample: problem == "p02" and sample not in {0, 4})
    found = evaluate(sampler, problems(20), **REQUEST)
    assert sampler.rounds == [80, 3, 2]
    assert (found.questions, len(found.pass_rates)) == (19, 20)
    assert found.pass_rates.filter(pl.col("samples") < 4)["problem_id"].to_list() == ["p02"]


def test_an_engine_that_fails_too_often_measures_nothing() -> None:
    with pytest.raises(RolloutError, match="than 4 responses after 3"):
        evaluate(Stub(lambda number, problem, sample: sample == 3 or number > 1), problems(6), **REQUEST)


def test_no_two_phases_share_a_response_seed() -> None:
    shown, fresh = (evaluate(Stub(), problems(6), **REQUEST, phase=phase) for phase in ("eval", "baseline"))
    assert set(fresh.rollouts["phase"]) == {"baseline"}
    assert shown.rollouts["token"].to_list() != fresh.rollouts["token"].to_list()
    phases = next(c for c in tables.schema("rollouts").columns if c.name == "phase").values
    assert set(phases) == {"train", "eval", "difficulty", "baseline", "canary"}
    keys = [(s, phase, step, f"p{p}", i) for phase in phases for s in (0, 1) for step in (0, 64) for p, i in ALL_PAIRS]
    assert len({response_seed(*key) for key in keys}) == len(keys)


ALL_PAIRS = [(problem, sample) for problem in range(20) for sample in range(16)]


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_estimators_are_means_over_all_draws_without_replacement(right: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(right)))
    draws = list(combinations(right, k))
    args = ([sum(right)], [len(right)], k)
    assert avg_at_k(*args)[0] == pytest.approx(np.mean([np.mean(d) for d in draws]))
    assert best_at_k(*args)[0] == pytest.approx(np.mean([any(d) for d in draws]))
    assert worst_at_k(*args)[0] == pytest.approx(np.mean([all(d) for d in draws]))


def test_k_beyond_the_samples_is_refused() -> None:
    with pytest.raises(RolloutError, match="k is 5"):
        best_at_k([1], [4], 5)


@given(st.integers(1, 10_000), st.data())
def test_wilsons_interval_holds_the_rates_from_which_a_proportion_is_two_errors_away(
    trials: int, data: st.DataObject
) -> None:
    rate = data.draw(st.integers(0, trials)) / trials
    lowest, highest = wilson_interval(rate, trials)
    assert 0 <= lowest <= rate <= highest <= 1
    for end in (lowest, highest):
        # The score test's own equation, which the interval solves for p: |rate - p| = 1.96 sqrt(p (1 - p) / trials).
        assert abs(rate - end) == pytest.approx(1.959964 * (end * (1 - end) / trials) ** 0.5, abs=1e-6)
    assert wilson_interval(1 - rate, trials) == pytest.approx((1 - highest, 1 - lowest))


def counts(successes: list[int], samples: list[int], prefix: str = "q") -> pl.DataFrame:
    table = {"problem_id": [f"{prefix}{i}" for i in range(len(successes))], "successes": successes, "samples": samples}
    return pl.DataFrame(table, schema_overrides={"successes": pl.Int32, "samples": pl.Int32})


def test_the_usual_number_of_responses_is_the_most_frequent() -> None:
    assert usual_samples(counts([0] * 5, [4, 4, 4, 3, 8])) == 4
    assert usual_samples(counts([0] * 4, [4, 4, 8, 8])) == 8


@pytest.mark.slow
def test_unusable_problems_are_left_out_with_a_reason() -> None:
    pytest.importorskip("reasoning_gym")
    rules = ["reasoning_gym:gcd", "reasoning_gym:sudoku", "python:os:getcwd", "python:os:getcwd", "exact"]
    table = problems(5, answer="4", verifier=rules, metadata=["", "", "[1", "", ""])
    usable, dropped = without_unusable(table, default_scorer())
    assert usable["problem_id"].to_list() == ["p00", "p03", "p04"]
    assert dropped["problem_id"].to_list() == ["p01", "p02"]
    with pytest.raises(RolloutError, match="2 problems can be scored,"):
        without_unusable(table[1:3], default_scorer())


@pytest.mark.parametrize("metric", METRICS)
@given(st.integers(1, 3), st.integers(0, 6), st.floats(0, 1))
def test_the_variance_from_sampling_is_estimated_without_bias(metric: str, k: int, extra: int, p: float) -> None:
    m = 2 * k + extra
    successes = np.arange(m + 1)
    weights = np.array([comb(m, c) * p**c * (1 - p) ** (m - c) for c in successes])
    values = METRICS[metric](successes, np.full(m + 1, m), k)
    true = weights @ values**2 - (weights @ values) ** 2
    assert weights @ sampling_variance(metric, successes, np.full(m + 1, m), k) == pytest.approx(true, abs=1e-9)


def test_a_standard_error_is_the_deviation_over_questions_and_absent_for_one() -> None:
    found = {score.name: score for score in scores(counts([0, 4, 2, 4], [4] * 4), [1, 2, 4])}
    values = np.array([0, 1, 0.5, 1])
    assert found["avg_at_2"].value == pytest.approx(values.mean())
    assert found["avg_at_2"].standard_error == pytest.approx(values.std(ddof=1) / 2)
    # The only question with both kinds: p (1 - p) / (m - 1) of its four responses.
    assert found["avg_at_2"].sampling_error == pytest.approx(np.sqrt(0.25 / 3) / 4)
    # Two disjoint draws of four need eight responses.
    assert found["best_at_4"].sampling_error is None
    assert list(found) == [f"{metric}_at_{k}" for k in (1, 2, 4) for metric in METRICS]
    assert scores(counts([1], [4]), [1])[0].standard_error is None


def test_pairing_removes_what_the_questions_of_both_have_in_common() -> None:
    ours, theirs = counts([4, 4, 0, 0], [4] * 4), counts([3, 3, 0, 0, 1], [4] * 5)
    paired = differences(ours, theirs, [1])[0]
    assert paired.questions == 4
    assert (paired.standard_error or 9) < min(s.standard_error or 0 for s in (*scores(ours, [1]), *scores(theirs, [1])))
    with pytest.raises(RolloutError, match="their 4 and 2 questions"):
        differences(ours, counts([1, 1], [4, 4], "other"), [1])


def test_proportions_of_0_or_1_and_their_differences_have_an_interval_and_no_error() -> None:
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
    same, gained = differences(none, none, [1])[0], differences(all_of_them, none, [1])[0]
    width = wilson_interval(0.0, 50)[1]
    assert (same.value, same.standard_error) == (0.0, None)
    assert same.interval == pytest.approx((-width, width))
    # Newcombe's: the distances of both intervals' ends, added in square.
    assert gained.interval == pytest.approx((1 - width * 2**0.5, 1.0))


SIDES = problems(8, split=["train"] * 4 + ["validation"] * 4)
ROLLOUTS = pl.DataFrame(
    [
        {"problem_id": f"p{i:02d}", "reward": float(s < i % 4), "finish_reason": "stop"}
        for i in range(8)
        for s in range(4)
    ]
)


def chosen(measured: pl.DataFrame, lowest: float, highest: float, train: int, **more: int) -> list[str]:
    wanted = DifficultySplit(
        name="s", lowest=lowest, highest=highest, train=train, validation=more.pop("validation", 2)
    )
    return split(measured, wanted, **more)["problem_id"].to_list()


def test_a_split_by_pass_rate_takes_each_side_from_its_own_and_grows_with_its_size() -> None:
    measured = with_pass_rates(SIDES, ROLLOUTS)
    assert measured["pass_rate"].to_list() == [0, 0.25, 0.5, 0.75] * 2
    assert histogram(measured, bins=4)["problems"].to_list() == [2, 2, 2, 2]
    assert chosen(measured, 0.25, 0.5, 2) == ["p01", "p02", "p05", "p06"]
    with pytest.raises(RolloutError, match="and 2 of 4"):
        chosen(measured, 0.25, 0.5, 3)
    small, middle, large = (set(chosen(measured, 0, 1, train)) for train in (1, 3, 4))
    assert small < middle < large


def test_fresh_responses_are_kept_apart_from_those_that_select() -> None:
    selected = with_pass_rates(SIDES, ROLLOUTS.with_columns(phase=pl.lit("difficulty")))
    again = ROLLOUTS.with_columns(phase=pl.lit("baseline"), reward=pl.lit(1.0))
    measured = with_pass_rates(selected, again, fresh=True)
    assert measured["pass_rate"].to_list() == [0, 0.25, 0.5, 0.75] * 2
    assert measured["fresh_pass_rate"].to_list() == [1.0] * 8
    assert measured["fresh_pass_rate_samples"].to_list() == [4] * 8
    tables.check(measured, "problems", where="measured")
    with pytest.raises(RolloutError, match="phase difficulty"):
        with_pass_rates(selected, ROLLOUTS.with_columns(phase=pl.lit("difficulty")), fresh=True)
    with pytest.raises(RolloutError, match="phase baseline"):
        with_pass_rates(SIDES, again)


def test_extremely_hard_problems_are_those_never_solved_in_enough_responses() -> None:
    def measured(*samples: int) -> pl.DataFrame:
        counts = pl.Series(samples, dtype=pl.Int32)
        return SIDES[2:6].with_columns(pass_rate=pl.Series([0.0, 0.0, 0.5, 1.0]), pass_rate_samples=counts)

    frame = measured(128, 16, 128, 128)
    assert inside(frame, lowest=0, highest=0)["problem_id"].to_list() == ["p02", "p03"]
    assert inside(frame, lowest=0, highest=0, min_samples=128)["problem_id"].to_list() == ["p02"]
    with pytest.raises(RolloutError, match=r"128 times.*was is 16"):
        inside(measured(16, 16, 16, 16), lowest=0, highest=0, min_samples=128)
    assert chosen(frame, 0, 0.5, 1, validation=1, min_samples=128) == ["p02", "p04"]

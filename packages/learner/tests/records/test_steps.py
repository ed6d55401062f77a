"""What is logged of a step: sums and counts, statistics of responses, timings."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from isocompute.learner.config import BatchConfig
from isocompute.learner.contract.tables import TableError
from isocompute.learner.objective.advantages import with_cohorts
from isocompute.learner.records.steps import (
    AdvantageStatistics,
    EvaluationRecord,
    LagStatistics,
    Mean,
    ResponseStatistics,
    StepRecord,
    UpdateReport,
    advantage_statistics,
    from_plain,
    numbers,
    of_batch,
    response_statistics,
    timings_table,
    to_plain,
)

UPDATE = UpdateReport(
    objective={"loss": Mean(total=0.1, count=1), "entropy": Mean(total=6.0, count=20)},
    gradient_norm=0.4,
    learning_rate=0.5,
    sync_error=1e-5,
    sync_mean=1e-6,
    trained_tokens=200,
    passed_tokens=150,
    skipped=Mean(total=3, count=12),
    operations=3e9,
    machine_rate=5e10,
)

RESPONSES = ResponseStatistics(
    reward=0.25,
    reward_std=0.5,
    zero_variance_share=0.0,
    response_length=5.0,
    truncated_share=0.25,
    response_length_max=9,
    sampled_entropy=0.7,
)


def step(**parts: Any) -> StepRecord:
    return StepRecord(**{"step": 3, "rollouts": 96, "sample_seconds": 1.5, "update_seconds": 0.5, **parts})


def test_a_step_logs_its_update_its_responses_its_rates_and_its_seconds() -> None:
    """In the group of its chart; objectives are means, and rates are per second of what was timed."""
    advantages = AdvantageStatistics(advantage=0.0, advantage_std=0.9)
    metrics = step(
        sync_seconds=0.25, update=UPDATE, responses=RESPONSES, advantages=advantages, sampled_tokens=300
    ).metrics()
    train, health = "reward advantage_std learning_rate optimizer_steps", "truncated_share sampled_entropy sync_error"
    assert {*(f"train/{name}" for name in train.split()), *(f"health/{name}" for name in health.split())} < {*metrics}
    assert (metrics["train/entropy"], metrics["train/skipped_share"]) == (pytest.approx(0.3), 0.25)
    assert {name: value for name, value in metrics.items() if name.startswith("perf/")} == {
        "perf/sample_seconds": 1.5,
        "perf/update_seconds": 0.5,
        "perf/sync_seconds": 0.25,
        "perf/sampled_tokens_per_second": 200.0,
        "perf/trained_tokens_per_second": 400.0,
        "perf/passed_tokens_per_second": 300.0,
        "perf/model_flops_utilisation": pytest.approx(0.12),
    }


def test_what_a_step_does_not_have_is_not_logged() -> None:
    assert step().metrics() == {"perf/sample_seconds": 1.5, "perf/update_seconds": 0.5}
    assert step(gradient_retries=1).metrics()["health/gradient_retries"] == 1.0
    assert step(dropped_problems=7).metrics()["train/dropped_problems"] == 7.0
    assert step(rounding_changes=1).metrics()["health/rounding_changes"] == 1.0
    nothing = replace(UPDATE, objective={"entropy": Mean(total=0.0, count=0)}, skipped=Mean(total=0, count=0)).metrics()
    assert "entropy" not in nothing
    assert "skipped_share" not in nothing


def test_the_updates_of_a_batch_are_one_report() -> None:
    last = replace(
        UPDATE,
        objective={"loss": Mean(total=0.3, count=1), "entropy": Mean(total=1.0, count=10)},
        gradient_norm=0.8,
        learning_rate=0.2,
        sync_error=0.5,
        sync_mean=0.1,
        skipped=Mean(total=0, count=12),
    )
    found = of_batch([UPDATE, last])
    # Means are those over the tokens of all updates.
    assert numbers(found.objective) == pytest.approx({"loss": 0.2, "entropy": 7 / 30})
    assert (found.gradient_norm, found.learning_rate) == (pytest.approx(0.6), 0.2)
    # Only before the first update is the learner the policy that sampled.
    assert (found.sync_error, found.sync_mean) == (1e-5, 1e-6)
    assert (found.optimizer_steps, found.trained_tokens, found.passed_tokens, found.operations) == (2, 400, 300, 6e9)
    assert found.skipped.value == 0.125
    assert of_batch([last]) == last


def test_a_record_written_as_json_is_read_as_it_was() -> None:
    parts = {"update": UPDATE, "responses": RESPONSES, "lag": LagStatistics(lag_mean=0.5, lag_max=2, mixed_share=0.1)}
    whole = step(**parts, advantages=AdvantageStatistics(advantage=0.1, advantage_std=1.0))
    evaluation = EvaluationRecord(step=3, rollouts=96, scores={"avg_at_4": 0.5}, evaluate_seconds=2.0)
    for record in (step(), whole, evaluation):
        again = from_plain(json.loads(json.dumps(to_plain(record))))
        assert again == record
        assert again.metrics() == record.metrics()


def mean(*values: float) -> Mean:
    numbers_of = torch.tensor(values, dtype=torch.float64)
    return Mean(total=numbers_of.sum(), count=torch.tensor(float(len(values)), dtype=torch.float64))


@given(st.lists(st.tuples(st.floats(0.1, 4), st.floats(-3, 3), st.floats(-3, 3)), min_size=2, max_size=9))
def test_what_is_shown_is_made_of_sums_over_the_whole_batch(rows: list[tuple[float, float, float]]) -> None:
    ratio, value, target = np.array(rows).T
    target[0] += 7
    columns = {"token_ratio": ratio, "advantage": value, "return": target, "value_error": target - value}
    squares = {f"{name}_square": column**2 for name, column in columns.items()}
    found = numbers({name: mean(*column) for name, column in (columns | squares).items()})
    assert found.keys() == {"advantage", "advantage_std", "return", "effective_sample_size", "explained_variance"}
    assert found["advantage_std"] == pytest.approx(value.std(), abs=1e-6)
    assert found["effective_sample_size"] == pytest.approx(ratio.mean() ** 2 / (ratio**2).mean())
    assert found["explained_variance"] == pytest.approx(1 - (target - value).var() / target.var(), abs=1e-6)


def described(table: pl.DataFrame) -> ResponseStatistics:
    found = response_statistics(table)
    assert found is not None
    return found


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


def test_a_batch_worked_out_by_hand() -> None:
    first = [(1.0, 2, "stop"), (0.0, 4, "stop"), (0.0, 6, "stop"), (0.0, 8, "length")]
    found = described(batch([first]))
    assert found == replace(RESPONSES, response_length_max=8, sampled_entropy=None)
    solved = described(batch([first, [(1.0, 1, "stop")] * 4]))
    halves = {"reward_std": 0.25, "zero_variance_share": 0.5, "truncated_share": 0.125}
    assert solved == replace(found, reward=0.625, response_length=3.0, **halves)


def test_equal_rewards_are_counted_in_groups_of_two_or_more_and_failed_responses_are_left_out() -> None:
    alone, failed = [[(1.0, 2, "stop")], [(0.0, 2, "stop")]], (0.0, 0, "aborted")
    assert described(batch(alone)).zero_variance_share is None
    assert "zero_variance_share" not in described(batch(alone)).metrics()
    pair, mixed = [(1.0, 2, "stop"), (1.0, 2, "stop")], [(1.0, 2, "stop"), (0.0, 4, "length")]
    groups = [*alone, pair, mixed, mixed]
    assert described(batch(groups)).zero_variance_share == pytest.approx(1 / 3)
    assert described(batch([[*group, failed] for group in groups])) == described(batch(groups))
    assert response_statistics(batch([[failed] * 2])) is None


def test_broken_verifiers_and_interrupted_responses_are_shares_of_the_completed_ones() -> None:
    four = batch([[(1.0, 2, "stop"), (0.0, 3, "stop"), (0.0, 1, "stop"), (0.0, 1, "length")]])
    noted = four.with_columns(
        score_error=pl.Series([None, None, "deadline", None], dtype=pl.String),
        sampled=pl.Series([[True] * 2, [True, False, True], [True], None]),
    )
    for table, expected in ((noted, (0.25, 0.25)), (four, (0.0, 0.0))):
        assert (described(table).score_error_share, described(table).interrupted_share) == expected


def test_the_entropy_is_estimated_from_the_tokens_that_were_sampled() -> None:
    for logprobs, sampled, expected in (
        ([[-1.0, -2.0], [-3.0]], None, 2.0),
        # Tokens, and not responses, are averaged; what was forced upon the policy does not count.
        ([[-1.0, -99.0, -2.0], [-3.0], []], [[True, False, True], None, []], 2.0),
        ([None, []], None, None),
        ([[-99.0], []], [[False], []], None),
    ):
        table = batch([[(0.0, len(row or []), "stop") for row in logprobs]])
        table = table.with_columns(logprobs=pl.Series(logprobs, dtype=pl.List(pl.Float32)))
        if sampled is not None:
            table = table.with_columns(sampled=pl.Series(sampled, dtype=pl.List(pl.Boolean)))
        assert described(table).sampled_entropy == (None if expected is None else pytest.approx(expected))


def test_advantages_are_described_by_response_or_with_a_critic_by_token() -> None:
    by_response = pl.DataFrame({"advantage": [1.5, -0.5, -0.5, -0.5]})
    assert advantage_statistics(by_response) == AdvantageStatistics(advantage=0.0, advantage_std=0.75**0.5)
    by_token = pl.DataFrame({"advantages": [[1.0, 3.0], [2.0], []]}, schema={"advantages": pl.List(pl.Float32)})
    assert advantage_statistics(by_token) == AdvantageStatistics(advantage=2.0, advantage_std=(2 / 3) ** 0.5)
    assert advantage_statistics(by_response.head(0)) is None


def test_each_phase_of_a_step_is_a_row_and_one_that_was_taken_again_counts_once() -> None:
    evaluation = EvaluationRecord(step=1, rollouts=32, scores={"avg_at_4": 0.1}, evaluate_seconds=3.0)
    first, again = step(step=1, sample_seconds=9.0), step(step=1, sync_seconds=0.125)
    table = timings_table([first, again, evaluation], "r", devices=4)
    assert table["run_id"].unique().to_list() == ["r"]
    assert table.drop("run_id").rows() == [
        (1, "evaluate", 3.0, 12.0),
        (1, "sample", 1.5, 6.0),
        (1, "sync", 0.125, 0.5),
        (1, "update", 0.5, 2.0),
    ]
    with pytest.raises(TableError, match=r"run r: .* no rows"):
        timings_table([], "r")
    with pytest.raises(TableError, match=r"column seconds"):
        timings_table([step(sample_seconds=float("nan"))], "r")

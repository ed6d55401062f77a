import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.learner.records.steps import (
    AdvantageStatistics,
    Average,
    EvaluationRecord,
    ResponseStatistics,
    StepRecord,
    UpdateReport,
    from_plain,
    of_batch,
    to_plain,
)

UPDATE = UpdateReport(
    objective={"loss": Average(total=0.1, count=1), "entropy": Average(total=6.0, count=20)},
    gradient_norm=0.4,
    learning_rate=0.5,
    sync_error=1e-5,
    trained_tokens=200,
    passed_tokens=150,
    skipped=Average(total=3, count=12),
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
NUMBERS = st.floats(-1e6, 1e6)


def step(**parts: Any) -> StepRecord:
    return StepRecord(**{"step": 3, "rollouts": 96, "sample_seconds": 1.5, "update_seconds": 0.5, **parts})


def report(total: float, count: float, norm: float = 1.0, steps: int = 1) -> UpdateReport:
    objective = {"entropy": Average(total=total, count=count)}
    return UpdateReport(objective=objective, gradient_norm=norm, learning_rate=0.5, optimizer_steps=steps)


def test_a_step_logs_its_update_its_responses_its_rates_and_its_seconds() -> None:
    advantages = AdvantageStatistics(advantage=0.0, advantage_std=0.9)
    metrics = step(
        sync_seconds=0.25, update=UPDATE, responses=RESPONSES, advantages=advantages, sampled_tokens=300
    ).metrics()
    assert metrics == {
        "train/reward": 0.25,
        "train/reward_std": 0.5,
        "train/zero_variance_share": 0.0,
        "train/response_length": 5.0,
        "train/response_length_max": 9.0,
        "train/advantage": 0.0,
        "train/advantage_std": 0.9,
        "train/loss": 0.1,
        "train/entropy": 0.3,
        "train/learning_rate": 0.5,
        "train/optimizer_steps": 1.0,
        "train/skipped_share": 0.25,
        "health/truncated_share": 0.25,
        "health/interrupted_share": 0.0,
        "health/score_error_share": 0.0,
        "health/sampled_entropy": 0.7,
        "health/gradient_norm": 0.4,
        "health/sync_error": 1e-5,
        "health/sync_mean": 0.0,
        "health/sync_k3": 0.0,
        "health/sync_quantile": 0.0,
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
    nothing = report(0.0, 0.0).metrics()
    assert "entropy" not in nothing
    assert "skipped_share" not in nothing


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(NUMBERS, st.integers(1, 1000)), min_size=1, max_size=6))
def test_the_mean_over_updates_is_that_over_all_their_tokens(parts: list[tuple[float, int]]) -> None:
    found = of_batch([report(total, count) for total, count in parts])
    everything = math.fsum(total for total, _ in parts) / sum(count for _, count in parts)
    assert found.metrics()["entropy"] == pytest.approx(everything, rel=1e-9, abs=1e-9)


def test_the_updates_of_a_batch_are_one_report() -> None:
    first = UpdateReport(
        objective={"loss": Average(total=2.0, count=1)},
        gradient_norm=1.0,
        learning_rate=0.1,
        sync_error=1e-5,
        sync_mean=1e-6,
        trained_tokens=10,
        operations=2.0,
        skipped=Average(total=1, count=4),
    )
    last = UpdateReport(
        objective={"loss": Average(total=4.0, count=1)},
        gradient_norm=3.0,
        learning_rate=0.2,
        sync_error=0.5,
        trained_tokens=20,
        operations=3.0,
        skipped=Average(total=0, count=4),
    )
    found = of_batch([first, last])
    assert (found.metrics()["loss"], found.gradient_norm, found.learning_rate) == (3.0, 2.0, 0.2)
    # Only before the first update is the learner the policy that sampled.
    assert (found.sync_error, found.sync_mean) == (1e-5, 1e-6)
    assert (found.optimizer_steps, found.trained_tokens, found.operations) == (2, 30, 5.0)
    assert found.skipped.value == 0.125
    assert of_batch([first]) == first


def test_reports_that_were_measured_on_another_machine_are_equal() -> None:
    other = UpdateReport(objective={}, gradient_norm=1.0, learning_rate=0.1, machine_rate=1e9)
    assert other == UpdateReport(objective={}, gradient_norm=1.0, learning_rate=0.1, machine_rate=2e9)


def test_an_evaluation_logs_its_scores_and_its_seconds() -> None:
    record = EvaluationRecord(step=3, rollouts=96, scores={"avg_at_4": 0.5}, evaluate_seconds=2.0)
    assert record.metrics() == {"eval/avg_at_4": 0.5, "perf/evaluate_seconds": 2.0}
    assert record.seconds() == {"evaluate": 2.0}


@pytest.mark.parametrize(
    "record",
    [
        step(),
        step(update=UPDATE, responses=RESPONSES, advantages=AdvantageStatistics(advantage=0.1, advantage_std=1.0)),
        EvaluationRecord(step=3, rollouts=96, scores={"avg_at_4": 0.5}, evaluate_seconds=2.0),
    ],
)
def test_a_record_written_as_json_is_read_as_it_was(record: StepRecord | EvaluationRecord) -> None:
    again = from_plain(json.loads(json.dumps(to_plain(record))))
    assert again == record
    assert again.metrics() == record.metrics()


def test_names_of_metrics_are_ones_that_mlflow_takes() -> None:
    named = step(update=UPDATE, responses=RESPONSES, sync_seconds=0.1).metrics()
    groups = {name.partition("/")[0] for name in named}
    assert groups == {"train", "perf", "health"}
    assert not [name for name in named if not name.partition("/")[2].replace("_", "").isalnum()]

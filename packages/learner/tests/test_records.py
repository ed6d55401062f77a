from dataclasses import fields

from isocompute.learner.records import EvaluationRecord, ResponseStatistics, StepRecord, UpdateReport

UPDATE = UpdateReport(
    loss=0.1, kl=0.2, entropy=0.3, importance_weight=1.0, gradient_norm=0.4, learning_rate=0.5, sync_error=0.0
)
RESPONSES = ResponseStatistics(
    reward=0.25, reward_std=0.5, zero_variance_share=0.0, response_length=5.0, truncated_share=0.25
)


def step(**parts: object) -> StepRecord:
    return StepRecord(**{"step": 3, "rollouts": 96, "sample_seconds": 1.5, "update_seconds": 0.5, **parts})


def test_a_step_logs_its_update_its_responses_and_its_seconds() -> None:
    metrics = step(sync_seconds=0.25, update=UPDATE, responses=RESPONSES).metrics()
    named = {field.name for part in (UPDATE, RESPONSES) for field in fields(part)}
    assert set(metrics) == named | {"sample_seconds", "update_seconds", "sync_seconds"}
    assert (metrics["gradient_norm"], metrics["truncated_share"], metrics["sync_seconds"]) == (0.4, 0.25, 0.25)


def test_what_a_step_does_not_have_is_not_logged() -> None:
    assert step().metrics() == {"sample_seconds": 1.5, "update_seconds": 0.5}
    assert step(gradient_retries=1).metrics()["gradient_retries"] == 1.0


def test_an_evaluation_logs_its_scores_and_its_seconds() -> None:
    record = EvaluationRecord(step=3, rollouts=96, scores={"avg_at_4": 0.5}, evaluate_seconds=2.0)
    assert record.metrics() == {"avg_at_4": 0.5, "evaluate_seconds": 2.0}
    assert record.seconds() == {"evaluate": 2.0}

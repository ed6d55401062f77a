import pytest
from isocompute.learner.contract.tables import TableError
from isocompute.learner.records.steps import EvaluationRecord, StepRecord, timings_table


def evaluation(step: int, seconds: float) -> EvaluationRecord:
    return EvaluationRecord(step=step, rollouts=32 * step, scores={"avg_at_4": 0.1}, evaluate_seconds=seconds)


def step(step: int, sample: float, update: float = 0.25, sync: float | None = 0.125) -> StepRecord:
    return StepRecord(step=step, rollouts=32 * step, sample_seconds=sample, update_seconds=update, sync_seconds=sync)


def test_each_phase_of_a_step_is_a_row() -> None:
    table = timings_table([evaluation(0, 2.0), step(1, 0.5), evaluation(1, 3.0)], "r", devices=4)
    assert table["run_id"].unique().to_list() == ["r"]
    assert table.drop("run_id").rows() == [
        (0, "evaluate", 2.0, 8.0),
        (1, "evaluate", 3.0, 12.0),
        (1, "sample", 0.5, 2.0),
        (1, "sync", 0.125, 0.5),
        (1, "update", 0.25, 1.0),
    ]


def test_a_step_in_which_the_policy_diverged_has_no_sync() -> None:
    assert timings_table([step(1, 0.5, sync=None)], "r")["phase"].to_list() == ["sample", "update"]


def test_a_step_that_was_taken_again_counts_once() -> None:
    table = timings_table([step(1, 9.0), step(1, 1.0)], "r")
    assert table["seconds"].to_list() == [1.0, 0.125, 0.25]


def test_a_run_without_records_or_with_seconds_that_are_not_finite_is_one_error() -> None:
    with pytest.raises(TableError, match=r"run r: .* no rows"):
        timings_table([], "r")
    with pytest.raises(TableError, match=r"column seconds"):
        timings_table([step(1, float("nan"))], "r")

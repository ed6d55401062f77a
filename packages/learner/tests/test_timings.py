import pytest
from isocompute.learner.tables import TableError
from isocompute.learner.timings import timings_table


def line(step: int, **metrics: float) -> dict[str, object]:
    return {"step": step, "rollouts": 32 * step, "metrics": metrics}


def test_each_phase_of_a_step_is_a_row() -> None:
    lines = [
        line(0, avg_at_4=0.1, evaluate_seconds=2.0),
        line(1, reward=0.2, sample_seconds=0.5, update_seconds=0.25, sync_seconds=0.125),
        line(1, evaluate_seconds=3.0),
    ]
    table = timings_table(lines, "r", devices=4)
    assert table["run_id"].unique().to_list() == ["r"]
    assert table.drop("run_id").rows() == [
        (0, "evaluate", 2.0, 8.0),
        (1, "evaluate", 3.0, 12.0),
        (1, "sample", 0.5, 2.0),
        (1, "sync", 0.125, 0.5),
        (1, "update", 0.25, 1.0),
    ]


def test_a_step_that_was_taken_again_counts_once() -> None:
    table = timings_table([line(1, sample_seconds=9.0), line(1, sample_seconds=1.0)], "r")
    assert table["seconds"].to_list() == [1.0]


def test_lines_without_seconds_are_one_error() -> None:
    with pytest.raises(TableError, match="run r: the timings table has no rows"):
        timings_table([line(1, reward=0.5)], "r")
    with pytest.raises(TableError, match=r"column seconds .* is not a finite number"):
        timings_table([line(1, sample_seconds=float("nan"))], "r")

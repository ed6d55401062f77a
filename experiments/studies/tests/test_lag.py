"""What the study of lags says of its runs, and which settings it refuses."""

from dataclasses import replace

import numpy as np
import pytest
from isocompute.learner.config import PipelineConfig

from experiments.studies import lag
from experiments.tests.made import cell, step_record


def run(end: float, *, lag_max: float = 0.0, time: float = 100.0) -> lag.Run:
    scores = np.array([0.1, 0.2, end - 0.1, end + 0.1])
    return lag.Run(
        rollouts=np.arange(4), times=np.linspace(1, time, 4), scores=scores, lag_mean=lag_max / 2, lag_max=lag_max
    )


def test_differences_are_paired_by_seed_and_runs_below_the_base_model_have_collapsed() -> None:
    found = {(0, ""): [run(0.5), run(0.7)], (8, "virtual"): [run(0.4, lag_max=8), run(0.6, lag_max=7)]}
    rows = [[each.strip() for each in line.strip("| ").split("|")] for line in lag.table(found, base=0.45)]
    assert rows[2] == ["0", "–", "0.600 ± 1.271", "–", "0.0, 0", "100", "0 of 2"]
    # The same difference in both seeds has no spread, whatever their scores have.
    assert rows[3] == ["8", "virtual", "0.500 ± 1.271", "-0.100 (-0.100 to -0.100)", "3.8, 8", "100", "1 of 2"]


@pytest.mark.parametrize(("ahead", "update", "time"), [(0, 12.0, 20.0), (1, 12.0, 12.0), (1, 3.0, 8.0)])
def test_a_step_takes_the_sum_of_sampling_and_updating_in_turn_and_the_longer_of_them_side_by_side(
    ahead: int, update: float, time: float
) -> None:
    one = cell()
    one = replace(one, learner=replace(one.learner, pipeline=PipelineConfig(lag=ahead, mode="constant")))
    record = step_record(1)
    assert record.responses is not None
    record = replace(record, responses=replace(record.responses, response_length_max=8))
    assert lag.time_of(record, one, update) == time

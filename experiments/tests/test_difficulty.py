"""The base model's score on a side of a problem set."""

import polars as pl
import pytest
from isocompute.rollout.scoring.evaluation import wilson_interval

from experiments.stages.difficulty import score


def test_a_side_without_one_right_response_has_an_error_too() -> None:
    part = pl.DataFrame(
        {
            "split": ["train"] * 20,
            "pass_rate": [0.1] * 20,
            "fresh_pass_rate": [0.0] * 20,
            "pass_rate_samples": [16] * 20,
            "fresh_pass_rate_samples": [8] * 20,
        }
    )
    found = score(part, "train")
    assert found["fresh"] == 0
    assert found["fresh_standard_error"] == pytest.approx(wilson_interval(0.0, 160)[1] / (2 * 1.959964), rel=1e-6)

import numpy as np
import polars as pl
import pytest
from isocompute.frontier import FrontierError, interference, train_validation_gap
from isocompute.frontier.answers.interference import dispersion, wasserstein


def table(successes: dict[int, list[int]], samples: int = 8) -> pl.DataFrame:
    rows = [
        {"run_id": "r", "step": step, "problem_id": f"p{i}", "successes": value, "samples": samples}
        for step, values in successes.items()
        for i, value in enumerate(values)
    ]
    return pl.DataFrame(rows)


def test_problems_that_are_always_or_never_solved_are_as_uneven_as_can_be() -> None:
    found = interference(table({0: [4, 4, 4, 4], 10: [8, 8, 0, 0]}))
    assert found["mean"].to_list() == [0.5, 0.5]
    assert found["zero_fraction"].to_list() == [0.0, 0.5]
    assert found["one_fraction"].to_list() == [0.0, 0.5]
    assert found["dispersion"].to_list() == [0.0, 1.0]
    assert found["distance_to_start"].to_list()[0] == 0.0
    # Every problem moved half of the unit interval, in bins of a tenth.
    assert found["distance_to_start"].to_list()[1] == pytest.approx(0.45, abs=0.06)


def test_sampling_noise_alone_is_not_dispersion() -> None:
    rng = np.random.default_rng(0)
    samples = np.full(4000, 4.0)
    alike = rng.binomial(4, 0.3, 4000) / 4
    assert dispersion(alike, samples) < 0.02
    truth = rng.beta(0.5, 0.5, 4000)
    # Beta(a, b) has a variance of p(1-p)/(a+b+1): half of the largest here.
    assert dispersion(rng.binomial(4, truth) / 4, samples) == pytest.approx(0.5, abs=0.03)


def test_the_distance_of_opposite_histograms_is_one_less_a_bin() -> None:
    a, b = np.zeros(10), np.zeros(10)
    a[0] = b[-1] = 1.0
    assert wasserstein(a, b) == pytest.approx(0.9)


def test_the_gap_is_train_minus_validation_at_the_same_step() -> None:
    common = {"run_id": "r", "problem_set": "easy", "rollouts_per_problem": 4, "problems_per_batch": 8, "seed": 0}
    rows = [
        {**common, "step": s, "rollouts": 32 * s, "split": side, "avg_at_4": value}
        for s, side, value in ((1, "train", 0.5), (1, "validation", 0.4), (2, "train", 0.9))
    ]
    found = train_validation_gap(pl.DataFrame(rows))
    assert found["gap"].to_list() == pytest.approx([0.1])
    with pytest.raises(FrontierError, match="no run was evaluated on both"):
        train_validation_gap(pl.DataFrame(rows[1:]))


def test_no_pass_rates_are_an_error() -> None:
    with pytest.raises(FrontierError, match="no pass rates"):
        interference(pl.DataFrame())

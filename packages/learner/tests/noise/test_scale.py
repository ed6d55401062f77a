"""Noise within and between problems, against gradients that are made with both."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from isocompute.learner import LearnerConfig, prepare, with_cohorts
from isocompute.learner.noise import scale
from isocompute.learner.noise.scale import Noise, halves, sketch
from small_run import recorded, scored, written_out
from transformers import LlamaForCausalLM

PARAMETERS = 40
CONFIG = LearnerConfig(learning_rate=1.0)


def made(rng: np.random.Generator, *, problems: int, responses: int, between: float, within: float) -> np.ndarray:
    """Gradients of two groups of each problem around a common gradient of length 1."""
    common = np.zeros(PARAMETERS)
    common[0] = 1.0
    own = common + rng.normal(size=(problems, 1, PARAMETERS)) * (between / PARAMETERS) ** 0.5
    return own + rng.normal(size=(problems, 2, PARAMETERS)) * (within / responses / PARAMETERS) ** 0.5


def test_estimates_have_no_bias() -> None:
    rng = np.random.default_rng(0)
    found = [Noise.of(made(rng, problems=40, responses=8, between=3.0, within=100.0), responses=8) for _ in range(400)]
    for name, truth in (("signal", 1.0), ("between", 3.0), ("within", 100.0)):
        estimates = np.array([getattr(each, name)[0] for each in found])
        assert abs(estimates.mean() - truth) < 4 * estimates.std() / len(estimates) ** 0.5, name


def test_the_interval_of_the_first_guess_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(300):
        halves = made(rng, problems=100, responses=16, between=5.0, within=60.0)
        guess = Noise.of(halves, responses=16).first_guess()
        held += guess.lower <= 12.0 and (guess.upper is None or guess.upper >= 12.0)
    # 285 expected; 4 standard deviations of a binomial count are 15.
    assert 270 <= held <= 297


@given(st.integers(8, 12), st.integers(0, 10**6))
def test_what_is_left_out_is_what_estimating_without_it_gives(problems: int, seed: int) -> None:
    halves = np.random.default_rng(seed).normal(size=(problems + 1, 2, 5))
    whole, without = Noise.of(halves, responses=4), Noise.of(halves[1:], responses=4)
    for name in ("signal", "between", "within"):
        np.testing.assert_allclose(getattr(whole, name)[1], getattr(without, name)[0], rtol=1e-9, atol=1e-9)


def test_too_few_problems_are_refused() -> None:
    with pytest.raises(ValueError, match="8 problems or more"):
        Noise.of(np.zeros((7, 2, 3)), responses=4)


def test_a_group_has_the_gradient_of_its_objective(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "SKETCHED", 10**9)
    policy = LlamaForCausalLM.from_pretrained(model).eval()
    reward = pl.when(pl.col("problem_id") == "p1").then(0.0).otherwise("reward")
    rollouts = scored(policy, recorded(groups=2)).with_columns(reward=reward)
    first, equal = scale.gradients(model, rollouts, CONFIG, device="cpu")
    group = prepare(with_cohorts(rollouts.filter(problem_id="p0"), CONFIG.batch), CONFIG)
    expected = -written_out(policy, policy, group, CONFIG)[0].numpy()
    np.testing.assert_allclose(first, expected, rtol=1e-3, atol=1e-5 * np.abs(expected).max())
    assert not equal.any()


def test_the_halves_of_a_problem_are_groups_of_their_own() -> None:
    split = halves(recorded(groups=2))
    assert split["problem_id"].unique().sort().to_list() == ["p0/0", "p0/1", "p1/0", "p1/1"]
    assert split.filter(pl.col("problem_id") == "p0/1")["sample"].to_list() == [1, 3]


def test_products_of_sketches_are_those_of_the_vectors() -> None:
    rng = torch.Generator().manual_seed(0)
    one, other = torch.randn(300_000, generator=rng), torch.randn(300_000, generator=rng)
    a, b = (sketch([whole[:1000], whole[1000:]], "cpu") for whole in (one, other))
    assert len(a) == 2**16
    # Standard error of a product: the lengths' product over the root of the sketch's length.
    error = float(one.norm() * other.norm()) / 2**8
    assert abs(float(a @ b) - float(one @ other)) < 4 * error
    assert abs(float(a @ a) / float(one @ one) - 1) < 4 * 2**0.5 / 2**8

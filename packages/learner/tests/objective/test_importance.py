import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from isocompute.learner.objective.loss import TIS, importance_weights, mismatch

NATS = st.lists(st.floats(-8, 0, width=32), min_size=1, max_size=6)
LEARNER = torch.tensor([-1.0, -2.0, -0.5, -0.1], dtype=torch.float64)
SAMPLER = torch.tensor([-1.5, -1.0, -0.5, -30.0], dtype=torch.float64)
RESPONSE = torch.tensor([0, 0, 2, 3])


@given(NATS, st.floats(1, 4))
def test_weights_are_ratios_up_to_the_cap(nats: list[float], cap: float) -> None:
    learner, sampler = torch.tensor(nats), torch.full((len(nats),), -4.0)
    weights = importance_weights(learner, sampler, cap=cap)
    assert weights.tolist() == pytest.approx([min(math.exp(value + 4), cap) for value in nats], rel=1e-4)


def test_a_responses_weight_is_the_product_of_its_tokens_and_that_of_each_of_them() -> None:
    found = TIS["sequence"](LEARNER, SAMPLER, RESPONSE, 4, cap=2.0)
    assert found.tolist() == pytest.approx([math.exp(-0.5), math.exp(-0.5), 1.0, 2.0])
    one_each = TIS["sequence"](LEARNER, SAMPLER, torch.arange(4), 4, cap=2.0)
    assert torch.equal(one_each, TIS["token"](LEARNER, SAMPLER, RESPONSE, 4, cap=2.0))


@pytest.mark.parametrize("level", TIS)
def test_weights_have_no_gradient_and_are_1_where_the_sampler_is_the_learner(level: str) -> None:
    learner = LEARNER.clone().requires_grad_()
    weights = TIS[level](learner, LEARNER, RESPONSE, 4, cap=2.0)
    assert not weights.requires_grad
    assert weights.tolist() == [1.0] * 4
    assert TIS["none"](LEARNER, SAMPLER, RESPONSE, 4, cap=2.0).tolist() == [1.0] * 4


def test_how_far_the_sampler_is() -> None:
    found = mismatch(LEARNER, SAMPLER, RESPONSE, 5)
    difference = LEARNER - SAMPLER
    assert torch.equal(found.kl, -difference)
    assert torch.allclose(found.k3, difference.exp() - difference - 1)
    # A ratio beyond e^20 says no more than one of e^20.
    assert found.token_ratio.tolist() == pytest.approx([math.exp(0.5), math.exp(-1), 1.0, math.exp(20)])
    assert found.present.tolist() == [True, False, True, True, False]
    assert found.response_ratio[found.present].tolist() == pytest.approx([math.exp(-0.5), 1.0, math.exp(20)])


def test_a_policy_that_is_its_own_sampler_is_no_distance_away() -> None:
    found = mismatch(LEARNER, LEARNER, RESPONSE, 4)
    assert not found.kl.any()
    assert not found.k3.any()
    assert found.token_ratio.tolist() == [1.0] * 4

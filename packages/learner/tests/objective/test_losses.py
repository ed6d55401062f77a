import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from isocompute.learner.objective.losses import importance_weights, kl_k3, policy_loss, token_terms

LOGITS = st.lists(st.floats(-5, 5, width=32), min_size=2, max_size=6)
NATS = st.lists(st.floats(-8, 0, width=32), min_size=1, max_size=6)


@given(LOGITS, st.floats(0.25, 4))
def test_log_probabilities_are_a_distribution_at_any_temperature(logits: list[float], temperature: float) -> None:
    size = len(logits)
    terms = token_terms(torch.tensor([logits] * size), torch.arange(size), temperature=temperature)
    assert float(terms.logprobs.exp().sum()) == pytest.approx(1.0, abs=1e-5)
    assert -1e-6 <= float(terms.entropy[0]) <= math.log(size) + 1e-5
    assert float(terms.entropy[0]) == pytest.approx(-float((terms.logprobs.exp() * terms.logprobs).sum()), abs=1e-5)


@given(NATS, st.floats(1, 4))
def test_importance_weights_are_ratios_up_to_the_cap(nats: list[float], cap: float) -> None:
    learner, sampler = torch.tensor(nats), torch.full((len(nats),), -4.0)
    weights = importance_weights(learner, sampler, cap=cap)
    expected = [min(math.exp(value + 4), cap) for value in nats]
    assert weights.tolist() == pytest.approx(expected, rel=1e-4)


@given(NATS)
def test_the_kl_estimate_is_never_negative_and_zero_for_the_same_policy(nats: list[float]) -> None:
    policy = torch.tensor(nats)
    assert (kl_k3(policy, torch.full_like(policy, -4.0)) >= -1e-5).all()
    assert (kl_k3(policy, policy) == 0).all()


def test_the_kl_estimate_is_unbiased_under_the_policy() -> None:
    policy, reference = torch.tensor([0.7, 0.2, 0.1]).log(), torch.tensor([0.3, 0.3, 0.4]).log()
    exact = float((policy.exp() * (policy - reference)).sum())
    assert float((policy.exp() * kl_k3(policy, reference)).sum()) == pytest.approx(exact, abs=1e-6)


def test_the_surrogate_has_the_gradient_of_the_policy_gradient() -> None:
    logprobs = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    advantages, weights = torch.tensor([1.5, -0.5, 0.0]), torch.tensor([1.0, 2.0, 0.5])
    policy_loss(logprobs, advantages, weights).sum().backward()
    assert torch.equal(logprobs.grad, -weights * advantages)

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from isocompute.learner.objective.loss import KL_ESTIMATORS, kl_k1, kl_k2, kl_k3

NATS = st.lists(st.floats(-8, 0, width=32), min_size=1, max_size=6)
REFERENCE = torch.tensor([0.3, 0.3, 0.4], dtype=torch.float64).log()


def of_logits() -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, and the log-probabilities of three answers."""
    logits = torch.tensor([1.2, 0.1, -0.6], dtype=torch.float64, requires_grad=True)
    return logits, logits.log_softmax(0)


def exact() -> tuple[float, torch.Tensor]:
    """KL(policy ‖ reference) and its gradient."""
    logits, policy = of_logits()
    divergence = (policy.exp() * (policy - REFERENCE)).sum()
    divergence.backward()
    return float(divergence.detach()), logits.grad


def expected_gradient(name: str) -> torch.Tensor:
    """Mean, over the policy's own answers, of the gradient of an estimate."""
    logits, policy = of_logits()
    (policy.detach().exp() * KL_ESTIMATORS[name](policy, REFERENCE)).sum().backward()
    return logits.grad


@given(NATS)
def test_estimates_that_are_never_negative(nats: list[float]) -> None:
    policy = torch.tensor(nats)
    for estimate in (kl_k2, kl_k3):
        assert (estimate(policy, torch.full_like(policy, -4.0)) >= -1e-5).all()
        assert (estimate(policy, policy) == 0).all()


@pytest.mark.parametrize("estimate", [kl_k1, kl_k3])
def test_estimates_without_bias_under_the_policy(estimate: object) -> None:
    policy = of_logits()[1].detach()
    assert float((policy.exp() * estimate(policy, REFERENCE)).sum()) == pytest.approx(exact()[0], abs=1e-9)


def test_k2_has_the_gradient_of_the_kl_and_k1_has_none() -> None:
    assert torch.allclose(expected_gradient("k2"), exact()[1], atol=1e-12)
    assert torch.allclose(expected_gradient("k1"), torch.zeros(3, dtype=torch.float64), atol=1e-12)


def test_k3_has_the_gradient_of_the_other_direction() -> None:
    logits, policy = of_logits()
    (REFERENCE.exp() * (REFERENCE - policy)).sum().backward()
    assert torch.allclose(expected_gradient("k3"), logits.grad, atol=1e-12)
    assert not torch.allclose(expected_gradient("k3"), exact()[1], atol=1e-3)

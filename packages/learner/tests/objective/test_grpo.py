"""The objective on tensors alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from isocompute.learner.config import LearnerConfig
from isocompute.learner.errors import LearnerError
from isocompute.learner.objective.grpo import ObjectiveInputs, objective
from isocompute.learner.objective.losses import TokenTerms

PLAIN = LearnerConfig(learning_rate=1.0)
WHOLE = LearnerConfig(learning_rate=1.0, kl_coefficient=0.1, entropy_coefficient=0.01, importance_cap=1.5)
NATS = st.floats(-4, -0.125, width=32)
TOKENS = st.lists(st.tuples(NATS, NATS, NATS, st.floats(-2, 2, width=32)), min_size=1, max_size=8)


def inputs(tokens: list[tuple[float, float, float, float]], *, batch_tokens: int | None = None) -> ObjectiveInputs:
    """Tokens as (log-probability of the policy, of the sampler, of the base model; advantage)."""
    policy, sampler, reference, advantages = (torch.tensor(column) for column in zip(*tokens, strict=True))
    logprobs = policy.requires_grad_()
    return ObjectiveInputs(
        terms=TokenTerms(logprobs=logprobs, entropy=-logprobs * 0.5),
        sampler_logprobs=sampler,
        advantages=advantages,
        reference_logprobs=reference,
        batch_tokens=batch_tokens or len(tokens),
    )


@given(TOKENS)
def test_the_loss_is_the_formula_written_out(tokens: list[tuple[float, float, float, float]]) -> None:
    loss, sums = objective(inputs(tokens), WHOLE)
    expected = 0.0
    for policy, sampler, reference, advantage in torch.tensor(tokens, dtype=torch.float64):
        weight = (policy - sampler).exp().clamp(max=1.5)
        kl = (reference - policy).exp() - (reference - policy) - 1
        expected += float(-weight * advantage + 0.1 * kl - 0.01 * (-policy * 0.5))
    assert loss.item() == pytest.approx(expected / len(tokens), rel=1e-4, abs=1e-5)
    assert float(sums.loss) / len(tokens) == pytest.approx(loss.item(), rel=1e-6, abs=1e-7)


@given(TOKENS)
def test_the_gradient_is_that_of_the_policy_gradient_with_the_kl_and_without_the_weights(
    tokens: list[tuple[float, float, float, float]],
) -> None:
    """d/d log π of −w·A·π/π_old is −w·A, of k3 it is 1 − π_ref/π, of the entropy of these inputs −0.5."""
    given_inputs = inputs(tokens)
    loss, _ = objective(given_inputs, WHOLE)
    loss.backward()
    policy, sampler, reference, advantages = torch.tensor(tokens, dtype=torch.float64).T
    weights = (policy - sampler).exp().clamp(max=1.5)
    expected = (-weights * advantages + 0.1 * (1 - (reference - policy).exp()) - 0.01 * -0.5) / len(tokens)
    assert torch.allclose(given_inputs.terms.logprobs.grad.double(), expected, rtol=1e-4, atol=1e-5)


@given(TOKENS, st.integers(0, 8))
def test_shares_of_a_batch_add_up_however_it_is_cut(tokens: list[tuple[float, float, float, float]], cut: int) -> None:
    whole, sums = objective(inputs(tokens), WHOLE)
    parts = [objective(inputs(p, batch_tokens=len(tokens)), WHOLE) for p in (tokens[:cut], tokens[cut:]) if p]
    assert sum(loss.item() for loss, _ in parts) == pytest.approx(whole.item(), rel=1e-4, abs=1e-5)
    for name in ("loss", "importance_weight", "kl", "entropy"):
        total = sum(float(getattr(part, name)) for _, part in parts)
        assert total == pytest.approx(float(getattr(sums, name)), rel=1e-4, abs=1e-4)


def test_terms_that_are_off_add_nothing_and_the_sums_have_no_gradient() -> None:
    tokens = [(-1.0, -1.0, -3.0, 1.0), (-2.0, -2.0, -0.5, -0.5)]
    loss, sums = objective(inputs(tokens), PLAIN)
    assert loss.item() == -0.25
    assert [float(getattr(sums, name)) for name in ("loss", "importance_weight", "kl", "entropy")] == [-0.5, 2, 0, 1.5]
    assert not any(getattr(sums, name).requires_grad for name in ("loss", "importance_weight", "kl", "entropy"))


def test_a_kl_term_needs_the_base_model() -> None:
    one = inputs([(-1.0, -1.0, -1.0, 1.0)])
    without = ObjectiveInputs(
        terms=one.terms, sampler_logprobs=one.sampler_logprobs, advantages=one.advantages, batch_tokens=1
    )
    with pytest.raises(LearnerError, match=r"kl_coefficient is 0\.1, which needs reference_logprobs"):
        objective(without, WHOLE)

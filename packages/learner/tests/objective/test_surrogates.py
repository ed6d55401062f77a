import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.learner.objective.loss import SURROGATES, Policies, Surrogate

RATIOS = st.floats(0.25, 4.0)
TOKENS = st.lists(st.tuples(RATIOS, st.floats(-2, 2)), min_size=1, max_size=8)
CLIPS = {"clip_low": 0.2, "clip_high": 0.3}


def tried(
    name: str, tokens: list[tuple[float, float]], *, on_policy: bool = False, response: list[int] | None = None
) -> tuple[torch.Tensor, Surrogate]:
    """A surrogate of tokens as (π/π_old, advantage), and the gradient of its sum by the log-probabilities."""
    ratios, advantages = torch.tensor(tokens, dtype=torch.float64).T
    old = torch.linspace(-2, -1, len(tokens), dtype=torch.float64)
    logprobs = (old + ratios.log()).requires_grad_()
    index = torch.tensor(response or [0] * len(tokens))
    policies = Policies(
        logprobs=logprobs, old_logprobs=None if on_policy else old, response=index, responses=int(index.max()) + 1
    )
    found = SURROGATES[name](policies, advantages, **CLIPS)
    found.loss.sum().backward()
    return logprobs.grad, found


@pytest.mark.parametrize("name", SURROGATES)
@given(TOKENS)
@settings(max_examples=25)
def test_on_policy_all_have_the_policy_gradient(name: str, tokens: list[tuple[float, float]]) -> None:
    gradient, found = tried(name, tokens, on_policy=True)
    advantages = torch.tensor(tokens, dtype=torch.float64)[:, 1]
    assert torch.allclose(gradient, -advantages, atol=1e-12)
    assert torch.equal(found.ratio, torch.ones_like(found.ratio))
    assert not (found.clipped_low | found.clipped_high).any()


@given(RATIOS, st.floats(-2, 2).filter(lambda advantage: abs(advantage) > 0.01))
def test_clipping_takes_the_gradient_of_a_token_that_went_too_far(ratio: float, advantage: float) -> None:
    gradient, found = tried("clip", [(ratio, advantage)])
    too_far = (advantage > 0 and ratio > 1.3) or (advantage < 0 and ratio < 0.8)
    assert float(gradient) == pytest.approx(0.0 if too_far else -ratio * advantage, abs=1e-12)
    assert bool(found.clipped_low | found.clipped_high) == too_far
    assert float(found.loss.detach()) == pytest.approx(-min(ratio * advantage, min(max(ratio, 0.8), 1.3) * advantage))


@given(RATIOS, st.floats(-2, 2))
def test_cispo_keeps_the_gradient_of_every_token_and_bounds_its_weight(ratio: float, advantage: float) -> None:
    gradient, found = tried("cispo", [(ratio, advantage)])
    assert float(gradient) == pytest.approx(-min(max(ratio, 0.8), 1.3) * advantage, abs=1e-12)
    assert bool(found.clipped_low) == (ratio < 0.8)
    assert bool(found.clipped_high) == (ratio > 1.3)


def test_no_bound_is_no_bound() -> None:
    tokens = [(100.0, 1.0), (0.001, -1.0)]
    ratios, advantages = torch.tensor(tokens, dtype=torch.float64).T
    old = torch.full((2,), -9.0, dtype=torch.float64)
    policies = Policies(
        logprobs=old + ratios.log(), old_logprobs=old, response=torch.zeros(2, dtype=torch.long), responses=1
    )
    for name in ("clip", "cispo"):
        found = SURROGATES[name](policies, advantages, clip_low=None, clip_high=None)
        assert not (found.clipped_low | found.clipped_high).any()
    # A lower bound of 1 or more is none either: ratios are above 0.
    assert torch.equal(found.loss, SURROGATES["cispo"](policies, advantages, clip_low=1.5, clip_high=None).loss)


def test_a_responses_ratio_is_the_geometric_mean_of_its_tokens() -> None:
    tokens = [(1.1, 1.0), (1.0, 1.0), (0.25, 1.0), (4.0, 1.0), (3.0, 1.0)]
    gradient, found = tried("gspo", tokens, response=[0, 0, 1, 1, 2])
    assert found.ratio.tolist() == pytest.approx([1.1**0.5, 1.1**0.5, 1.0, 1.0, 3.0])
    assert found.clipped_high.tolist() == [False] * 4 + [True]
    # Inside a response ratios of 0.25 and 4 are not clipped, as each of them would be alone.
    assert gradient.tolist() == pytest.approx([-(1.1**0.5), -(1.1**0.5), -1.0, -1.0, 0.0])


@given(TOKENS)
def test_with_one_token_per_response_gspo_is_clip(tokens: list[tuple[float, float]]) -> None:
    alone = list(range(len(tokens)))
    gradient, found = tried("gspo", tokens, response=alone)
    expected, clipped = tried("clip", tokens, response=alone)
    assert torch.allclose(found.loss, clipped.loss)
    assert torch.allclose(gradient, expected)

"""The chunked head gives what the plain formula gives, with the same gradients."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from isocompute.learner.policy.head import token_terms


@given(st.integers(1, 9), st.integers(1, 12), st.floats(0.3, 2.0), st.booleans(), st.booleans(), st.integers(0, 99))
def test_values_and_gradients_are_those_of_autograd(
    count: int, chunk: int, temperature: float, bias: bool, entropy_gradient: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    linear = torch.nn.Linear(6, 11, bias=bias, dtype=torch.float64)
    hidden = torch.randn(count, 6, dtype=torch.float64, requires_grad=True)
    tokens = torch.randint(0, 11, (count,))
    by_logprob, by_entropy = torch.randn(2, count, dtype=torch.float64)
    leaves = [hidden, *linear.parameters()]
    found = token_terms(
        linear,
        hidden,
        tokens,
        temperature=temperature,
        chunk=chunk,
        dtype=torch.float64,
        entropy=True,
        entropy_gradient=entropy_gradient,
    )
    logits = linear(hidden) / temperature
    logprobs = logits.log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    picked = logprobs.gather(-1, tokens[:, None]).squeeze(-1)
    assert torch.allclose(found.logprobs, picked, atol=1e-12)
    assert torch.allclose(found.entropy, entropy, atol=1e-12)
    ours = (found.logprobs * by_logprob).sum()
    theirs = (picked * by_logprob).sum()
    if entropy_gradient:
        ours, theirs = ours + (found.entropy * by_entropy).sum(), theirs + (entropy * by_entropy).sum()
    for mine, expected in zip(torch.autograd.grad(ours, leaves), torch.autograd.grad(theirs, leaves), strict=True):
        assert torch.allclose(mine, expected, atol=1e-11)


def test_logits_of_all_tokens_are_never_held() -> None:
    """What is kept for the backward pass does not grow with the vocabulary."""
    linear = torch.nn.Linear(4, 5000, bias=False)
    hidden = torch.randn(64, 4, requires_grad=True)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t.numel()), t)[1], lambda t: t):
        token_terms(linear, hidden, torch.zeros(64, dtype=torch.long), temperature=1.0, chunk=8, dtype=torch.float32)
    assert sum(kept) <= linear.weight.numel() + 64 * 8


def test_a_head_in_bfloat16_rounds_products_and_nothing_else() -> None:
    """Its softmax, its log-probabilities and the sum of its gradient over chunks are those of float32."""
    torch.manual_seed(0)
    count, size, vocabulary = 256, 32, 50
    linear = torch.nn.Linear(size, vocabulary)
    hidden, tokens = torch.randn(count, size, requires_grad=True), torch.randint(0, vocabulary, (count,))
    found = token_terms(linear, hidden, tokens, temperature=0.7, chunk=4, dtype=torch.bfloat16, entropy=True)
    logits = (hidden.detach().bfloat16() @ linear.weight.detach().bfloat16().T).double() + linear.bias.detach()
    expected = (logits / 0.7).log_softmax(-1)
    assert found.logprobs.dtype == torch.float32
    assert found.entropy is not None
    assert torch.allclose(found.logprobs.detach().double(), expected.gather(-1, tokens[:, None])[:, 0], atol=2e-6)
    assert torch.allclose(found.entropy.double(), -(expected.exp() * expected).sum(-1), atol=5e-6)
    found.logprobs.sum().backward()
    # dW = Σ (1[token] − p)·h / τ; a sum of 64 chunks in bfloat16 is off by 0.010.
    slope = (torch.nn.functional.one_hot(tokens, vocabulary) - expected.exp()) / 0.7
    truth = slope.T @ hidden.detach().double()
    assert float((linear.weight.grad - truth).norm() / truth.norm()) < 0.005

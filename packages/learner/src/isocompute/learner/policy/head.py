"""Log-probabilities and entropies from the output head, in chunks of tokens, recomputed in the backward pass.

The logits of all tokens at once would take tokens × vocabulary numbers, several times: 8,192 tokens with a vocabulary
of 152,064 take 5 GB in float32. Here only one chunk of logits exists at a time, in either pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class Terms(NamedTuple):
    """Log-probabilities and entropies; each tensor has the shape ``(tokens,)``.

    Attributes:
        logprobs: Log-probability of each sampled token under the policy, with its gradient.
        entropy: Entropy of the policy's next-token distribution (nats), with its gradient if requested; None if not
            measured.
    """

    logprobs: torch.Tensor
    entropy: torch.Tensor | None


def token_terms(
    head: Any,
    hidden: torch.Tensor,
    tokens: torch.Tensor,
    *,
    temperature: float,
    chunk: int,
    dtype: torch.dtype,
    entropy: bool = False,
    entropy_gradient: bool = False,
) -> Terms:
    """Log-probabilities and entropies of sampled tokens at a temperature.

    With logits z = (h·Wᵀ + b)/τ: log π = z_token − logsumexp(z) and H = logsumexp(z) − Σ softmax(z)·z.

    Args:
        hidden: The hidden state that predicts each token, shape ``(tokens, hidden size)``.
        tokens: The sampled tokens, shape ``(tokens,)``.
        dtype: Type of matrix products. Softmax, results and the sum of the weight gradient over chunks are in float32
            or better.
    """
    found: Any = _Head.apply(
        hidden, head.weight, head.bias, tokens, temperature, chunk, dtype, entropy, entropy_gradient
    )
    logprobs, entropies = found
    return Terms(logprobs, entropies if entropy else None)


class _Head(torch.autograd.Function):  # type: ignore[misc]
    """See ``token_terms``."""

    @staticmethod
    def forward(
        context: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        tokens: torch.Tensor,
        temperature: float,
        chunk: int,
        dtype: torch.dtype,
        entropy: bool,
        entropy_gradient: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        count = hidden.shape[0]
        logprobs = torch.empty(count, dtype=_wide(dtype), device=hidden.device)
        sums = torch.empty_like(logprobs)
        entropies = torch.empty_like(logprobs) if entropy else logprobs.new_zeros(0)
        whole = weight.to(dtype)
        for part in _parts(count, chunk):
            logits = _logits(hidden[part], whole, bias, temperature)
            total = torch.logsumexp(logits, -1)
            sums[part] = total
            logprobs[part] = logits.gather(-1, tokens[part, None]).squeeze(-1) - total
            if entropy:
                shares = (logits - total[:, None]).exp_()
                entropies[part] = total - shares.mul_(logits).sum(-1)
                del shares
            # Otherwise they would still exist next to the logits of the next chunk.
            del logits
        context.save_for_backward(hidden, weight, bias, tokens, sums, entropies)
        context.settings = temperature, chunk, dtype, entropy_gradient
        if not entropy_gradient:
            context.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(context: Any, of_logprobs: torch.Tensor, of_entropy: torch.Tensor) -> Any:
        hidden, weight, bias, tokens, sums, entropies = context.saved_tensors
        temperature, chunk, dtype, entropy_gradient = context.settings
        whole = weight.to(dtype)
        of_hidden = torch.empty_like(hidden)
        # A head that is not learnt has no gradient.
        of_weight = torch.zeros_like(whole, dtype=_wide(dtype)) if context.needs_input_grad[1] else None
        of_bias = None if bias is None else torch.zeros_like(bias, dtype=_wide(dtype))
        for part in _parts(hidden.shape[0], chunk):
            logits = _logits(hidden[part], whole, bias, temperature)
            surprise = logits.sub_(sums[part, None])
            shares = surprise.exp()
            # d log π / dz = 1[token] − p; dH / dz = −p·(log p + H).
            by = -of_logprobs[part, None]
            if entropy_gradient:
                by = by - of_entropy[part, None] * (surprise + entropies[part, None])
            slope = shares.mul_(by)
            slope.scatter_add_(-1, tokens[part, None], of_logprobs[part, None])
            slope.div_(temperature)
            if of_bias is not None:
                of_bias += slope.sum(0)
            # Free each before computing the next product.
            del logits, surprise, shares, by
            slope = slope.to(dtype)
            of_hidden[part] = (slope @ whole).to(hidden.dtype)
            if of_weight is not None and of_weight.dtype == dtype:
                of_weight.addmm_(slope.T, hidden[part].to(dtype))
            elif of_weight is not None:
                of_weight += slope.T @ hidden[part].to(dtype)
            del slope
        grown = None if of_bias is None or bias is None else of_bias.to(bias.dtype)
        return of_hidden, None if of_weight is None else of_weight.to(weight.dtype), grown, *[None] * 6


def _parts(count: int, chunk: int) -> list[slice]:
    return [slice(start, min(start + chunk, count)) for start in range(0, count, chunk)]


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Type of sums and logarithms for products of type ``dtype``: float32 or better."""
    return torch.promote_types(dtype, torch.float32)


def _logits(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, temperature: float) -> torch.Tensor:
    logits = (hidden.to(weight.dtype) @ weight.T).to(_wide(weight.dtype))
    if bias is not None:
        logits += bias.to(logits.dtype)
    return logits if temperature == 1 else logits.div_(temperature)


class ValueHead(torch.nn.Module):  # type: ignore[misc]
    """A linear function of the last hidden states, 0 at first; ``share`` of its gradient passes into the policy."""

    def __init__(self, size: int, *, share: float, device: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.share = share
        self.linear = torch.nn.Linear(size, 1, device=device, dtype=dtype)
        torch.nn.init.zeros_(self.linear.weight)
        torch.nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Compute values, shape ``(tokens,)``, from hidden states of shape ``(tokens, hidden size)``."""
        given = hidden.detach()
        if self.share:
            # The value stays the same; only the gradient into the policy is scaled.
            given = given + self.share * (hidden - given)
        values: torch.Tensor = self.linear(given.to(self.linear.weight.dtype)).squeeze(-1)
        return values

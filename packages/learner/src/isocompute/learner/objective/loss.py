"""The objective of a micro-batch as a pure function of tensors and settings, and its components.

The loss is Σ_i weight_i · Σ_t term_it over responses i and their sampled tokens t. The weights are those of the
update's whole batch, so that the shares of micro-batches and ranks add up to the loss, whatever was skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import torch

from ..config import LearnerConfig
from ..errors import LearnerError
from ..records.steps import Mean, Share

SHARES = ("loss", "policy_loss", "value_loss")
"""Metrics that are shares of the batch's loss; all others are means over tokens."""
CLIPPED = ("clip_fraction_low", "clip_fraction_high")
"""Fractions of tokens whose gradient a bound removes or changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveInputs:
    """The inputs of the objective; tensors have the shape ``(tokens,)``, response after response.

    Attributes:
        logprobs: Log-probabilities of the sampled tokens under the policy (nats), with their gradient.
        sampler_logprobs: Log-probabilities of the same tokens under the sampler (nats).
        weights: The ``loss_weight`` of each token's response; see ``loss_weights``.
        response: Index of each token's response in the micro-batch (int64). All tokens of a response must be present.
        zero_variance: Whether the rewards of the token's group are equal (bool), for masked regularisers.
        entropy: Entropies of the policy (nats), with their gradient if they are part of the loss; None if not measured.
        old_logprobs: Log-probabilities under the policy before the batch's first update (nats); None on-policy, since
            that is the policy itself.
        reference_logprobs: Log-probabilities under the base model (nats); None without a KL term.
        values: The critic's values, with their gradient; None without a critic.
        old_values: The critic's values before the batch's first update.
        returns: The targets of the values.
    """

    logprobs: torch.Tensor
    sampler_logprobs: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor
    response: torch.Tensor
    responses: int
    zero_variance: torch.Tensor
    entropy: torch.Tensor | None = None
    old_logprobs: torch.Tensor | None = None
    reference_logprobs: torch.Tensor | None = None
    values: torch.Tensor | None = None
    old_values: torch.Tensor | None = None
    returns: torch.Tensor | None = None


def objective(inputs: ObjectiveInputs, config: LearnerConfig) -> tuple[torch.Tensor, dict[str, Mean]]:
    """Compute a micro-batch's share of the loss.

    Σ_t weight_t · (w_t·surrogate_t + β·KL_t − η·H_t + value loss_t). w is the truncated importance weight between
    learner and sampler; it is 1 if the surrogate's own ratio is to the sampler (``behaviour_is_old``). β and η are the
    coefficients of KL and entropy. The regularisers have no importance weight, as in veRL and TRL. Masked ones are 0
    where rewards are equal, with the same normaliser. The value loss has a weight of 1: ``critic.coefficient`` only
    scales its gradient from the head into the policy. The shares of an update add up to its loss.

    Returns:
        The share as a scalar with its gradient, and the metrics that ``loss_metrics`` names.
    """
    chosen = config.objective.resolved
    learner = inputs.logprobs.detach() if inputs.old_logprobs is None else inputs.old_logprobs
    place = (inputs.response, inputs.responses)
    old_logprobs, level = inputs.old_logprobs, config.importance.level
    if config.behaviour_is_old:
        # The papers use one ratio, from the sampler to the policy: a second correction would count it twice.
        old_logprobs, level = inputs.sampler_logprobs, "none"
    correction = importance_weights(learner, inputs.sampler_logprobs, *place, level=level, cap=config.importance.cap)
    policies = Policies(logprobs=inputs.logprobs, old_logprobs=old_logprobs, response=place[0], responses=place[1])
    surrogate = SURROGATES[str(chosen.surrogate)](
        policies, inputs.advantages, clip_low=chosen.clip_low, clip_high=chosen.clip_high
    )
    parts = {"policy_loss": correction * surrogate.loss}
    means = {
        "advantage": inputs.advantages,
        "advantage_square": inputs.advantages.square(),
        "ratio": surrogate.ratio,
        "clip_fraction_low": surrogate.clipped_low,
        "clip_fraction_high": surrogate.clipped_high,
        "importance_weight": correction,
    }
    for name, (term, measured) in _regularisers(inputs, config).items():
        means[name] = measured
        if term is not None:
            parts[name] = term
    if chosen.baseline == "gae":
        values, returns = (_needed(getattr(inputs, name), name, "a critic") for name in ("values", "returns"))
        parts["value_loss"] = value_loss(values, returns, inputs.old_values, clip=config.critic.clip)
        error = returns - values.detach()
        means |= {"value": values.detach(), "return": returns, "return_square": returns.square()}
        means |= {"value_error": error, "value_error_square": error.square()}
    terms = torch.stack(list(parts.values())).sum(0)
    share = (inputs.weights * terms).sum()
    shares = {name: inputs.weights * term.detach() for name, term in {"loss": terms, **parts}.items() if name in SHARES}
    return share, _metrics(inputs, learner, shares, means)


def loss_metrics(config: LearnerConfig, device: str = "cpu") -> dict[str, Mean]:
    """Metrics of an empty batch: the names that ``objective`` returns, in the same order, with zeros."""
    nothing = torch.zeros(0, device=device)
    others = {"response": nothing.long(), "responses": 0, "zero_variance": nothing.bool()}
    return objective(ObjectiveInputs(**{field.name: nothing for field in fields(ObjectiveInputs)} | others), config)[1]


def _regularisers(
    inputs: ObjectiveInputs, config: LearnerConfig
) -> dict[str, tuple[torch.Tensor | None, torch.Tensor]]:
    """Return each regulariser by name: its loss term (None if it is only measured) and its measured value."""
    found: dict[str, tuple[torch.Tensor | None, torch.Tensor]] = {}
    if config.kl.coefficient:
        reference = _needed(inputs.reference_logprobs, "reference_logprobs", "a KL")
        kl = KL_ESTIMATORS[config.kl.estimator](inputs.logprobs, reference)
        masked = inputs.zero_variance if config.kl.mask_zero_variance else None
        # A KL in the reward is already part of the advantages.
        term = config.kl.coefficient * _outside(kl, masked) if config.kl.place == "loss" else None
        found["kl"] = (term, kl.detach())
    if config.entropy.coefficient or config.entropy.measured:
        entropy = _needed(inputs.entropy, "entropy", "an entropy that is part of the loss or measured")
        masked = inputs.zero_variance if config.entropy.mask_zero_variance else None
        bonus = -config.entropy.coefficient * _outside(entropy, masked) if config.entropy.coefficient else None
        found["entropy"] = (bonus, entropy.detach())
    return found


def _outside(values: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    return values if mask is None else torch.where(mask, torch.zeros_like(values), values)


def _needed(tensor: torch.Tensor | None, name: str, reason: str) -> torch.Tensor:
    if tensor is None:
        raise LearnerError(f"{name} of the objective's inputs is None, and {reason} needs it")
    return tensor


def _metrics(
    inputs: ObjectiveInputs, learner: torch.Tensor, shares: dict[str, torch.Tensor], means: dict[str, torch.Tensor]
) -> dict[str, Mean]:
    """Sums over tokens and over responses.

    Two kinds of metrics show how far the sampler is from the learner: k1 and k3 estimates of KL(sampler ‖ learner)
    (nats), and ρ = π_learner / π_sampler of each token and of each response (the product over its tokens). ρ is not
    truncated, but kept within e^±``LOG_RATIO_BOUND``. If sampler and learner are the same, the mean of ρ is 1 and that
    of k3 is 0.
    """
    difference = (learner.detach() - inputs.sampler_logprobs).double()
    summed = response_sums(difference, inputs.response, inputs.responses)
    token_ratio, response_ratio = (
        values.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp() for values in (difference, summed)
    )
    means = means | {
        "mismatch_kl": -difference,
        "mismatch_k3": difference.exp() - difference - 1.0,
        "token_ratio": token_ratio,
        "token_ratio_square": token_ratio.square(),
    }
    columns = shares | means
    sums = dict(zip(columns, torch.stack([c.double() for c in columns.values()]).sum(1), strict=True))
    tokens = torch.tensor(float(len(learner)), dtype=torch.float64, device=learner.device)
    counts = dict.fromkeys(columns, tokens)
    # A response without tokens has no ratio.
    present = response_sums(torch.ones_like(difference), inputs.response, inputs.responses) > 0
    responses = torch.where(present, response_ratio, 0.0)
    sums["response_ratio"], sums["response_ratio_square"] = responses.sum(), responses.square().sum()
    counts["response_ratio"] = counts["response_ratio_square"] = present.sum().double()
    return {name: (Share if name in SHARES else Mean)(total=sums[name].detach(), count=counts[name]) for name in sums}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """Log-probabilities of tokens under the policy and under π_old, as in ``ObjectiveInputs``.

    Without ``old_logprobs`` π_old is the policy itself: every ratio is 1 and has the gradient.
    """

    logprobs: torch.Tensor
    old_logprobs: torch.Tensor | None
    response: torch.Tensor
    responses: int

    @property
    def log_ratio(self) -> torch.Tensor:
        """Log-ratio log π − log π_old of each token, with its gradient, shape ``(tokens,)``."""
        return self.logprobs - (self.logprobs.detach() if self.old_logprobs is None else self.old_logprobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surrogate:
    """Per-token loss term, the ratio π/π_old that it uses, and whether the ratio was clipped; shape ``(tokens,)``.

    Only the term has a gradient.
    """

    loss: torch.Tensor
    ratio: torch.Tensor
    clipped_low: torch.Tensor
    clipped_high: torch.Tensor


def policy_gradient(
    policies: Policies, advantages: torch.Tensor, *, clip_low: float | None, clip_high: float | None
) -> Surrogate:
    """REINFORCE (Williams, 1992): −A·log π, whose on-policy gradient equals that of the others. Nothing is clipped."""
    del clip_low, clip_high
    never = torch.zeros_like(advantages, dtype=torch.bool)
    ratio = policies.log_ratio.detach().exp()
    return Surrogate(loss=-advantages * policies.logprobs, ratio=ratio, clipped_low=never, clipped_high=never)


def clipped(
    policies: Policies, advantages: torch.Tensor, *, clip_low: float | None, clip_high: float | None
) -> Surrogate:
    """PPO's −min(r·A, clip(r, 1 − ε_low, 1 + ε_high)·A) with r = π/π_old (arXiv 1707.06347, equation 7).

    Different bounds are DAPO's clip-higher (arXiv 2503.14476, section 3.1); None means no bound. A token counts as
    clipped if it loses its gradient: r is below the lower bound with A < 0, or above the upper one with A > 0.
    """
    return _pessimistic(policies.log_ratio.exp(), advantages, clip_low, clip_high)


def cispo(
    policies: Policies, advantages: torch.Tensor, *, clip_low: float | None, clip_high: float | None
) -> Surrogate:
    """CISPO's −sg(clip(r, 1 − ε_low, 1 + ε_high))·A·log π with r = π/π_old (arXiv 2506.13585, equations 4 and 5).

    The ratio is a weight without gradient (sg), so a token with a clipped ratio still has a gradient. A token counts as
    clipped if its ratio is, whatever its advantage.
    """
    ratio = policies.log_ratio.detach().exp()
    low, high = _bounds(clip_low, clip_high)
    loss = -ratio.clamp(low, high) * advantages * policies.logprobs
    return Surrogate(loss=loss, ratio=ratio, clipped_low=ratio < low, clipped_high=ratio > high)


def gspo(policies: Policies, advantages: torch.Tensor, *, clip_low: float | None, clip_high: float | None) -> Surrogate:
    """``clipped`` with one ratio per response, s = (Π_t π/π_old)^(1/L) (GSPO, arXiv 2507.18071, equations 5 to 7).

    In the form of GSPO-token (equation 14) each token has the value s and the gradient s·∇log π. With one advantage per
    response, the mean over its tokens is GSPO's term. All tokens of a response must be present.
    """
    log_ratio = policies.log_ratio.detach()
    lengths = response_sums(torch.ones_like(log_ratio), policies.response, policies.responses)
    mean = response_sums(log_ratio, policies.response, policies.responses) / lengths.clamp(min=1)
    gradient = policies.logprobs - policies.logprobs.detach()
    return _pessimistic((mean[policies.response] + gradient).exp(), advantages, clip_low, clip_high)


SURROGATES: dict[str, Callable[..., Surrogate]] = {
    "policy_gradient": policy_gradient,
    "clip": clipped,
    "cispo": cispo,
    "gspo": gspo,
}
"""The surrogates by name; their arguments are those of ``clipped``."""


def _pessimistic(
    ratio: torch.Tensor, advantages: torch.Tensor, clip_low: float | None, clip_high: float | None
) -> Surrogate:
    low, high = _bounds(clip_low, clip_high)
    loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(low, high))
    ratio = ratio.detach()
    return Surrogate(
        loss=loss,
        ratio=ratio,
        clipped_low=(ratio < low) & (advantages < 0),
        clipped_high=(ratio > high) & (advantages > 0),
    )


def _bounds(clip_low: float | None, clip_high: float | None) -> tuple[float, float]:
    low = 0.0 if clip_low is None else max(0.0, 1.0 - clip_low)
    return low, torch.inf if clip_high is None else 1.0 + clip_high


def kl_k1(policy: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """The log-ratio, log π − log π_ref: unbiased, and negative for some tokens.

    As a loss term its gradient is ∇log π, whose mean over the policy's own tokens is 0: it only adds noise. It is meant
    for a KL in the reward, where only the value counts; in the loss it matches veRL's estimator of that name.
    """
    return policy - reference


def kl_k2(policy: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Half the squared log-ratio, (log π − log π_ref)² / 2: biased and never negative.

    As a loss term it has the gradient of the KL: the mean of (log π − log π_ref)·∇log π over the policy's own tokens is
    ∇KL(π ‖ π_ref).
    """
    return 0.5 * (policy - reference).square()


def kl_k3(policy: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Schulman's k3, exp(d) − d − 1 with d = log π_ref − log π: unbiased and never negative.

    As a loss term its gradient is (1 − π_ref/π)·∇log π. The mean over the policy's own tokens is the gradient of the
    reverse direction, ∇KL(π_ref ‖ π), and not ∇KL(π ‖ π_ref); the two agree to first order if the policies are close.
    GRPO (arXiv 2402.03300, equation 4), TRL and veRL's ``low_var_kl`` use this term.
    """
    difference = reference - policy
    return difference.exp() - difference - 1.0


KL_ESTIMATORS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {"k1": kl_k1, "k2": kl_k2, "k3": kl_k3}
"""The estimators by name (J. Schulman, Approximating KL Divergence, 2020); the first argument is the policy."""


LOG_RATIO_BOUND = 20.0
"""Bound on |log ratio| of a response in the mismatch metrics (nats): the square of a larger ratio says no more."""


def importance_weights(
    learner: torch.Tensor, sampler: torch.Tensor, response: torch.Tensor, responses: int, *, level: str, cap: float
) -> torch.Tensor:
    """Truncated importance weights, min(π_learner / π_sampler, cap), without gradient; shape ``(tokens,)``.

    A weight per response, the product of its tokens' ratios, is unbiased below the cap. A weight per token has lower
    variance and is biased.

    Args:
        learner: Log-probabilities under the learner (nats), shape ``(tokens,)``; so are the sampler's.
        response: Index of each token's response.
        level: ``token``, ``sequence``, or ``none`` for a weight of 1.
        cap: Largest weight (the TIS cap).
    """
    if level == "none":
        return torch.ones_like(learner)
    log_ratio = learner.detach() - sampler
    if level == "token":
        return log_ratio.exp().clamp(max=cap)
    return response_sums(log_ratio, response, responses).exp().clamp(max=cap)[response]


def response_sums(values: torch.Tensor, response: torch.Tensor, responses: int) -> torch.Tensor:
    """Sums over the tokens of each response, shape ``(responses,)``."""
    return torch.zeros(responses, dtype=values.dtype, device=values.device).index_add(0, response, values)


def value_loss(
    values: torch.Tensor, returns: torch.Tensor, old_values: torch.Tensor | None = None, *, clip: float | None = None
) -> torch.Tensor:
    """PPO's value loss, max((v − R)², (v_clip − R)²) / 2 with v_clip = clip(v, v_old − ε, v_old + ε).

    The larger of the two has no gradient once a value has moved more than ε towards its return, so one batch moves a
    value by about ε at most. Clipping needs the old values, and does nothing in the first update of a batch.

    Args:
        values: The critic's values, with their gradient. They, the other tensors and the result have the shape
            ``(tokens,)``.
        returns: Targets of the values.
        old_values: Values before the batch's first update; None means no bound.
        clip: ε; None means no bound.
    """
    squares = (values - returns).square()
    if clip is not None and old_values is not None:
        bounded = torch.clamp(values, old_values - clip, old_values + clip)
        squares = torch.maximum(squares, (bounded - returns).square())
    return 0.5 * squares


def loss_weights(
    tokens: np.ndarray, groups: np.ndarray, *, aggregation: str, constant_length: int | None = None
) -> np.ndarray:
    """Loss weight of each response's tokens, shape ``(responses,)``: 1/size, or 0 without tokens.

    The size depends on ``aggregation``:

    * ``token``: T, the tokens of the batch: every token counts the same (DAPO, arXiv 2503.14476, section 3.3).
    * ``sequence``: R·L_i, with R responses that have tokens: every response counts the same (GRPO, arXiv 2402.03300).
    * ``prompt``: G·T_g, with G groups that have tokens: every problem counts the same (ScaleRL, section 3.2).
    * ``constant``: R·``constant_length``: sums over tokens, without length bias (Dr. GRPO, arXiv 2503.20783, section
      3.2).

    Args:
        tokens: Sampled tokens of each response, shape ``(responses,)``.
        groups: Group of each response, as integers from 0.
    """
    if aggregation == "token":
        sizes = np.full(len(tokens), tokens.sum(dtype=np.float64))
    elif aggregation == "sequence":
        sizes = np.count_nonzero(tokens) * tokens.astype(np.float64)
    elif aggregation == "prompt":
        in_group = np.bincount(groups, weights=tokens) if len(tokens) else np.zeros(0)
        sizes = np.count_nonzero(in_group) * in_group[groups]
    else:
        assert constant_length is not None
        sizes = np.full(len(tokens), np.count_nonzero(tokens) * float(constant_length))
    weights: np.ndarray = np.divide(1.0, sizes, out=np.zeros(len(sizes)), where=sizes > 0)
    return weights

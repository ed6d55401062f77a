"""The objective of a micro-batch: a pure function of tensors and settings, without a model."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..config import LearnerConfig
from ..errors import LearnerError
from ..records.metrics import Mean, Share
from .critic import value_loss
from .importance import TIS, mismatch
from .kl import KL_ESTIMATORS
from .surrogates import SURROGATES, Policies, Surrogate

SHARES = ("loss", "policy_loss", "value_loss")
"""Metrics that are shares of the batch's loss; the others are means over tokens."""
CLIPPED = ("clip_fraction_low", "clip_fraction_high")
"""Shares of tokens whose gradient a bound takes or changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveInputs:
    """What the objective is a function of; tensors have the shape ``(tokens,)``, response after response.

    Attributes:
        logprobs: Log-probabilities of the sampled tokens under the policy (nats), with their gradient.
        sampler_logprobs: Log-probabilities of the same tokens under the sampler (nats).
        advantages: The advantage of each token.
        weights: The ``loss_weight`` of each token's response; see ``aggregation``.
        response: Index of each token's response in the micro-batch (int64). All tokens of a response must be there.
        responses: How many responses there are.
        zero_variance: Whether the rewards of the token's group are equal (bool), for regularisers that are masked.
        entropy: Entropies of the policy (nats), with their gradient where they are part of the loss; None where they
            are neither that nor measured.
        old_logprobs: Log-probabilities under the policy before the batch's first update (nats); None on-policy, where
            that is the policy itself.
        reference_logprobs: Log-probabilities under the base model (nats); None where there is no KL term.
        values: The critic's values, with their gradient; None without a critic.
        old_values: Its values before the batch's first update.
        returns: What the values should be.
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

    Σ_t weight_t · (w_t·surrogate_t + β·KL_t − η·H_t + value loss_t), with w the truncated importance weight between
    learner and sampler, β and η the coefficients of KL and entropy. The regularisers have no importance weight, as in
    veRL and TRL, and masked ones are 0 where rewards are equal, with the same normaliser. The value loss enters with a
    weight of 1: ``critic.coefficient`` is what passes of its gradient from the head into the policy. Shares of one
    update add up to its loss.

    Returns:
        The share as a scalar with its gradient, and the metrics that ``loss_metrics`` names.

    Raises:
        LearnerError: A tensor that the configuration needs is missing.
    """
    chosen = config.objective.resolved
    learner = inputs.logprobs.detach() if inputs.old_logprobs is None else inputs.old_logprobs
    place = (inputs.response, inputs.responses)
    correction = TIS[config.importance.level](learner, inputs.sampler_logprobs, *place, cap=config.importance.cap)
    policies = Policies(
        logprobs=inputs.logprobs, old_logprobs=inputs.old_logprobs, response=place[0], responses=place[1]
    )
    surrogate = SURROGATES[str(chosen.surrogate)](
        policies, inputs.advantages, clip_low=chosen.clip_low, clip_high=chosen.clip_high
    )
    parts = {"policy_loss": correction * surrogate.loss}
    means = _policy_means(inputs, surrogate, correction)
    for name, (term, measured) in _regularisers(inputs, config).items():
        means[name] = measured
        if term is not None:
            parts[name] = term
    if chosen.baseline == "gae":
        parts["value_loss"], of_values = _critic(inputs, config)
        means |= of_values
    terms = torch.stack(list(parts.values())).sum(0)
    share = (inputs.weights * terms).sum()
    shares = {name: inputs.weights * parts[name].detach() for name in SHARES if name in parts}
    shares["loss"] = inputs.weights * terms.detach()
    return share, _metrics(inputs, config, learner, shares, means)


def loss_metrics(config: LearnerConfig, device: str = "cpu") -> dict[str, Mean]:
    """The metrics of no responses at all: the names that ``objective`` returns, in their order, each with zeros.

    Args:
        config: What is maximised; the names depend on nothing else.
    """
    names = ["loss", "policy_loss"]
    gae = config.objective.resolved.baseline == "gae"
    names += ["value_loss"] if gae else []
    names += ["advantage", "advantage_square", "ratio", *CLIPPED, "importance_weight"]
    names += ["kl"] if config.kl.coefficient else []
    names += ["entropy"] if config.entropy.coefficient or config.entropy.measured else []
    names += ["value", "return", "return_square", "value_error", "value_error_square"] if gae else []
    names += ["mismatch_kl", "mismatch_k3", "token_ratio", "token_ratio_square"]
    names += ["response_ratio", "response_ratio_square"]
    zero = torch.zeros((), dtype=torch.float64, device=device)
    return {name: (Share if name in SHARES else Mean)(total=zero, count=zero) for name in names}


def _policy_means(inputs: ObjectiveInputs, surrogate: Surrogate, correction: torch.Tensor) -> dict[str, torch.Tensor]:
    return {
        "advantage": inputs.advantages,
        "advantage_square": inputs.advantages.square(),
        "ratio": surrogate.ratio,
        "clip_fraction_low": surrogate.clipped_low,
        "clip_fraction_high": surrogate.clipped_high,
        "importance_weight": correction,
    }


def _regularisers(
    inputs: ObjectiveInputs, config: LearnerConfig
) -> dict[str, tuple[torch.Tensor | None, torch.Tensor]]:
    """By name, each regulariser's term of the loss (None where it is only measured), and what is measured."""
    found: dict[str, tuple[torch.Tensor | None, torch.Tensor]] = {}
    if config.kl.coefficient:
        reference = _needed(inputs.reference_logprobs, "reference_logprobs", "a KL")
        kl = KL_ESTIMATORS[config.kl.estimator](inputs.logprobs, reference)
        masked = inputs.zero_variance if config.kl.mask_zero_variance else None
        # In the reward it has become a part of the advantages.
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


def _critic(inputs: ObjectiveInputs, config: LearnerConfig) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    values = _needed(inputs.values, "values", "a critic")
    returns = _needed(inputs.returns, "returns", "a critic")
    error = returns - values.detach()
    return value_loss(values, returns, inputs.old_values, clip=config.critic.clip), {
        "value": values.detach(),
        "return": returns,
        "return_square": returns.square(),
        "value_error": error,
        "value_error_square": error.square(),
    }


def _needed(tensor: torch.Tensor | None, name: str, reason: str) -> torch.Tensor:
    if tensor is None:
        raise LearnerError(f"{name} of the objective's inputs is None, and {reason} needs it")
    return tensor


def _metrics(
    inputs: ObjectiveInputs,
    config: LearnerConfig,
    learner: torch.Tensor,
    shares: dict[str, torch.Tensor],
    means: dict[str, torch.Tensor],
) -> dict[str, Mean]:
    """Sums of everything per token and per response, as the names of ``loss_metrics`` say."""
    apart = mismatch(learner, inputs.sampler_logprobs, inputs.response, inputs.responses)
    means = means | {
        "mismatch_kl": apart.kl,
        "mismatch_k3": apart.k3,
        "token_ratio": apart.token_ratio,
        "token_ratio_square": apart.token_ratio.square(),
    }
    columns = shares | means
    sums = dict(zip(columns, torch.stack([c.double() for c in columns.values()]).sum(1), strict=True))
    tokens = torch.tensor(float(len(learner)), dtype=torch.float64, device=learner.device)
    counts = dict.fromkeys(columns, tokens)
    responses = torch.where(apart.present, apart.response_ratio, 0.0)
    sums["response_ratio"], sums["response_ratio_square"] = responses.sum(), responses.square().sum()
    counts["response_ratio"] = counts["response_ratio_square"] = apart.present.sum().double()
    named = loss_metrics(config, str(learner.device))
    return {name: type(zero)(total=sums[name].detach(), count=counts[name]) for name, zero in named.items()}

"""Checks that the sampler holds the learner's weights, by comparing their log-probabilities of the same tokens.

The parity chain is engine = learner = reference. Each link has tests:

* Engine = model: after every sync vLLM's log-probabilities equal those of transformers, in float32 to 1e-4 nats
  (rollout, ``tests/samplers/every_sampler.py``, for every sampler).
* Engine = learner: the first micro-batch of every update is compared with the sampler before any backward pass, here,
  and by ``loop.sync_and_check`` after the first sync and after a resume (``tests/training/test_loop.py``). A bfloat16
  sampler agrees on average only: its mean, k3 and quantile reveal a wrong tensor or weights that are many updates old.
  Weights that are one update old are recognised by the version of each response (``tests/updates/test_sync.py``).
* Learner = learner: the updates are the same with micro-batches of one response or of all, with one rank or two, and in
  a resumed or an uninterrupted run; the last pair agrees bit for bit (``tests/updates/test_learner.py``,
  ``tests/ranks``, ``tests/training``).
* Learner = reference: the learner's updates equal AdamW steps with the gradient written out token by token, without
  padding (``tests/updates/test_learner.py``), and its objective equals the formula (``tests/objective/test_loss.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from ..config import CHECKS, TOLERANCES, LearnerConfig
from ..errors import DivergenceError, SyncError
from ..records.steps import Agreement

QUANTILE = 0.99
BROKEN = Agreement(maximum=math.inf, mean=math.inf, k3=math.inf, quantile=math.inf)
"""The agreement of a sampler with a log-probability that is not finite."""

Reduce = Callable[[torch.Tensor], None]
"""Combines a tensor over the ranks, in place."""


def compare(learner: torch.Tensor, sampler: torch.Tensor) -> torch.Tensor:
    """Compare the sampler's log-probabilities with the learner's, over the sampled tokens.

    Returns:
        Shape ``(3, tokens)``, float64: |learner − sampler| (nats) and k3 of KL(sampler ‖ learner) (nats), both infinite
        if they are not numbers; and 1 where the learner's own log-probability is not finite, else 0.
    """
    # In float32 the rounding error of k3 would exceed k3 itself.
    difference = learner.detach().double() - sampler.double()
    k3 = difference.exp() - 1.0 - difference
    # The maximum of NaNs is a NaN, which no comparison would catch.
    measured = torch.nan_to_num(torch.stack([difference.abs(), k3]), nan=math.inf, posinf=math.inf)
    return torch.cat([measured, (~learner.isfinite()).double()[None]])


def agreement(compared: torch.Tensor, *, step: int, largest: Reduce, total: Reduce) -> Agreement:
    """Combine the results of ``compare`` over tokens and ranks, which must all call this; all 0 if there is no token.

    Args:
        step: The step that would use the responses.
        largest: Takes the elementwise maximum over the ranks; ``total`` sums over them.
    """
    difference, k3, broken = compared
    tokens = difference.numel()
    worst = torch.zeros(3, dtype=torch.float64, device=compared.device)
    if tokens:
        # An order statistic, not an interpolation between two, since infinite differences are ordered, too.
        quantile = difference.kthvalue(math.ceil(QUANTILE * tokens)).values
        worst = torch.stack([difference.max(), quantile, broken.max()])
    sums = torch.stack([difference.sum(), k3.sum(), torch.full_like(worst[0], tokens)])
    largest(worst)
    total(sums)
    maximum, at_quantile, any_broken = worst.tolist()
    check_finite(any_broken, step=step)
    mean, mean_k3 = (sums[:2] / sums[2].clamp(min=1)).tolist()
    return Agreement(maximum=maximum, mean=mean, k3=mean_k3, quantile=at_quantile)


def check_finite(broken: float, *, step: int) -> None:
    """Refuse to continue with a policy whose own log-probabilities are not finite; no sampler is to blame for that."""
    if broken:
        raise DivergenceError(
            f"before step {step} a log-probability of the learner's own is not finite: the policy has diverged; "
            "no update was made"
        )


def check_sync(found: Agreement, config: LearnerConfig, *, step: int) -> None:
    """Refuse to learn from responses of other weights; figures without a tolerance are not checked."""
    if exceeded(found, config):
        raise SyncError(
            f"before step {step} the sampler's log-probabilities differ from the learner's by "
            f"{described(found, config)}: {_cause(found, config)}; no update was made"
        )


def _cause(found: Agreement, config: LearnerConfig) -> str:
    """Describe the likely cause, and the cure if the cause is rounding."""
    if exceeded(found, replace(config, sync=replace(TOLERANCES["bfloat16"], quantile=None))):
        return "the sampler does not hold the learner's weights"
    if config.rounding == "float32":
        cure = f"sampler_dtype, which is {config.sampler_dtype}, must be its type and sync be left out"
    else:
        cure = f"sync.{' and sync.'.join(exceeded(found, config))} must be larger"
    return (
        "mean and k3 are of the size of rounding in 16 bits, which is the likely cause where the sampler rounds so: "
        f"then {cure}; else the sampler does not hold the learner's weights"
    )


def exceeded(found: Agreement, config: LearnerConfig) -> list[str]:
    """Return the names of the tolerances that an agreement exceeds."""
    figures = dict(zip(CHECKS, (found.maximum, found.mean, found.k3, found.quantile), strict=True))
    limits = {name: getattr(config.tolerances, name) for name in CHECKS}
    # Written with «<=», since a NaN is no agreement.
    return [name for name, limit in limits.items() if limit is not None and not figures[name] <= limit]


def described(found: Agreement, config: LearnerConfig) -> str:
    """Describe all four figures, each with its tolerance and whether it exceeds it."""
    above = exceeded(found, config)

    def limit(name: str) -> str:
        value = getattr(config.tolerances, name)
        if value is None:
            return f"sync.{name} is off"
        return f"{'above ' if name in above else ''}sync.{name} = {value:g}"

    return (
        f"up to {found.maximum:.2g} nats ({limit('tolerance')}), on average {found.mean:.2g} "
        f"({limit('mean')}), at the {QUANTILE} quantile {found.quantile:.2g} ({limit('quantile')}) and by a "
        f"k3 of {found.k3:.2g} ({limit('k3')})"
    )

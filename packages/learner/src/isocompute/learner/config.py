"""Settings of the learner, validated when they are made."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .errors import LearnerError


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerConfig:
    """How the policy is updated.

    Attributes:
        learning_rate: AdamW's peak learning rate at this run's batch size.
        warmup_steps: Steps over which the learning rate rises linearly to its peak.
        weight_decay: AdamW's decoupled weight decay.
        gradient_clip: Largest norm of the whole gradient.
        kl_coefficient: Weight of KL(policy ‖ base), estimated per token (k3); 0 turns it off, and then no
            reference model is loaded.
        entropy_coefficient: Weight of the entropy bonus per token; 0 turns it off.
        importance_cap: Cap of the truncated importance weight between learner and sampler.
        temperature: Sampling temperature, which the sampler's log-probabilities include.
        filter_zero_variance: Whether groups with equal rewards are left out of the update (their rollouts
            are still paid for, cohort ``filtered``).
        micro_batch_rollouts: Responses per forward and backward pass of a rank.
        sync_tolerance: Largest difference (nats) between the sampler's and the learner's log-probability
            of a token that counts as the same weights; 1e-4 fits float32.

    Raises:
        LearnerError: A value is out of its range.
    """

    learning_rate: float
    warmup_steps: int = 10
    weight_decay: float = 0.0
    gradient_clip: float = 1.0
    kl_coefficient: float = 0.0
    entropy_coefficient: float = 0.0
    importance_cap: float = 2.0
    temperature: float = 1.0
    filter_zero_variance: bool = False
    micro_batch_rollouts: int = 256
    sync_tolerance: float = 1e-4

    def __post_init__(self) -> None:
        positive = ("learning_rate", "gradient_clip", "importance_cap", "temperature", "sync_tolerance")
        for name in positive:
            value = getattr(self, name)
            if not (_is_number(value) and value > 0):
                raise LearnerError(f"{name} is {value!r}; it has to be a positive number")
        for name in ("weight_decay", "kl_coefficient", "entropy_coefficient", "warmup_steps"):
            value = getattr(self, name)
            if not (_is_number(value) and value >= 0):
                raise LearnerError(f"{name} is {value!r}; it has to be a number, 0 or more")
        if not (isinstance(self.micro_batch_rollouts, int) and self.micro_batch_rollouts >= 1):
            raise LearnerError(f"micro_batch_rollouts is {self.micro_batch_rollouts!r}; it has to be 1 or more, whole")

    def learning_rate_at(self, step: int) -> float:
        """Learning rate of update ``step`` (counted from 1): a linear warm-up, then constant."""
        return self.learning_rate * min(1.0, step / max(1, self.warmup_steps))


def _is_number(value: object) -> bool:
    # YAML reads 1e-3, without a point, as text.
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

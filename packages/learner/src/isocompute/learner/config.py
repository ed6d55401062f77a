"""Settings of the learner, validated when they are made."""

from __future__ import annotations

from dataclasses import dataclass, field

from .errors import LearnerError
from .settings.adapter import AdapterConfig
from .settings.batch import BatchConfig
from .settings.checks import positive
from .settings.compute import ComputeConfig
from .settings.objective import (
    CriticConfig,
    EntropyConfig,
    ImportanceConfig,
    KLConfig,
    ObjectiveConfig,
)
from .settings.optimizer import OptimizerConfig
from .settings.sync import SyncConfig

__all__ = [
    "AdapterConfig",
    "BatchConfig",
    "ComputeConfig",
    "CriticConfig",
    "EntropyConfig",
    "ImportanceConfig",
    "KLConfig",
    "LearnerConfig",
    "ObjectiveConfig",
    "OptimizerConfig",
    "SyncConfig",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerConfig:
    """How the policy is updated.

    Attributes:
        learning_rate: AdamW's peak learning rate at this run's batch size.
        temperature: Sampling temperature, which the sampler's log-probabilities include.
        objective: What is maximised.
        kl: KL(policy ‖ base).
        entropy: The entropy bonus.
        importance: The correction for a sampler that is not quite the learner.
        critic: The value head of ``ppo``.
        adapter: A low-rank adapter (LoRA) that is learnt in place of the model's weights; None: the weights are.
        batch: Which responses are learnt from.
        optimizer: AdamW and its schedule.
        compute: How an update is computed.
        sync: When the sampler counts as holding the learner's weights.

    Raises:
        LearnerError: A value is out of its range, or values contradict each other.
    """

    learning_rate: float
    temperature: float = 1.0
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    kl: KLConfig = field(default_factory=KLConfig)
    entropy: EntropyConfig = field(default_factory=EntropyConfig)
    importance: ImportanceConfig = field(default_factory=ImportanceConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    adapter: AdapterConfig | None = None
    batch: BatchConfig = field(default_factory=BatchConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    sync: SyncConfig = field(default_factory=SyncConfig)

    def __post_init__(self) -> None:
        positive(self, "learning_rate", "temperature")
        # Whatever is missing is named now, and not in the first update.
        chosen = self.objective.resolved
        for given, name, reason in (
            (chosen.surrogate == "policy_gradient" and {self.objective.clip_low, self.objective.clip_high} != {None},
             "a bound of the ratio", "surrogate is 'policy_gradient', which clips nothing"),
            (self.batch.trained_rollouts is not None and chosen.baseline == "gae",
             "batch.trained_rollouts", "the baseline is a critic's, which the other responses do not sharpen"),
        ):  # fmt: skip
            if given:
                raise LearnerError(f"{name} is set, and {reason}: it must be left out")

    def learning_rate_at(self, step: int) -> float:
        """Learning rate of update ``step``, counted from 1; see ``OptimizerConfig.factor_at``."""
        return self.learning_rate * self.optimizer.factor_at(step)

    @property
    def measures_first(self) -> bool:
        """Whether a batch passes through the model once before it is learnt from.

        So it is where advantages depend on it, and where updates are off-policy.
        """
        return self.measures_for_advantages or self.objective.off_policy

    @property
    def measures_for_advantages(self) -> bool:
        """Whether advantages depend on what is measured: on values, or on a KL in the reward."""
        in_reward = bool(self.kl.coefficient) and self.kl.place == "reward"
        return in_reward or self.objective.resolved.baseline == "gae"

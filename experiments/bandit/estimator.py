"""The gradient that a group of responses gives, with the learner's own advantages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from isocompute.learner.objective.advantages import response_advantages

from ..errors import ExperimentError

SCALES = ("none", "group")


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimator:
    """GRPO on one problem, and REINFORCE for comparison.

    Attributes:
        rollouts_per_problem: n, the responses of a group.
        baseline: Advantages are relative to the mean reward of the ``group``, or rewards as they are (``none``).
        scale: Advantages are divided by the sample standard deviation of the ``group``, or not (``none``).

    Raises:
        ExperimentError: A name is unknown, or there are fewer responses than a group baseline needs.
    """

    rollouts_per_problem: int
    baseline: str = "group"
    scale: str = "none"

    def __post_init__(self) -> None:
        for name, known in (("baseline", ("none", "group")), ("scale", SCALES)):
            if getattr(self, name) not in known:
                raise ExperimentError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(known)}")
        if self.baseline == "none" and self.scale == "group":
            raise ExperimentError("scale is 'group', which needs baseline: group")
        least = 1 if self.baseline == "none" else 2
        if self.rollouts_per_problem < least:
            raise ExperimentError(
                f"rollouts_per_problem is {self.rollouts_per_problem}; with baseline {self.baseline} it must be "
                f"{least} or more"
            )

    def advantages(self, rewards: np.ndarray) -> np.ndarray:
        """Advantages of groups of responses, by the learner's own ``response_advantages``.

        Args:
            rewards: One group a row, shape ``(groups, n)``.

        Returns:
            Of the same shape.
        """
        if self.baseline == "none":
            return rewards
        groups = np.repeat(np.arange(len(rewards)), rewards.shape[1])
        flat = response_advantages(rewards.reshape(-1), groups, baseline="group", scale=self.scale)
        return flat.reshape(rewards.shape)

    def gradients(self, answers: np.ndarray, rewards: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
        """Policy gradient of each group with respect to the logits, (1/n) Σ_i A_i ∇log π(a_i).

        For a softmax, ∂log π(a)/∂θ_k = 1{a = k} − π_k.

        Args:
            answers: The answer of each response, shape ``(groups, n)``.
            rewards: Its reward, of the same shape.
            probabilities: The policy of each group, shape ``(groups, answers)``.

        Returns:
            Shape ``(groups, answers)``.
        """
        advantages = self.advantages(rewards)
        chosen = np.stack(
            [(advantages * (answers == answer)).sum(axis=1) for answer in range(probabilities.shape[1])], axis=1
        )
        gradients: np.ndarray = (chosen - advantages.sum(axis=1, keepdims=True) * probabilities) / answers.shape[1]
        return gradients

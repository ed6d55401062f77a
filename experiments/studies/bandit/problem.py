"""A problem with a few answers, a softmax policy over them, and the gradient that a group of responses gives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from isocompute.learner.objective.advantages import response_advantages


def policy(logits: np.ndarray) -> np.ndarray:
    """Probabilities of the answers, softmax(logits), of the same shape."""
    shifted = np.exp(logits - logits.max())
    return np.asarray(shifted / shifted.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandit:
    """A single problem: K answers, each of which is rewarded with a probability of its own.

    With ``rewards=(1.0, 0.0, 0.0)`` the first answer is right and the verifier never errs; ``(0.75, 0.25)`` is a
    verifier that errs one time in four.

    Attributes:
        rewards: Probability of a reward of 1 for each answer; else it is 0.
    """

    rewards: tuple[float, ...]

    def gradient(self, logits: np.ndarray) -> np.ndarray:
        """Gradient of the expected reward V = Σ_k π_k r_k with respect to the logits, ∂V/∂θ_k = π_k (r_k − V)."""
        chances, rewards = policy(logits), np.asarray(self.rewards)
        return np.asarray(chances * (rewards - chances @ rewards))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimator:
    """GRPO on one problem, and REINFORCE for comparison.

    Attributes:
        rollouts_per_problem: n, the responses of a group.
        baseline: Advantages are relative to the mean reward of the ``group``, or rewards as they are (``none``).
        scale: Advantages are divided by the sample standard deviation of the ``group``, or not (``none``).
    """

    rollouts_per_problem: int
    baseline: str = "group"
    scale: str = "none"

    def gradients(self, answers: np.ndarray, rewards: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
        """Policy gradient of each group with respect to the logits, (1/n) Σ_i A_i ∇log π(a_i).

        A_i are the learner's own ``response_advantages``. For a softmax, ∂log π(a)/∂θ_k = 1{a = k} − π_k.

        Args:
            answers: The answer of each response, shape ``(groups, n)``.
            rewards: Its reward, of the same shape.
            probabilities: The policy, shape ``(answers,)``.

        Returns:
            Shape ``(groups, answers)``.
        """
        advantages = rewards
        if self.baseline == "group":
            groups = np.repeat(np.arange(len(rewards)), rewards.shape[1])
            flat = response_advantages(rewards.reshape(-1), groups, baseline="group", scale=self.scale)
            advantages = flat.reshape(rewards.shape)
        chosen = np.stack([(advantages * (answers == k)).sum(axis=1) for k in range(len(probabilities))], axis=1)
        return np.asarray((chosen - advantages.sum(axis=1, keepdims=True) * probabilities) / answers.shape[1])

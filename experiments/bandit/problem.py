"""A problem with a few answers, and a softmax policy over them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import ExperimentError


def policy(logits: np.ndarray) -> np.ndarray:
    """Probabilities of the answers, softmax(logits).

    Args:
        logits: Shape ``(..., answers)``.

    Returns:
        Probabilities, of the same shape.
    """
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities: np.ndarray = shifted / shifted.sum(axis=-1, keepdims=True)
    return probabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandit:
    """A single problem: K answers, each of which is rewarded with a probability of its own.

    With ``rewards=(1.0, 0.0, 0.0)`` the first answer is right and the verifier never errs; ``(0.75, 0.25)`` is a
    verifier that errs one time in four.

    Attributes:
        rewards: Probability of a reward of 1 for each answer; else it is 0.

    Raises:
        ExperimentError: There are fewer than two answers, or a probability is none.
    """

    rewards: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.rewards) < 2:
            raise ExperimentError(f"rewards has {len(self.rewards)} answers; a bandit must have 2 or more")
        for index, probability in enumerate(self.rewards):
            if not 0 <= probability <= 1:
                raise ExperimentError(f"reward {index} is {probability!r}; it must be a probability, from 0 to 1")

    @property
    def noiseless(self) -> bool:
        """Whether every answer always gets the same reward."""
        return all(probability in (0, 1) for probability in self.rewards)

    def value(self, logits: np.ndarray) -> np.ndarray:
        """Expected reward V = Σ_k π_k r_k under the softmax policy.

        Args:
            logits: Shape ``(..., answers)``.

        Returns:
            Shape ``(...)``.
        """
        value: np.ndarray = policy(logits) @ np.asarray(self.rewards)
        return value

    def suboptimality(self, logits: np.ndarray) -> np.ndarray:
        """What the policy falls short of the best answer, max_k r_k − V.

        Args:
            logits: Shape ``(..., answers)``.

        Returns:
            Shape ``(...)``.
        """
        return np.asarray(max(self.rewards) - self.value(logits))

    def gradient(self, logits: np.ndarray) -> np.ndarray:
        """Gradient of the expected reward with respect to the logits, ∂V/∂θ_k = π_k (r_k − V).

        Args:
            logits: Shape ``(..., answers)``.

        Returns:
            Of the same shape.
        """
        centred = np.asarray(self.rewards) - self.value(logits)[..., None]
        gradient: np.ndarray = policy(logits) * centred
        return gradient

    def sample(
        self, logits: np.ndarray, *, responses: int, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw answers from the policy, and their rewards.

        Args:
            logits: One policy a row, shape ``(runs, answers)``.
            responses: Answers drawn of each.
            generator: The source of randomness.

        Returns:
            Answers (integers) and rewards (0.0 or 1.0), each of shape ``(runs, responses)``.
        """
        cumulative = policy(logits).cumsum(axis=-1)
        cumulative[:, -1] = 1.0
        draws = generator.random((len(logits), responses))
        answers = (draws[:, :, None] >= cumulative[:, None, :]).sum(axis=-1)
        rewards = generator.random(answers.shape) < np.asarray(self.rewards)[answers]
        return answers, rewards.astype(np.float64)

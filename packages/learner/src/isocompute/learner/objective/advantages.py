"""Advantages of whole responses: rewards relative to a baseline, divided by a scale."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..errors import LearnerError
from ..settings.objective import STDS

EPSILON = 1e-6
"""Added to a standard deviation before it divides, as in veRL; TRL adds 1e-4."""


def response_advantages(
    rewards: np.ndarray,
    groups: np.ndarray,
    *,
    baseline: str = "group",
    scale: str = "group",
    std: str = "sample",
    epsilon: float = EPSILON,
) -> np.ndarray:
    """Advantages A = (r − b) / (σ + ε), or r − b where there is no scale.

    With rewards ``[1, 0, 0, 0]`` in one group: ``[0.75, -0.25, -0.25, -0.25]`` without a scale, and
    ``[1.5, -0.5, -0.5, -0.5]`` with the group's. Where all rewards that the baseline is a mean of are equal, all
    advantages are exactly 0; so is that of a response whose group has no other, as where the others were aborted.

    Args:
        rewards: Rewards, shape ``(responses,)``.
        groups: Group of each reward as any integers, shape ``(responses,)``.
        baseline: b is the mean of the ``group`` (GRPO) or of the whole ``batch`` (REINFORCE++).
        scale: σ is the standard deviation over the ``group`` (GRPO), that of all r − b over the ``batch`` (ScaleRL),
            or there is none (Dr. GRPO).
        std: The ``sample`` standard deviation, whose squares are divided by n − 1 (``torch.std``), or the
            ``population`` one, divided by n.

    Returns:
        Advantages, float64, shape ``(responses,)``.

    Raises:
        LearnerError: A reward is not finite, every group has a single response and is the baseline, a name is unknown,
            or the scale is that of a group and the baseline is not.
    """
    if std not in STDS:
        raise LearnerError(f"std is {std!r}; it must be one of {', '.join(STDS)}")
    for name, value, known in (("baseline", baseline, BASELINES), ("scale", scale, SCALES)):
        if value not in known:
            raise LearnerError(f"{name} is {value!r}; for advantages of responses it must be one of {', '.join(known)}")
    if scale == "group" and baseline != "group":
        raise LearnerError(f"scale is 'group' and baseline {baseline!r}; without a group's mean it must be another")
    if not np.isfinite(rewards).all():
        raise LearnerError(f"the reward of rollout {np.isfinite(rewards).argmin()} of the batch is not a finite number")
    _, index = np.unique(groups, return_inverse=True)
    if baseline == "group" and len(index) and np.bincount(index).max() < 2:
        raise LearnerError(
            "no group has two completed responses, so that no reward can be compared with its group's: "
            "rollouts_per_problem must be 2 or more, and of a group at least two must not be aborted"
        )
    centred: np.ndarray = rewards - BASELINES[baseline](rewards, index)
    # The mean of equal rewards such as 0.1 is off by a rounding error.
    centred[zero_variance(rewards, index if baseline == "group" else np.zeros_like(index))] = 0.0
    divisor = SCALES[scale](rewards, centred, index, std)
    return centred if divisor is None else centred / (divisor + epsilon)


def group_advantages(rewards: np.ndarray, groups: np.ndarray, *, std: str = "sample") -> np.ndarray:
    """GRPO's advantages: each reward relative to the mean of its group, in its standard deviations.

    Args:
        rewards: Rewards, shape ``(responses,)``.
        groups: Group of each reward as any integers, shape ``(responses,)``.
        std: See ``response_advantages``.

    Returns:
        Advantages, float64, shape ``(responses,)``.

    Raises:
        LearnerError: See ``response_advantages``.
    """
    return response_advantages(rewards, groups, std=std)


def group_mean(rewards: np.ndarray, index: np.ndarray) -> np.ndarray:
    """The mean of each reward's group.

    Args:
        rewards: Rewards, shape ``(responses,)``.
        index: Group of each reward, whole numbers from 0, shape ``(responses,)``.
    """
    means: np.ndarray = (np.bincount(index, weights=rewards) / np.bincount(index))[index]
    return means


def batch_mean(rewards: np.ndarray, index: np.ndarray) -> np.ndarray:
    """The mean of all rewards, for each.

    Args:
        rewards: Rewards, shape ``(responses,)``.
    """
    del index
    return np.full(len(rewards), rewards.mean() if len(rewards) else 0.0)


BASELINES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {"group": group_mean, "batch": batch_mean}
"""The baselines of whole responses by name; that of a critic, ``gae``, is in ``gae.py``."""


def no_scale(rewards: np.ndarray, centred: np.ndarray, index: np.ndarray, std: str) -> None:
    """No division at all.

    Args:
        rewards: Rewards, shape ``(responses,)``.
        centred: Rewards less their baseline, shape ``(responses,)``.
        index: Group of each reward, whole numbers from 0, shape ``(responses,)``.
        std: ``sample`` or ``population``.
    """
    del rewards, centred, index, std


def group_scale(rewards: np.ndarray, centred: np.ndarray, index: np.ndarray, std: str) -> np.ndarray:
    """The standard deviation of each reward's group.

    Args:
        rewards: Rewards, shape ``(responses,)``.
        centred: Rewards less their baseline, shape ``(responses,)``.
        index: Group of each reward, whole numbers from 0, shape ``(responses,)``.
        std: ``sample`` or ``population``.
    """
    del centred
    counts = np.bincount(index)
    squares = np.bincount(index, weights=(rewards - group_mean(rewards, index)) ** 2)
    deviations: np.ndarray = np.sqrt(squares / (np.maximum(counts - 1, 1) if std == "sample" else counts))[index]
    return deviations


def batch_scale(rewards: np.ndarray, centred: np.ndarray, index: np.ndarray, std: str) -> np.ndarray:
    """The standard deviation over the batch of rewards less their baseline.

    TRL's ``scale_rewards="batch"`` takes that of the rewards themselves: here, with the baseline ``batch``.

    Args:
        rewards: Rewards, shape ``(responses,)``.
        centred: Rewards less their baseline, shape ``(responses,)``.
        index: Group of each reward, whole numbers from 0, shape ``(responses,)``.
        std: ``sample`` or ``population``.
    """
    del rewards, index
    if len(centred) < 2:
        return np.zeros(len(centred))
    return np.full(len(centred), centred.std(ddof=1 if std == "sample" else 0))


SCALES: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray, str], np.ndarray | None]] = {
    "none": no_scale,
    "group": group_scale,
    "batch": batch_scale,
}
"""The scales by name."""


def zero_variance(rewards: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Whether each reward's group has equal rewards throughout (TRL counts such groups in ``frac_reward_zero_std``).

    Args:
        rewards: Rewards, shape ``(responses,)``.
        groups: Group of each reward as any integers, shape ``(responses,)``.

    Returns:
        Booleans, shape ``(responses,)``.
    """
    _, index = np.unique(groups, return_inverse=True)
    low, high = np.full(len(rewards), np.inf), np.full(len(rewards), -np.inf)
    # A reward that is not a number makes its group unequal, without a warning.
    with np.errstate(invalid="ignore"):
        np.minimum.at(low, index, rewards)
        np.maximum.at(high, index, rewards)
    equal: np.ndarray = (low == high)[index]
    return equal

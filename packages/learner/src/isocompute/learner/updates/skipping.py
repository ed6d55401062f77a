"""Responses that cannot change an update, so that they need not pass through the model."""

from __future__ import annotations

import numpy as np

from ..config import LearnerConfig


def skipped(advantage: np.ndarray, zero_variance: np.ndarray, config: LearnerConfig) -> np.ndarray:
    """Return which responses have neither an advantage nor a regulariser.

    Their terms of the loss are 0 whatever the policy; the normaliser, which is part of ``loss_weight``, counts them.

    Args:
        advantage: The advantage of each response, shape ``(responses,)``.
        zero_variance: Whether the rewards of its group are equal, shape ``(responses,)``.

    Returns:
        Booleans, shape ``(responses,)``.
    """
    if config.objective.resolved.baseline == "gae" or config.entropy.measured:
        # A critic learns from every response; an entropy that is measured is that of all of them.
        return np.zeros(len(advantage), dtype=bool)
    left_out: np.ndarray = advantage == 0
    in_loss = bool(config.kl.coefficient) and config.kl.place == "loss"
    for active, masked in (
        (in_loss, config.kl.mask_zero_variance),
        (bool(config.entropy.coefficient), config.entropy.mask_zero_variance),
    ):
        if active:
            left_out = left_out & zero_variance.astype(bool) if masked else np.zeros(len(advantage), dtype=bool)
    return left_out

"""The loss of a critic: how far its values are from the returns."""

from __future__ import annotations

import torch


def value_loss(
    values: torch.Tensor, returns: torch.Tensor, old_values: torch.Tensor | None = None, *, clip: float | None = None
) -> torch.Tensor:
    """PPO's value loss, max((v − R)², (v_clip − R)²) / 2 with v_clip = clip(v, v_old − ε, v_old + ε).

    The larger of the two has no gradient where a value has moved more than ε towards its return: one batch moves a
    value by about ε at most. Clipping needs the values of before, and does nothing in the first update of a batch.

    Args:
        values: Values under the critic, with their gradient, shape ``(tokens,)``.
        returns: What they should be, shape ``(tokens,)``.
        old_values: Values before the batch's first update, shape ``(tokens,)``; None is no bound.
        clip: ε; None is no bound.

    Returns:
        One term per token, with its gradient, shape ``(tokens,)``.
    """
    squares = (values - returns).square()
    if clip is not None and old_values is not None:
        bounded = torch.clamp(values, old_values - clip, old_values + clip)
        squares = torch.maximum(squares, (bounded - returns).square())
    return 0.5 * squares

"""The value head of PPO: what a response will earn, guessed before each of its tokens."""

from __future__ import annotations

import torch


class ValueHead(torch.nn.Module):  # type: ignore[misc]
    """A linear function of the policy's last hidden states, 0 at first.

    Args:
        share: What the head's gradient is multiplied by before it passes into the policy; 0 cuts it off.
    """

    def __init__(self, size: int, *, share: float, device: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.share = share
        self.linear = torch.nn.Linear(size, 1, device=device, dtype=dtype)
        torch.nn.init.zeros_(self.linear.weight)
        torch.nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Values of positions.

        Args:
            hidden: Shape ``(tokens, hidden size)``.

        Returns:
            Shape ``(tokens,)``.
        """
        given = hidden.detach()
        if self.share:
            # The same in value; the gradient into the policy is a share of the head's own.
            given = given + self.share * (hidden - given)
        values: torch.Tensor = self.linear(given.to(self.linear.weight.dtype)).squeeze(-1)
        return values

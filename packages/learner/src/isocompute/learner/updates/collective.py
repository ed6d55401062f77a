"""What ranks that take every update together combine: numbers, metrics and gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor


class Collective:
    """The ranks of a process group, or one learner alone.

    Args:
        ranks: The process group; None for one learner alone. Never taken from the process: an engine in the same
            process has a process group of its own.
    """

    def __init__(self, ranks: dist.ProcessGroup | None, device: str) -> None:
        self._ranks, self._device = ranks, device

    def sum(self, tensor: torch.Tensor) -> None:
        """Sum a tensor over the ranks, in place."""
        self._reduce(tensor, dist.ReduceOp.SUM)

    def largest(self, tensor: torch.Tensor) -> None:
        """Take the largest of each number over the ranks, in place."""
        self._reduce(tensor, dist.ReduceOp.MAX)

    def total(self, number: float) -> float:
        """Sum a number over the ranks."""
        if self._ranks is None:
            return number
        tensor = torch.tensor(number, dtype=torch.float64, device=self._device)
        self.sum(tensor)
        return float(tensor)

    def most(self, count: int) -> int:
        """The largest of a count over the ranks."""
        if self._ranks is None:
            return count
        tensor = torch.tensor(count, device=self._device)
        self.largest(tensor)
        return int(tensor)

    def gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Sum the gradients of parameters over the ranks; one that has none counts as 0.

        Those of a policy that the ranks share were summed in the backward pass.

        Args:
            parameters: The parameters, in the same order on every rank.
        """
        waiting = []
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if self._ranks is not None and not isinstance(parameter, DTensor):
                # In place, one by one: joined they would be copied.
                waiting.append(dist.all_reduce(parameter.grad, group=self._ranks, async_op=True))
        for work in waiting:
            work.wait()

    def _reduce(self, tensor: torch.Tensor, operation: Any) -> None:
        if self._ranks is not None:
            dist.all_reduce(tensor, op=operation, group=self._ranks)

"""Tensors that ranks hold, handed over part by part: the driver never has all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

PART = 2**28
"""Most bytes that are handed over in one call; a single tensor may have more."""


class RemoteTensors(Mapping[str, torch.Tensor]):
    """Tensors by name, fetched from the ranks as they are read, some at a time; to be read before the next update.

    Args:
        sizes: Bytes of each tensor, in the order in which they are best read.
    """

    def __init__(self, sizes: Mapping[str, int], fetch: Callable[[Sequence[str]], Mapping[str, torch.Tensor]]) -> None:
        self._parts = {name: part for part in _parts(sizes) for name in part}
        self._fetch = fetch
        self._last: Mapping[str, torch.Tensor] = {}

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._last:
            part = self._parts[name]
            # The last ones go before others come.
            self._last = {}
            self._last = self._fetch(part)
        return self._last[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


OnRank = Callable[[int, Iterator[tuple[str, torch.Tensor]]], Any]
"""Called on a rank with its number and the policy's tensors; on every rank it must take all of them."""


class RankWeights(Iterable[tuple[str, torch.Tensor]]):
    """The policy's whole tensors by their Hugging Face names: handed over one by one, or used on the ranks."""

    def __init__(
        self, tensors: Callable[[], Iterator[tuple[str, torch.Tensor]]], spread: Callable[[OnRank], list[Any]]
    ) -> None:
        self._tensors, self._spread = tensors, spread

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self._tensors()

    def on_ranks(self, function: OnRank) -> list[Any]:
        """Call a function on every rank, where each tensor is gathered as it is taken; none comes to this process.

        Returns:
            What it returned, by rank.

        Raises:
            RankError: A rank died or timed out; the group is broken.
        """
        return self._spread(function)


def _parts(sizes: Mapping[str, int]) -> list[list[str]]:
    found: list[list[str]] = []
    size = 0
    for name, more in sizes.items():
        if not found or size + more > PART:
            found.append([])
            size = 0
        found[-1].append(name)
        size += more
    return found

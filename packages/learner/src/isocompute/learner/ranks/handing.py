"""Tensors that ranks hold, handed over part by part: the driver never has all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

PART = 2**28
"""Most bytes that are handed over in one call; a single tensor may have more."""


class RemoteTensors(Mapping[str, torch.Tensor]):
    """Tensors by name, fetched from the ranks as they are read, some at a time; to be read before the next update.

    Args:
        sizes: Bytes of each tensor, in the order in which they are best read.
        fetch: Returns the tensors of some names.
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

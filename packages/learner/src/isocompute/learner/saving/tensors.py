"""Tensors in safetensors files, written and read a part at a time: they are never in memory all together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

PART = 2**30
"""Most bytes of tensors that are held at a time; a single one may have more."""


def parts(tensors: Iterable[tuple[str, torch.Tensor]], *, most: int = PART) -> Iterator[dict[str, torch.Tensor]]:
    """Take tensors as they come, several at a time.

    Args:
        most: Most bytes of a part; a single tensor may have more.
    """
    part: dict[str, torch.Tensor] = {}
    size = 0
    for name, tensor in tensors:
        bytes_of = tensor.numel() * tensor.element_size()
        if part and size + bytes_of > most:
            yield part
            part, size = {}, 0
        part[name], size = tensor, size + bytes_of
    if part:
        yield part


class TensorFiles(Mapping[str, torch.Tensor]):
    """The tensors of safetensors files by name, each read when it is asked for."""

    def __init__(self, paths: Collection[Path]) -> None:
        self._files: dict[str, Any] = {}
        for path in paths:
            file: Any = safe_open(path, framework="pt")
            self._files |= dict.fromkeys(file.keys(), file)

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def rows(self, name: str, rows: slice) -> torch.Tensor:
        """Some rows of a tensor; no others are read."""
        found: torch.Tensor = self._files[name].get_slice(name)[rows]
        return found

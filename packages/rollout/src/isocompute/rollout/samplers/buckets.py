"""A model's weights in buckets of a few tensors, and each bucket as one run of bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

BUCKET_BYTES = 128 * 2**20
"""Bytes of tensors in one bucket."""
ALIGNMENT = 16
"""A tensor begins at a multiple of this many bytes, so that bytes can be viewed as any type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a packed bucket holds, in its order."""

    names: list[str]
    dtypes: list[str]
    shapes: list[tuple[int, ...]]
    nbytes: int

    def unpacked(self, packed: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
        """Return names and tensors, which are views of ``packed``.

        Args:
            packed: The run of bytes, shape ``(nbytes,)``, uint8.
        """
        import torch

        found, begin = [], 0
        for name, kind, shape in zip(self.names, self.dtypes, self.shapes, strict=True):
            dtype = getattr(torch, kind)
            length = prod(shape) * dtype.itemsize
            found.append((name, packed[begin : begin + length].view(dtype).reshape(shape)))
            begin += _aligned(length)
        return found


def buckets(weights: Iterable[tuple[str, Any]], *, size: int) -> Iterator[list[tuple[str, Any]]]:
    """Yield tensors in buckets, in their order; of a stream only one bucket and the next tensor are held.

    Args:
        weights: Pairs of a Hugging Face name and a tensor, on any device.
        size: Most bytes in a bucket; a larger tensor has a bucket of its own.
    """
    held: list[tuple[str, Any]] = []
    used = 0
    for name, tensor in weights:
        if held and used + tensor.nbytes > size:
            yield held
            held, used = [], 0
        held.append((name, tensor))
        used += tensor.nbytes
    if held:
        yield held


def pack(bucket: list[tuple[str, torch.Tensor]], device: Any) -> tuple[Contents, torch.Tensor]:
    """Copy the tensors of a bucket into one run of bytes on a device."""
    import torch

    tensors = [tensor.detach() for _, tensor in bucket]
    contents = Contents(
        names=[name for name, _ in bucket],
        dtypes=[str(tensor.dtype).removeprefix("torch.") for tensor in tensors],
        shapes=[tuple(tensor.shape) for tensor in tensors],
        nbytes=sum(_aligned(tensor.nbytes) for tensor in tensors),
    )
    packed = torch.empty(contents.nbytes, dtype=torch.uint8, device=device)
    for (_, place), tensor in zip(contents.unpacked(packed), tensors, strict=True):
        place.copy_(tensor)
    return contents, packed


def _aligned(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT

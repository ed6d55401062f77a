"""A model's weights in buckets of a few tensors, as bytes that Ray's object store shares without a copy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

BUCKET_BYTES = 128 * 2**20
"""Bytes of tensors in one bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Some tensors.

    Attributes:
        names: Their Hugging Face names.
        dtypes: Their types, such as ``float32``.
        shapes: Their shapes.
        arrays: The bytes of each.
    """

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    arrays: list[NDArray[np.uint8]]

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Return the names and the tensors; copies, since an object store's bytes are read-only and may go."""
        import torch

        described = zip(self.names, self.dtypes, self.shapes, self.arrays, strict=True)
        return [
            (name, torch.from_numpy(np.array(array)).view(getattr(torch, dtype)).reshape(shape))
            for name, dtype, shape, array in described
        ]


def buckets(weights: Iterable[tuple[str, Any]], *, size: int) -> Iterator[Bucket]:
    """Yield tensors in buckets, in their order; of a stream only one bucket and the next tensor are held.

    Args:
        weights: Pairs of a Hugging Face name and a tensor, on any device.
        size: Most bytes in a bucket; a larger tensor has a bucket of its own.
    """
    held: list[tuple[str, torch.Tensor]] = []
    used = 0
    for name, tensor in weights:
        copy = tensor.detach().cpu().contiguous()
        if held and used + copy.nbytes > size:
            yield _bucket(held)
            held, used = [], 0
        held.append((name, copy))
        used += copy.nbytes
    if held:
        yield _bucket(held)


def _bucket(held: list[tuple[str, torch.Tensor]]) -> Bucket:
    import torch

    return Bucket(
        names=[name for name, _ in held],
        dtypes=[str(tensor.dtype).removeprefix("torch.") for _, tensor in held],
        shapes=[list(tensor.shape) for _, tensor in held],
        arrays=[tensor.reshape(-1).view(torch.uint8).numpy() for _, tensor in held],
    )

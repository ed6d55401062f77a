"""From a table of rollouts to tensors: what is learnt from, in micro-batches, balanced over ranks."""

from .micro import MicroBatch, PackedRows
from .packing import packed, padded
from .responses import Responses, read
from .splitting import Piece, micro_batches, shares

__all__ = [
    "MicroBatch",
    "PackedRows",
    "Piece",
    "Responses",
    "micro_batches",
    "packed",
    "padded",
    "read",
    "shares",
]

"""Measure an update's share of the rate of a matrix product."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from time import process_time

import numpy as np
import torch
from isocompute.learner import Learner
from isocompute.learner.cost.rate import Shape, shape_of, training_operations

from benchmarks.sampler import save_model

from .growth import one_update
from .recorded import CONFIG, GROUP, responses

LEAST_SHARE = 0.7
MODELS = ((512, 4, 1376), (1024, 2, 2752))
"""Hidden size, layers, intermediate size."""
GROUPS, PROMPT, LENGTH = 8, 16, 64
SQUARE = 512
REPEATS = 3


def product_rate(rows: int, inner: int, columns: int, *, repeats: int) -> float:
    """Return operations per CPU-second of a matrix product in float32, the fastest of some.

    Args:
        rows: Rows of the left factor.
        columns: Columns of the right factor.
        repeats: How many products.
    """
    left, right = torch.randn(rows, inner), torch.randn(inner, columns)
    out = torch.empty(rows, columns)
    seconds = min(_timed(lambda: torch.mm(left, right, out=out)) for _ in range(repeats))
    return 2.0 * rows * inner * columns / seconds


def operations(shape: Shape) -> float:
    """Return the arithmetic of an update that is needed: every prompt once, the head for sampled tokens only."""
    run = LENGTH - 1
    tokens = GROUPS * (PROMPT + GROUP * run)
    keys = GROUPS * (PROMPT * (PROMPT + 1) // 2 + GROUP * int(np.arange(PROMPT + 1, PROMPT + run + 1).sum()))
    return training_operations(shape, tokens=tokens, predictions=GROUPS * GROUP * LENGTH, keys=keys)


def rate() -> list[str]:
    """Print the rate of whole updates as a share of that of a matrix product; return those that are too slow."""
    torch.set_num_threads(1)
    slow = []
    for hidden, layers, intermediate in MODELS:
        with tempfile.TemporaryDirectory() as name:
            save_model(Path(name), hidden=hidden, layers=layers, intermediate=intermediate)
            learner = Learner(name, CONFIG)
            table = responses(GROUPS * GROUP, prompt=PROMPT, lengths=(LENGTH, LENGTH))
            one_update(learner, table)
            square, wide, found = 0.0, 0.0, []
            for _ in range(REPEATS):
                square = max(square, product_rate(SQUARE, SQUARE, SQUARE, repeats=50))
                wide = max(wide, product_rate(GROUPS * GROUP * LENGTH, hidden, intermediate, repeats=3))
                found.append(one_update(learner, table))
        shape = shape_of(learner.policy)
        assert shape is not None
        own = operations(shape) / min(found)
        print(
            f"hidden {hidden}, {layers} layers, intermediate {intermediate}, {GROUPS * GROUP} responses of {LENGTH} "
            f"tokens to prompts of {PROMPT}: {own / 1e9:.1f} GFLOP/s; a product of {SQUARE} × {SQUARE} × "
            f"{SQUARE} {square / 1e9:.1f} (share {own / square:.2f}), of {GROUPS * GROUP * LENGTH:,} × {hidden} × "
            f"{intermediate} {wide / 1e9:.1f} (share {own / wide:.2f})",
            flush=True,
        )
        if own / max(square, wide) < LEAST_SHARE:
            slow.append(
                f"at hidden size {hidden} an update has {own / max(square, wide):.2f} of the rate of a matrix product, "
                f"and it must have {LEAST_SHARE:g}"
            )
    return slow


def _timed(work: Callable[[], object]) -> float:
    began = process_time()
    work()
    return max(process_time() - began, 1e-9)

"""What is between sampling and learning: whole batches sampled ahead, and groups that are too old."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from io import BytesIO
from typing import Any

import polars as pl
import torch

from ..protocols import Sampler


class Ahead:
    """The pipe of whole batches: each is sampled when it is begun, with the weights that there are then.

    With a lag of 0 sampling and updates alternate; with a lag of k, batch t is sampled with version t − 1 − k.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._batches: dict[int, pl.DataFrame] = {}

    def begin(self, problems: pl.DataFrame, *, samples: int, seed: int, step: int, run_id: str) -> None:
        """Sample a step's batch; see ``Pipe.begin``."""
        self._batches[step] = self._sampler.sample(
            problems, samples=samples, seed=seed, step=step, phase="train", run_id=run_id
        )

    def take(self, step: int) -> pl.DataFrame:
        """Return a step's batch; see ``Pipe.take``."""
        return self._batches.pop(step)

    def push(self, weights: Iterable[tuple[str, torch.Tensor]], version: int, /) -> None:
        """Sync; see ``Pipe.push``."""
        self._sampler.sync(weights, version)

    def abandon(self) -> pl.DataFrame | None:
        """Return the batches that were not taken; see ``Pipe.abandon``."""
        batches = [self._batches.pop(step) for step in sorted(self._batches)]
        return pl.concat(batches, how="diagonal_relaxed") if batches else None

    def idle(self) -> Mapping[str, float]:
        """Return nothing: one waits while the other works."""
        return {}

    def state(self) -> tuple[Mapping[str, torch.Tensor], dict[str, Any]]:
        """Return the batches that were not taken, as bytes in Arrow's IPC format; see ``Pipe.state``."""
        found = {}
        for step, batch in self._batches.items():
            batch.write_ipc(stream := BytesIO())
            found[f"batch.{step}"] = torch.frombuffer(bytearray(stream.getvalue()), dtype=torch.uint8)
        return found, {}

    def load_state(self, tensors: Mapping[str, torch.Tensor], values: dict[str, Any]) -> None:
        """Continue with the batches of a state; see ``Pipe.load_state``."""
        for name in tensors:
            stored = BytesIO(tensors[name].numpy().tobytes())
            self._batches[int(name.removeprefix("batch."))] = pl.read_ipc(stored, use_pyarrow=False)


def without_stale(rollouts: pl.DataFrame, *, version: int, lag: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Split a batch into groups that may be learnt from and those of which a response is too old, which go whole.

    Args:
        version: Version of the weights that it would update.
        lag: k.
    """
    late = (pl.col("weights_version") < version - lag) & (pl.col("finish_reason") != "aborted")
    old = rollouts.filter(late)["problem_id"].unique()
    is_old = pl.col("problem_id").is_in(old.implode())
    return rollouts.filter(~is_old), rollouts.filter(is_old)

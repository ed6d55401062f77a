"""The policy gradient of groups of responses, one group at a time, as short vectors with the same products."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import torch

from ..batch.responses import read
from ..config import LearnerConfig
from ..objective.cohorts import with_cohorts
from ..objective.prepare import prepare
from ..policy.forward import Forward
from ..policy.loading import load_policy
from ..policy.weights import vocabulary

SKETCHED = 2**16
"""Length of the vectors. Products of longer ones are kept without bias, to 1/256 of the lengths."""


def halves(rollouts: pl.DataFrame) -> pl.DataFrame:
    """Make two groups of each problem's responses, the even and the odd samples, as if of two problems."""
    half = (pl.col("sample") % 2).cast(pl.String)
    return rollouts.with_columns(problem_id=pl.concat_str("problem_id", half, separator="/")).sort(
        "problem_id", "sample"
    )


def gradients(model: str | Path, rollouts: pl.DataFrame, config: LearnerConfig, *, device: str) -> Iterator[np.ndarray]:
    """The gradient of each group's objective, as of a batch of that group alone, without regularisers.

    At the model that sampled, every objective has the gradient of Σ weight · advantage · log-probability.

    Args:
        rollouts: A ``rollouts`` table whose groups are in the order of ``problem_id``.

    Yields:
        For each group a vector of at most ``SKETCHED`` entries; zeros where all rewards are equal.
    """
    policy = load_policy(model, device=device)
    forward = Forward(policy, config.compute, temperature=config.temperature, device=device)
    parameters = [each for each in policy.parameters() if each.requires_grad]
    sketch = Sketch(sum(each.numel() for each in parameters), device=device)
    for _, group in with_cohorts(rollouts, config.batch).group_by("problem_id", maintain_order=True):
        if group["zero_variance"].all():
            yield np.zeros(sketch.length, dtype=np.float32)
            continue
        responses = read(prepare(group, config), vocabulary=vocabulary(policy))
        policy.zero_grad(set_to_none=True)
        for piece in forward.pieces(responses, np.arange(len(responses))):
            batch = forward.micro_batch(responses, piece)
            with forward.attending(batch):
                terms = forward.run(batch)[1]
                (batch.weights * batch.advantages * terms.logprobs).sum().backward()
        yield sketch.of([each.grad if each.grad is not None else torch.zeros_like(each) for each in parameters])


class Sketch:
    """A count sketch: entries with random signs are added up by their place modulo the length.

    Products of two sketches have the expectation of the vectors' own; where these are short enough, they are equal.
    """

    def __init__(self, size: int, *, device: str, seed: int = 0) -> None:
        self.length = min(size, SKETCHED)
        self._whole, self._device, self._seed = size <= SKETCHED, device, seed

    def of(self, tensors: list[torch.Tensor]) -> np.ndarray:
        """The sketch of the joined entries of tensors, which are always the same ones."""
        if self._whole:
            joined: np.ndarray = torch.cat([each.flatten().float() for each in tensors]).cpu().numpy()
            return joined
        found = torch.zeros(self.length, device=self._device)
        signs, begun = torch.Generator(self._device).manual_seed(self._seed), 0
        for tensor in tensors:
            flat = tensor.flatten().float()
            sign = torch.randint(0, 2, flat.shape, generator=signs, device=self._device) * 2 - 1
            places = (torch.arange(len(flat), device=self._device) + begun) % self.length
            found.index_add_(0, places, sign * flat)
            begun += len(flat)
        sketched: np.ndarray = found.cpu().numpy()
        return sketched

"""Noise of a policy gradient within and between problems, and the first guess of n that follows.

A batch of B_p problems with n responses each has a gradient whose variance is (V_b + V_w/n)/B_p: V_b is that of
problems' own gradients, V_w that of one response's, given the problem (traces of covariances). Its noise scale is the
batch at which noise and signal are equal (arXiv 1812.06162, equation 2.8), in rollouts (n·V_b + V_w)/|G|². The first
guess is n = V_w/V_b, where responses and problems contribute equal noise: beyond it a larger n can remove less than
half of what is left, and more problems or more steps serve better.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import polars as pl
import torch

from ..batch.responses import read
from ..config import LearnerConfig
from ..objective.advantages import with_cohorts
from ..objective.prepare import prepare
from ..policy.forward import Forward
from ..policy.loading import load_policy, vocabulary

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
        For each group a ``sketch``; zeros where all rewards are equal.
    """
    policy = load_policy(model, device=device)
    forward = Forward(policy, config.compute, temperature=config.temperature, device=device)
    parameters = [each for each in policy.parameters() if each.requires_grad]
    size = sum(each.numel() for each in parameters)
    for _, group in with_cohorts(rollouts, config.batch).group_by("problem_id", maintain_order=True):
        if group["zero_variance"].all():
            yield np.zeros(min(size, SKETCHED), dtype=np.float32)
            continue
        responses = read(prepare(group, config), vocabulary=vocabulary(policy))
        policy.zero_grad(set_to_none=True)
        for piece in forward.pieces(responses, np.arange(len(responses))):
            batch = forward.micro_batch(responses, piece)
            with forward.attending(batch):
                terms = forward.run(batch)[1]
                (batch.weights * batch.advantages * terms.logprobs).sum().backward()
        yield sketch([each.grad if each.grad is not None else torch.zeros_like(each) for each in parameters], device)


def sketch(tensors: list[torch.Tensor], device: str, *, seed: int = 0) -> np.ndarray:
    """A count sketch of the joined entries of tensors, a vector of at most ``SKETCHED`` entries.

    Entries with random signs are added up by their place modulo the length. Products of two sketches have the
    expectation of the vectors' own; where these are short enough, they are equal.
    """
    size = sum(each.numel() for each in tensors)
    if size <= SKETCHED:
        joined: np.ndarray = torch.cat([each.flatten().float() for each in tensors]).cpu().numpy()
        return joined
    found = torch.zeros(SKETCHED, device=device)
    signs, begun = torch.Generator(device).manual_seed(seed), 0
    for tensor in tensors:
        flat = tensor.flatten().float()
        sign = torch.randint(0, 2, flat.shape, generator=signs, device=device) * 2 - 1
        places = (torch.arange(len(flat), device=device) + begun) % SKETCHED
        found.index_add_(0, places, sign * flat)
        begun += len(flat)
    sketched: np.ndarray = found.cpu().numpy()
    return sketched


TWO_SIDED = 1.96
LEAST_PROBLEMS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate with its 95 % interval; without an upper end where the data allow any."""

    value: float | None
    lower: float
    upper: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Estimates from all problems, and with each problem left out.

    Attributes:
        signal: |G|², shape ``(1 + problems,)``, as the others: first of all problems, then without each.
        between: V_b.
        within: V_w.
    """

    signal: np.ndarray
    between: np.ndarray
    within: np.ndarray

    @classmethod
    def of(cls, halves: np.ndarray, *, responses: int) -> Self:
        """Estimate from two independent gradients of each problem; none of the three is biased.

        Args:
            halves: Each from a group of responses with a baseline of its own; shape ``(problems, 2, parameters)``.
        """
        if halves.ndim != 3 or halves.shape[1] != 2 or len(halves) < LEAST_PROBLEMS:
            raise ValueError(
                f"the gradients have the shape {halves.shape}; it must be (problems, 2, parameters), with "
                f"{LEAST_PROBLEMS} problems or more"
            )
        count = len(halves)
        own = np.einsum("ip,ip->i", halves[:, 0], halves[:, 1], dtype=np.float64)
        squares = np.einsum("ihp,ihp->i", halves, halves, dtype=np.float64) / 2
        means = halves.mean(axis=1, dtype=np.float64)
        total = means.sum(axis=0)
        along, lengths = means @ total, np.einsum("ip,ip->i", means, means)
        pairs = _without_each(total @ total - lengths.sum(), 2 * (along - lengths))
        left = np.r_[count, np.full(count, count - 1)]
        signal = pairs / (left * (left - 1))
        of_problem = _without_each(own.sum(), own) / left
        within = responses * (_without_each(squares.sum(), squares) / left - of_problem)
        return cls(signal=signal, between=of_problem - signal, within=within)

    def scale(self, rollouts_per_problem: int) -> Interval:
        """The noise scale of batches of groups of n, in rollouts."""
        return _inverse(self.signal / (rollouts_per_problem * self.between + self.within))

    def problems(self) -> Interval:
        """The noise scale of batches with unlimited n, in problems: V_b/|G|²."""
        return _inverse(self.signal / self.between)

    def first_guess(self) -> Interval:
        """The n at which both kinds of noise are equal: V_w/V_b."""
        return _inverse(self.between / self.within)


def _without_each(total: float, part: np.ndarray) -> np.ndarray:
    """A sum, and the sum without each of its parts."""
    return np.concatenate([[total], total - part])


def _inverse(estimates: np.ndarray) -> Interval:
    """Interval of 1/x by the jackknife of x, which may be 0 where 1/x has no upper end."""
    value, without = estimates[0], estimates[1:]
    count = len(without)
    error = float(np.sqrt((count - 1) / count * ((without - without.mean()) ** 2).sum()))
    lower, upper = value - TWO_SIDED * error, value + TWO_SIDED * error
    return Interval(
        value=1 / value if value > 0 else None,
        lower=1 / upper if upper > 0 else float("inf"),
        upper=1 / lower if lower > 0 else None,
    )

"""Does the sampler hold the learner's weights? Their log-probabilities of the same tokens say so."""

from __future__ import annotations

import torch

from .batch import MicroBatch
from .errors import SyncError
from .losses import TokenTerms


def largest_difference(terms: TokenTerms, batch: MicroBatch) -> torch.Tensor:
    """Largest |learner − sampler| log-probability difference of a micro-batch (nats), a scalar.

    A difference that is not a number counts as infinite.
    """
    difference = (terms.logprobs.detach() - batch.sampler_logprobs).abs().max()
    # max() of a NaN is a NaN, which no comparison would catch.
    return torch.nan_to_num(difference, nan=float("inf"), posinf=float("inf"))


def check_sync(error: float, tolerance: float, *, step: int) -> None:
    """Refuse to learn from responses of other weights.

    Raises:
        SyncError: The difference is above the tolerance.
    """
    if not error <= tolerance:
        raise SyncError(
            f"before step {step} the sampler's log-probabilities differ from the learner's by up to "
            f"{error:.2g} nats (tolerance {tolerance:g}): the sampler does not hold the learner's weights; "
            "no update was made"
        )

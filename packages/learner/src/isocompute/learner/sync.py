"""Does the sampler hold the learner's weights? Their log-probabilities of the same tokens say so."""

from __future__ import annotations

import torch

from .batch import MicroBatch
from .errors import DivergenceError, SyncError
from .losses import TokenTerms


def compared(terms: TokenTerms, batch: MicroBatch) -> torch.Tensor:
    """What the log-probabilities of a micro-batch say, of which ranks take the largest.

    Returns:
        Shape ``(2,)``: the largest |learner − sampler| difference (nats), infinite where it is not a number; and
        1 when a log-probability of the learner's own is not finite, so that nothing can be said of the sampler.
    """
    learner = terms.logprobs.detach()
    difference = (learner - batch.sampler_logprobs).abs().max()
    # max() of a NaN is a NaN, which no comparison would catch.
    difference = torch.nan_to_num(difference, nan=float("inf"), posinf=float("inf"))
    return torch.stack([difference, (~learner.isfinite()).any().to(difference.dtype)])


def check_finite(broken: float, *, step: int) -> None:
    """Refuse to go on with a policy whose own log-probabilities are not finite.

    The sampler is not to blame: the learner made these numbers from its own weights.

    Raises:
        DivergenceError: ``broken``, how many there are or whether there is one, is above 0.
    """
    if broken:
        raise DivergenceError(
            f"before step {step} a log-probability of the learner's own is not finite: the policy has diverged; "
            "no update was made"
        )


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

"""What passes through the models of a learner in an update, one micro-batch after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch

from ..batch.micro import MicroBatch
from ..batch.responses import Responses
from ..batch.splitting import Piece
from ..cost.rate import Shape, forward_operations, training_operations
from ..objective.loss import ObjectiveInputs
from ..policy.forward import Forward
from ..policy.probe import probe
from ..policy.sharding import is_sharded
from ..policy.weights import vocabulary
from ..settings.objective import EntropyConfig
from .models import Models


def passes(
    forward: Forward,
    responses: Responses,
    rows: np.ndarray,
    *,
    most: Callable[[int], int],
    least: int = 0,
) -> Iterator[tuple[Piece | None, MicroBatch]]:
    """Cut responses into micro-batches.

    Ranks that share a policy make the same number of passes, of which some of a rank's may be idle.

    Args:
        most: The largest of a count over the ranks.

    Yields:
        The pieces of these rows; then, for each pass that teaches nothing, None and some response to run.
    """
    pieces = list(forward.pieces(responses, rows))
    count = most(len(pieces)) if is_sharded(forward.policy) else len(pieces)
    for piece in pieces:
        yield piece, forward.micro_batch(responses, piece)
    for _ in range(max(least, count) - len(pieces)):
        # The first one, or one that is made up.
        given = responses if len(responses) else probe(vocabulary(forward.policy))[0]
        yield None, forward.micro_batch(given, next(forward.pieces(given, np.arange(1))))


def inputs_of(models: Models, batch: MicroBatch, entropy: EntropyConfig, *, with_reference: bool) -> ObjectiveInputs:
    """Pass a micro-batch through the policy and the critic, with gradient, and through the reference.

    Args:
        batch: The micro-batch; ``Forward.attending`` holds it.
        with_reference: Whether the reference runs; else its log-probabilities are what was measured, if anything.
    """
    reference = batch.measured.get("reference_logprobs")
    if with_reference and models.reference is not None:
        # First, as it may be the policy without its adapter, whose passes must not come between the other two.
        reference = models.reference.logprobs(batch)
    hidden, terms = models.forward.run(
        batch, entropy=bool(entropy.coefficient) or entropy.measured, entropy_gradient=bool(entropy.coefficient)
    )
    return ObjectiveInputs(
        logprobs=terms.logprobs,
        sampler_logprobs=batch.sampler_logprobs,
        advantages=batch.advantages,
        weights=batch.weights,
        response=batch.response,
        responses=batch.responses,
        zero_variance=batch.zero_variance,
        entropy=terms.entropy,
        old_logprobs=batch.measured.get("old_logprobs"),
        reference_logprobs=reference,
        values=None if models.critic is None else models.critic(hidden),
        old_values=batch.measured.get("old_values"),
        returns=batch.measured.get("returns"),
    )


def measured(models: Models, batch: MicroBatch) -> dict[str, torch.Tensor]:
    """A number for each sampled token of a micro-batch, by the name of its column."""
    with torch.no_grad(), models.forward.attending(batch):
        hidden, terms = models.forward.run(batch)
        found = {"old_logprobs": terms.logprobs}
        if models.critic is not None:
            found["values"] = models.critic(hidden)
    if models.reference is not None:
        found["reference_logprobs"] = models.reference.logprobs(batch)
    return found


def operations_of(shape: Shape | None, batch: MicroBatch, *, with_reference: bool) -> float:
    """Arithmetic of a forward and a backward pass; see ``rate.training_operations``.

    Args:
        shape: The model's; None where it is not known, and counts as 0.
        with_reference: Whether a forward pass of the reference is part of it.
    """
    if shape is None:
        return 0.0
    passed = {"tokens": batch.passed, "predictions": len(batch.tokens), "keys": batch.keys}
    return training_operations(shape, **passed) + with_reference * forward_operations(shape, **passed)

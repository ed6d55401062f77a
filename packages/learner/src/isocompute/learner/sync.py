"""Does the sampler hold the learner's weights? Their log-probabilities of the same tokens show it.

The parity chain, engine = learner = reference, each link with the tests that hold it:

* Engine = model: vLLM's log-probabilities are those of transformers after every sync, in float32 to 1e-4 nats
  (rollout, ``tests/samplers/every_sampler.py``, for every sampler).
* Engine = learner: the first micro-batch of every update is compared with the sampler before any backward pass, here,
  and explicitly by ``loop.canary`` after the first sync and after a resume (``tests/test_learner.py``,
  ``tests/test_loop.py``).
* Learner = learner: micro-batches of one and of all, one rank and two, and a run resumed and a run left alone take the
  same updates, the last bit for bit (``tests/test_learner.py``, ``tests/test_group.py``, ``tests/test_loop.py``).
* Learner = reference: its gradient is that of a policy gradient written out token by token, without padding
  (``tests/test_learner.py``), its objective the formula (``tests/objective/test_grpo.py``), and five updates on a fixed
  batch are those that were stored (``tests/test_trajectory.py``).
"""

from __future__ import annotations

import torch

from .batch import MicroBatch
from .errors import DivergenceError, SyncError
from .objective.losses import TokenTerms


def compare(terms: TokenTerms, batch: MicroBatch) -> torch.Tensor:
    """Compare the sampler's log-probabilities of a micro-batch with the learner's.

    Args:
        terms: The learner's log-probabilities, shape ``(tokens,)``.
        batch: The micro-batch, with the sampler's.

    Returns:
        Shape ``(2,)``: the largest |learner − sampler| difference (nats), infinite where it is not a number; and
        1 when a log-probability of the learner's own is not finite, so that the sampler cannot be judged. Over
        micro-batches and ranks, the larger of each counts.
    """
    learner = terms.logprobs.detach()
    difference = (learner - batch.sampler_logprobs).abs().max()
    # max() of a NaN is a NaN, which no comparison would catch.
    difference = torch.nan_to_num(difference, nan=float("inf"), posinf=float("inf"))
    return torch.stack([difference, (~learner.isfinite()).any().to(difference.dtype)])


def check_finite(broken: float, *, step: int) -> None:
    """Refuse to go on with a policy whose own log-probabilities are not finite.

    The sampler is not to blame: the learner computed these numbers from its own weights.

    Args:
        broken: How many there are, or 1 for some.
        step: The step that they would be used in.

    Raises:
        DivergenceError: ``broken`` is above 0.
    """
    if broken:
        raise DivergenceError(
            f"before step {step} a log-probability of the learner's own is not finite: the policy has diverged; "
            "no update was made"
        )


def check_sync(error: float, tolerance: float, *, step: int) -> None:
    """Refuse to learn from responses of other weights.

    Args:
        error: Largest |sampler − learner| log-probability difference (nats).
        tolerance: What it may be (nats).
        step: The step that the responses would be used in.

    Raises:
        SyncError: The difference is above the tolerance.
    """
    if not error <= tolerance:
        raise SyncError(
            f"before step {step} the sampler's log-probabilities differ from the learner's by up to "
            f"{error:.2g} nats (tolerance {tolerance:g}): the sampler does not hold the learner's weights; "
            "no update was made"
        )

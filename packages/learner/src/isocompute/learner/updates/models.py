"""What a learner runs: the policy, the base model of a KL and the critic, each whole or shared by the ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from ..config import LearnerConfig
from ..policy.critic import ValueHead
from ..policy.forward import Forward
from ..policy.loading import load_policy
from ..policy.sharding import Sharding
from ..settings.adapter import AdapterConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """What a learner runs.

    Attributes:
        forward: How the policy is run.
        reference: How the base model of a KL is run, without gradient: a model of its own, or that beneath the
            policy's adapter. None without a KL.
        critic: The critic, whole on every rank; None without one.
    """

    forward: Forward
    reference: Forward | None
    critic: ValueHead | None

    @property
    def policy(self) -> Any:
        """The policy."""
        return self.forward.policy


def load_models(
    model: str, config: LearnerConfig, *, device: str, ranks: dist.ProcessGroup | None, dtype: torch.dtype
) -> Models:
    """Load them.

    Args:
        ranks: The learners that take every update together; all of them call this. None for one alone.

    Raises:
        LearnerError: The model cannot be used; see ``policy.load_policy``.
    """
    compute = config.compute
    lower = torch.bfloat16 if compute.precision == "bfloat16" and dtype == torch.float32 else None
    sharding = None
    if ranks is not None and ranks.size() > 1 and compute.sharding == "auto":
        head = None if compute.float32_head else lower
        sharding = Sharding(ranks=ranks, device=device, activations=lower, head=head)

    def run(
        dtype: torch.dtype,
        shared: Sharding | None,
        like: Forward | None,
        adapter: AdapterConfig | None = None,
        *,
        learns: bool = True,
    ) -> Forward:
        loaded = load_policy(model, device=device, dtype=dtype, sharding=shared, adapter=adapter)
        loaded = loaded if adapter is not None else loaded.requires_grad_(learns)
        return Forward(loaded, compute, temperature=config.temperature, device=device, like=like)

    tried = None
    if sharding is not None and torch.bfloat16 in (lower, dtype):
        # What the model means is found out in float32, and a policy that is shared out computes in one type for good.
        tried = run(torch.float32, replace(sharding, activations=None, head=None), None)
        tried.policy = None
    # Weights that are not learnt may be rounded to what is computed with.
    frozen = lower or dtype
    forward = run(dtype if config.adapter is None else frozen, sharding, tried, config.adapter)
    reference, critic = None, None
    if config.kl.coefficient and config.adapter is not None:
        reference = forward.without_adapter()
    elif config.kl.coefficient:
        reference = run(frozen, sharding, forward, learns=False)
    if config.objective.resolved.baseline == "gae":
        share = config.critic.coefficient if config.critic.through_policy else 0.0
        size = forward.policy.get_output_embeddings().weight.shape[1]
        critic = ValueHead(size, share=share, device=device, dtype=dtype)
    return Models(forward=forward, reference=reference, critic=critic)

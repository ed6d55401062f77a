"""What rollouts cost on a device, from the model and the lengths to device time and memory."""

from __future__ import annotations

from dataclasses import dataclass

from .compute import Interval, Lengths, Model, Work, response_tokens, work
from .devices import Device, Memory, Utilisation, device_time, memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A model, its lengths, and the device that it is trained on.

    Attributes:
        model: The policy.
        lengths: Mean lengths.
        device: The device.
        utilisation: Shares of its peak that are reached.
        tokens_per_second: Measured speed of sampling on one device, or None.
        extra_forwards: Further forward passes of the trainer over each token (a reference policy, say).
        shared_prompt: Whether the engine prefills a group's prompt once (prefix caching).
    """

    model: Model
    lengths: Lengths
    device: Device
    utilisation: Utilisation
    tokens_per_second: float | None
    extra_forwards: int
    shared_prompt: bool

    def memory(self, *, world_size: int, micro_batch: int) -> Memory:
        """Memory of one device while training.

        Args:
            world_size: Devices that share the training state.
            micro_batch: Rollouts in one forward and backward pass of a device.

        Raises:
            BudgetError: ``world_size`` is below 1.
        """
        return memory(self.model, self.lengths, world_size=world_size, micro_batch=micro_batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What generating rollouts and training on them costs.

    Attributes:
        tokens: Response tokens.
        flops: FLOPs of both.
        sampling: Device-seconds of generating.
        training: Device-seconds of training.
    """

    tokens: Interval
    flops: Work
    sampling: Interval
    training: Interval

    @property
    def time(self) -> Interval:
        """Device-seconds of both together."""
        return self.sampling + self.training


def estimate(rollouts: int, setting: Setting, *, rollouts_per_problem: int) -> Estimate:
    """Estimate what generating rollouts and training on all of them costs.

    Args:
        rollouts_per_problem: n, responses that share a prompt.

    Raises:
        BudgetError: A number is not possible.
    """
    tokens = response_tokens(rollouts, setting.lengths)
    flops = work(
        rollouts,
        model=setting.model,
        lengths=setting.lengths,
        rollouts_per_problem=rollouts_per_problem,
        shared_prompt=setting.shared_prompt,
        extra_forwards=setting.extra_forwards,
    )
    sampling, training = device_time(
        flops,
        setting.device,
        utilisation=setting.utilisation,
        tokens=tokens,
        tokens_per_second=setting.tokens_per_second,
    )
    return Estimate(tokens=tokens, flops=flops, sampling=sampling, training=training)

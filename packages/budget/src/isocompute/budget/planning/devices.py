"""From FLOPs to device time, memory and money."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from ..checks import finite, whole
from ..errors import BudgetError
from .compute import Interval, Lengths, Model, Work

GIBIBYTE = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An accelerator.

    Attributes:
        name: Its name.
        peak: Dense bfloat16 FLOP/s, from its data sheet.
        memory: Bytes.
    """

    name: str
    peak: float
    memory: int


DEVICES: Mapping[str, Device] = {
    device.name: device
    for device in (
        Device(name="a100", peak=312e12, memory=80 * 10**9),
        Device(name="h100", peak=989e12, memory=80 * 10**9),
        Device(name="h200", peak=989e12, memory=141 * 10**9),
        Device(name="b200", peak=2250e12, memory=180 * 10**9),
        Device(name="l40s", peak=362e12, memory=48 * 10**9),
        Device(name="mi300x", peak=1307e12, memory=192 * 10**9),
    )
}
"""Accelerators by name."""


def device(name: str) -> Device:
    """An accelerator by its name.

    Raises:
        BudgetError: There is no such accelerator.
    """
    if name not in DEVICES:
        raise BudgetError(f"{name!r} is not a known device; the known ones are {', '.join(DEVICES)}")
    return DEVICES[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """Shares of a device's peak that are reached (model FLOPs utilisation): assumed unless they were measured.

    Attributes:
        generation: Low, likely and high, while sampling.
        training: Low, likely and high, while training.

    Raises:
        BudgetError: Shares are not in ascending order between 0 and 1.
    """

    generation: tuple[float, float, float] = (0.05, 0.15, 0.3)
    training: tuple[float, float, float] = (0.25, 0.35, 0.5)

    def __post_init__(self) -> None:
        for name in ("generation", "training"):
            low, likely, high = getattr(self, name)
            if not 0 < low <= likely <= high <= 1:
                raise BudgetError(
                    f"the utilisation in {name} is {low}, {likely}, {high}; it must be in ascending "
                    "order between 0 and 1"
                )


def seconds(flops: Interval, on: Device, shares: tuple[float, float, float], doing: str) -> Interval:
    """Device-seconds of a number of FLOPs.

    Args:
        shares: Low, likely and high share of its peak that is reached.
        doing: The phase (sampling or training), for the wording of the assumption.
    """
    slow, likely, fast = shares
    reached = f"{slow:.0%} to {fast:.0%} (likely {likely:.0%})" if slow < fast else f"{likely:.0%}"
    return Interval(
        low=flops.low / (on.peak * fast),
        likely=flops.likely / (on.peak * likely),
        high=flops.high / (on.peak * slow),
        assumptions=(
            *flops.assumptions,
            f"{doing} reaches {reached} of the {on.peak / 1e12:,.0f} TFLOP/s of {on.name}",
        ),
    )


def device_time(
    of: Work,
    on: Device,
    *,
    utilisation: Utilisation | None = None,
    tokens: Interval | None = None,
    tokens_per_second: float | None = None,
) -> tuple[Interval, Interval]:
    """Device-seconds of generating and of training.

    Args:
        tokens: Response tokens generated, where the engine's speed was measured.
        tokens_per_second: Measured throughput of one device in response tokens per second; replaces the
            assumption about utilisation while sampling.

    Raises:
        BudgetError: The speed is not positive, or the tokens are missing.
    """
    shares = utilisation or Utilisation()
    training = seconds(of.training, on, shares.training, "training")
    if tokens_per_second is None:
        return seconds(of.generation, on, shares.generation, "sampling"), training
    if tokens is None or not 0 < tokens_per_second < inf:
        raise BudgetError(
            f"tokens_per_second is {tokens_per_second!r}; it must be positive, and the tokens must be known"
        )
    said = f"a device generates {tokens_per_second:,.0f} response tokens per second"
    return tokens.times(1 / tokens_per_second, said), training


def price(device_seconds: Interval, per_hour: float, currency: str = "USD") -> Interval:
    """What device time costs, in the currency of the price per device-hour."""
    per_hour = finite(per_hour, "the price of a device-hour", zero=True)
    return device_seconds.times(per_hour / 3600, f"{per_hour:,.2f} {currency} per device-hour")


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes on one device while training, roughly.

    Attributes:
        state: Weights, gradients and Adam's moments, 16 bytes per parameter, sharded over the devices (FSDP, ZeRO-3).
        activations: Saved inputs of each layer (checkpointed, bfloat16) and the logits of one pass (float32).
        engine: Weights of an inference engine on the same device, bfloat16; its KV cache takes what is left.
    """

    state: int
    activations: int
    engine: int

    @property
    def total(self) -> int:
        """The three together."""
        return self.state + self.activations + self.engine


def memory(model: Model, lengths: Lengths, *, world_size: int, micro_batch: int = 1, colocated: bool = True) -> Memory:
    """Memory of one device in a sharded trainer.

    Args:
        world_size: Devices that share the training state.
        micro_batch: Rollouts in one forward and backward pass of a device.
        colocated: Whether the device also holds an inference engine.

    Returns:
        Bytes; the activations are 0 where the model's shape is not known.

    Raises:
        BudgetError: ``world_size`` is below 1.
    """
    world = whole(world_size, "world_size", least=1)
    tokens = (lengths.prompt_tokens + lengths.mean_response * (1 + lengths.spread)) * micro_batch
    per_token = 2 * (model.layers or 0) * (model.width or 0) + 4 * (model.vocabulary or 0)
    return Memory(
        state=16 * model.parameters // world,
        activations=round(tokens * per_token),
        engine=2 * model.parameters if colocated else 0,
    )

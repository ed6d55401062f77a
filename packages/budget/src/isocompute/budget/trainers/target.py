"""A run to be configured: an allocation, the devices, and how one copy of the model is spread over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import gcd
from typing import Literal

from ..checks import finite, whole
from ..errors import BudgetError
from ..planning.allocation import Allocation

Value = bool | int | float | str | None | list["Value"] | dict[str, "Value"]
"""A setting's value, as YAML, JSON, TOML and flags can hold it."""

Style = Literal["dashes", "hydra"]
"""How a trainer takes flags: ``--key value`` or ``key=value``."""

MICRO_BATCH = 8
"""Largest micro-batch of a rank, in rollouts, unless one is given."""

MOST_DEVICES = 2**20
"""More devices than this are refused as a mistake."""

MOST_NAMED = 128
"""Largest micro-batch that a refusal proposes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """How one copy of the model is spread over devices while it is trained.

    Attributes:
        tensor: Devices that share each layer's matrices.
        pipeline: Devices that hold different layers.
        context: Devices that share each sequence (context, ring-attention or Ulysses sequence parallelism).

    Raises:
        BudgetError: A degree is not a whole number of at least 1.
    """

    tensor: int = 1
    pipeline: int = 1
    context: int = 1

    def __post_init__(self) -> None:
        for name, degree in self.degrees.items():
            if whole(degree, f"{name} parallelism", least=1) > MOST_DEVICES:
                raise BudgetError(f"{name} parallelism is {degree:,}; it must be at most {MOST_DEVICES:,}")

    @property
    def degrees(self) -> Mapping[str, int]:
        """The three degrees by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def devices(self) -> int:
        """Devices that hold one copy of the model together."""
        return self.tensor * self.pipeline * self.context

    def __str__(self) -> str:
        return " × ".join(f"{name} {degree}" for name, degree in self.degrees.items() if degree > 1) or "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run to be configured in a trainer's settings.

    With 16 devices, tensor parallelism of 4 and context parallelism of 2 there are 2 data-parallel ranks, and each
    trains on half of a batch.

    Attributes:
        allocation: The split.
        world_size: Devices that train.
        parallelism: How one copy of the model is spread over them.
        micro_batch: Rollouts that a data-parallel rank holds in one forward and backward pass; None takes the largest
            divisor of its share of the batch up to 8. It changes memory and speed and nothing that is learned.
        gpus_per_node: Most devices of a machine.
        problems: D, problems in the training set; None when it is not known.
        learning_rate: Learning rate to write, or None to leave the trainer's.

    Raises:
        BudgetError: A number is out of range, or the devices or the batch cannot be split evenly.
    """

    allocation: Allocation
    world_size: int = 1
    parallelism: Parallelism = Parallelism()
    micro_batch: int | None = None
    gpus_per_node: int = 8
    problems: int | None = None
    learning_rate: float | None = None

    def __post_init__(self) -> None:
        for name in ("world_size", "gpus_per_node"):
            if whole(getattr(self, name), name, least=1) > MOST_DEVICES:
                raise BudgetError(f"{name} is {getattr(self, name):,}; it must be at most {MOST_DEVICES:,}")
        if self.learning_rate is not None:
            finite(self.learning_rate, "learning_rate")
        a = self.allocation
        if self.problems is not None and whole(self.problems, "problems", least=1) < a.problems_per_batch:
            raise BudgetError(
                f"a batch of {a.problems_per_batch:,} problems cannot be drawn from {self.problems:,}; "
                f"every trainer drops the incomplete batch, so take problems_per_batch of at most {self.problems:,}"
            )
        self._check_devices()
        if self.micro_batch is not None and self.rank_rollouts % whole(self.micro_batch, "micro_batch", least=1):
            fits = [str(d) for d in range(1, min(self.rank_rollouts, MOST_NAMED) + 1) if self.rank_rollouts % d == 0]
            raise BudgetError(
                f"micro_batch is {self.micro_batch}, which does not divide a rank's {self.rank_rollouts:,} "
                f"rollouts of a batch; {', '.join(fits)} would"
            )

    def _check_devices(self) -> None:
        """Check that copies of the model fill the devices, and that the batch can be split evenly over the copies."""
        a, copy = self.allocation, self.parallelism.devices
        if self.world_size % copy:
            below = self.world_size // copy * copy
            fits = " or ".join(f"{w:,}" for w in (below, below + copy) if w)
            raise BudgetError(
                f"{self.world_size:,} devices cannot be split into copies of the model on {copy:,} each "
                f"({self.parallelism}); world_size {fits} would"
            )
        if a.batch_rollouts % self.data_parallel:
            step = self.data_parallel // gcd(self.data_parallel, a.rollouts_per_problem)
            below = a.problems_per_batch // step * step
            fits = " or ".join(f"{p:,}" for p in (below, below + step) if p)
            raise BudgetError(
                f"a batch of {a.batch_rollouts:,} rollouts ({a.problems_per_batch:,} problems × "
                f"{a.rollouts_per_problem:,}) cannot be split evenly over {self.data_parallel} {self.ranks}; "
                f"problems_per_batch {fits} would"
            )

    @property
    def data_parallel(self) -> int:
        """Copies of the model that share a batch: devices over tensor × pipeline × context parallelism."""
        return self.world_size // self.parallelism.devices

    @property
    def ranks(self) -> str:
        """What shares a batch, in words: devices or data-parallel ranks."""
        return "devices" if self.parallelism.devices == 1 else "data-parallel ranks"

    @property
    def rank_rollouts(self) -> int:
        """A data-parallel rank's share of a batch, in rollouts."""
        return self.allocation.batch_rollouts // self.data_parallel

    @property
    def pass_rollouts(self) -> int:
        """Rollouts of one pass of a data-parallel rank."""
        return self.micro_batch or largest_divisor(self.rank_rollouts, MICRO_BATCH)

    @property
    def nodes(self) -> tuple[int, int]:
        """Machines, and devices of each."""
        per_node = largest_divisor(self.world_size, self.gpus_per_node)
        return self.world_size // per_node, per_node

    @property
    def epochs(self) -> int:
        """Passes over the problems that are sure to hold M batches: every pass holds at least one."""
        if self.problems is None:
            return self.allocation.update_steps
        return -(-self.allocation.update_steps // (self.problems // self.allocation.problems_per_batch))

    def learning_rate_setting(self, key: str) -> dict[str, Value]:
        """The learning rate under a trainer's key, or nothing."""
        return {} if self.learning_rate is None else {key: self.learning_rate}


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A trainer's settings.

    Attributes:
        framework: Name of the trainer.
        settings: Dotted keys and their values.
        notes: What the settings rest on, and what must be set elsewhere.
    """

    framework: str
    settings: Mapping[str, Value]
    notes: tuple[str, ...] = ()


def largest_divisor(number: int, most: int) -> int:
    """The largest divisor of ``number`` that is not above ``most``.

    Args:
        most: The largest divisor allowed, at least 1.
    """
    return next(d for d in range(min(number, most), 0, -1) if number % d == 0)

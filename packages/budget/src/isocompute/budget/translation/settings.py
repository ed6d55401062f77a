"""What passes between an allocation and a trainer's settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil, gcd
from typing import Literal

from ..allocation import Allocation
from ..counts import finite, whole
from ..errors import BudgetError

Value = bool | int | float | str | None | list["Value"]
"""A setting's value, as YAML, JSON, TOML and flags can hold it."""

Style = Literal["dashes", "hydra"]
"""How a trainer takes flags: ``--key value`` or ``key=value``."""

MICRO_BATCH = 8
"""Rollouts a device holds at once, at most, unless it is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a trainer is to be told.

    Attributes:
        allocation: The split.
        world_size: Devices that train, data-parallel.
        micro_batch: Rollouts that a device holds in one forward and backward pass; None takes the largest
            divisor of its share of the batch up to 8. It changes memory and speed and nothing that is learned.
        gpus_per_node: Devices of a machine, at most.
        problems: D, problems in the training set; None when it is not known.

    Raises:
        BudgetError: A number is not whole and positive, or the batch does not divide over the devices.
    """

    allocation: Allocation
    world_size: int = 1
    micro_batch: int | None = None
    gpus_per_node: int = 8
    problems: int | None = None

    def __post_init__(self) -> None:
        whole(self.world_size, "world_size", least=1)
        whole(self.gpus_per_node, "gpus_per_node", least=1)
        a = self.allocation
        if self.problems is not None and whole(self.problems, "problems", least=1) < a.problems_per_batch:
            raise BudgetError(
                f"a batch of {a.problems_per_batch:,} problems cannot be drawn from {self.problems:,}; "
                f"every trainer drops the incomplete batch, so take problems_per_batch of at most {self.problems:,}"
            )
        if a.batch_rollouts % self.world_size:
            step = self.world_size // gcd(self.world_size, a.rollouts_per_problem)
            below = a.problems_per_batch // step * step
            fits = " or ".join(f"{p:,}" for p in (below, below + step) if p)
            raise BudgetError(
                f"a batch of {a.batch_rollouts:,} rollouts ({a.problems_per_batch:,} problems × "
                f"{a.rollouts_per_problem:,}) does not divide over {self.world_size} devices; "
                f"problems_per_batch {fits} would"
            )
        if self.micro_batch is not None and self.device_rollouts % whole(self.micro_batch, "micro_batch", least=1):
            fits = ", ".join(str(d) for d in range(1, self.device_rollouts + 1) if self.device_rollouts % d == 0)
            raise BudgetError(
                f"micro_batch is {self.micro_batch}, which does not divide a device's {self.device_rollouts:,} "
                f"rollouts of a batch; {fits} would"
            )

    @property
    def device_rollouts(self) -> int:
        """A device's share of a batch, in rollouts."""
        return self.allocation.batch_rollouts // self.world_size

    @property
    def micro(self) -> int:
        """Rollouts of one pass of a device."""
        return self.micro_batch or largest_divisor(self.device_rollouts, MICRO_BATCH)

    @property
    def nodes(self) -> tuple[int, int]:
        """Machines, and devices of each."""
        per_node = largest_divisor(self.world_size, self.gpus_per_node)
        return self.world_size // per_node, per_node

    @property
    def epochs(self) -> int:
        """Passes over the problems that surely hold M batches: every pass holds one batch at least."""
        if self.problems is None:
            return self.allocation.update_steps
        return -(-self.allocation.update_steps // (self.problems // self.allocation.problems_per_batch))


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A trainer's settings.

    Attributes:
        framework: Name of the trainer.
        settings: Dotted keys and their values.
        notes: What the settings rest on, and what has to be said elsewhere.
    """

    framework: str
    settings: Mapping[str, Value]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a trainer's settings say.

    Attributes:
        problems_per_batch: B_p, or None when it cannot be known.
        rollouts_per_problem: n, or None.
        update_steps: M, batches generated and trained on, or None.
        optimizer_steps: Optimizer steps in all; more than M where a batch is split or used again.
        world_size: Devices that train, or None.
        unknown: What the settings do not say, and how to say it.
        inconsistent: What contradicts itself, or does not do what it seems to.
        notes: Defaults that were taken, and what is generated on top.
    """

    problems_per_batch: int | None
    rollouts_per_problem: int | None
    update_steps: int | None
    optimizer_steps: int | None
    world_size: int | None
    unknown: tuple[str, ...] = ()
    inconsistent: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def allocation(self) -> Allocation | None:
        """The allocation, when all three parts are known."""
        if None in (self.problems_per_batch, self.rollouts_per_problem, self.update_steps):
            return None
        return Allocation(
            problems_per_batch=self.problems_per_batch,  # type: ignore[arg-type]
            rollouts_per_problem=self.rollouts_per_problem,  # type: ignore[arg-type]
            update_steps=self.update_steps,  # type: ignore[arg-type]
        )


@dataclass(slots=True, kw_only=True)
class Settings:
    """A trainer's settings while they are read, with remarks gathered on the way.

    Attributes:
        values: Dotted keys and their values.
        where: The file, for error messages.
        world_size: Devices that train, as the caller knows them.
        problems: D, as the caller knows it.
        unknown: Remarks as in ``Reading``.
        inconsistent: Remarks as in ``Reading``.
        notes: Remarks as in ``Reading``.
    """

    values: Mapping[str, Value]
    where: str
    world_size: int | None = None
    problems: int | None = None
    unknown: list[str] = field(default_factory=list)
    inconsistent: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def find(self, *names: str) -> tuple[str, Value]:
        """The first of several names of one setting that is there, and its value (None when none is)."""
        for name in names:
            if self.values.get(name) is not None:
                return name, self.values[name]
        return names[0], None

    def whole(self, *names: str, default: int | None = None) -> int | None:
        """A whole number of at least 1, under the first of its names that is there.

        Args:
            names: Names of the setting, the present one first.
            default: What the trainer takes when it is not set; taken, and noted.

        Raises:
            BudgetError: The value is not a whole number of at least 1.
        """
        name, value = self.find(*names)
        if value is None:
            if default is not None:
                self.notes.append(f"{name} is not set; the default of {default:,} is taken")
            return default
        if isinstance(value, str) and "$" in value:
            self.unknown.append(f"{name} is {value}, which is only known when the script runs")
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BudgetError(f"{self.where}: {name} is {value!r}; it has to be a whole number of at least 1")
        return value

    def on(self, *names: str, default: bool = False) -> bool:
        """Whether a switch is on."""
        value = self.find(*names)[1]
        return default if value is None else value is True

    def missing(self, what: str, names: str) -> None:
        """Note that the settings do not say something."""
        self.unknown.append(f"{what}: {names} is not set")

    def share(self, batch: int | None, world: int | None, key: str) -> None:
        """Note a batch that does not divide over the devices."""
        if batch and world and batch % world:
            self.inconsistent.append(f"{key}: {batch:,} rollouts do not divide over {world} devices")

    def fraction(self, name: str, *, default: int) -> float | None:
        """A number above 0, which need not be whole.

        Raises:
            BudgetError: The value is not such a number.
        """
        value = self.values.get(name)
        if isinstance(value, float) and not value.is_integer():
            return finite(value, f"{self.where}: {name}")
        return self.whole(name, default=default)

    def steps(self, limit: int | None, epochs: float | None, problems_per_batch: int | None, key: str) -> int | None:
        """M, where a trainer stops at a number of steps or of epochs, whichever comes first.

        Args:
            limit: The number of steps, or None.
            epochs: The number of epochs, or None.
            problems_per_batch: B_p.
            key: Name of the setting of epochs.
        """
        batches = self.problems // problems_per_batch if self.problems and problems_per_batch else None
        if epochs is None or batches is None:
            if limit is None:
                self.unknown.append(
                    f"update steps: they follow from {key} and the number of problems; say --problems D"
                )
            elif epochs is not None and epochs < limit:
                self.notes.append(
                    f"{limit:,} steps are reached only with at least {ceil(limit / epochs):,} batches of problems "
                    f"an epoch, because {key} is {epochs:,}; say --problems D to have it checked"
                )
            return limit
        by_epochs = ceil(epochs * batches)
        if limit is not None and by_epochs < limit:
            self.inconsistent.append(
                f"{key} of {epochs:,} ends the run after {by_epochs:,} steps, before the {limit:,} asked for; "
                f"{-(-limit // batches):,} would do" if batches else f"{key}: there is no whole batch in an epoch"
            )  # fmt: skip
        return by_epochs if limit is None else min(limit, by_epochs)

    def reading(
        self,
        *,
        problems_per_batch: int | None,
        rollouts_per_problem: int | None,
        update_steps: int | None,
        per_batch: int | None = 1,
        world_size: int | None,
    ) -> Reading:
        """Put the parts and the remarks together.

        Args:
            problems_per_batch: B_p.
            rollouts_per_problem: n.
            update_steps: M.
            per_batch: Optimizer steps on each batch that is generated.
            world_size: Devices that train.
        """
        if per_batch is not None and per_batch > 1:
            self.inconsistent.append(
                f"each batch gets {per_batch:,} optimizer steps, of which only the first is on-policy"
            )
        if self.world_size is not None and world_size is not None and self.world_size != world_size:
            self.inconsistent.append(f"the settings are for {world_size} devices, not for {self.world_size}")
        return Reading(
            problems_per_batch=problems_per_batch,
            rollouts_per_problem=rollouts_per_problem,
            update_steps=update_steps or None,
            optimizer_steps=update_steps * per_batch if update_steps and per_batch else None,
            world_size=world_size,
            unknown=tuple(self.unknown),
            inconsistent=tuple(self.inconsistent),
            notes=tuple(self.notes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """A trainer.

    Attributes:
        name: Name on the command line.
        title: Its own spelling.
        style: How it takes flags.
        write: Settings for a run.
        parse: What settings say.
    """

    name: str
    title: str
    style: Style
    write: Callable[[Run], Configuration]
    parse: Callable[[Settings], Reading]


def largest_divisor(number: int, most: int) -> int:
    """The largest divisor of ``number`` that is not above ``most``."""
    return next(d for d in range(min(number, most), 0, -1) if number % d == 0)


def split(batch: int | None, part: int | None) -> int | None:
    """How often ``part`` goes into ``batch``, or None when it does not."""
    return batch // part if batch and part and batch % part == 0 else None

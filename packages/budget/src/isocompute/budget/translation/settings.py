"""A trainer's settings while they are read, and what they turn out to say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

from ..allocation import Allocation
from ..counts import LARGEST, finite
from ..errors import BudgetError
from ..wording import short
from .run import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a trainer's settings say.

    Attributes:
        problems_per_batch: B_p, or None when it cannot be known.
        rollouts_per_problem: n, or None.
        update_steps: M, batches generated and trained on, or None.
        optimizer_steps: Optimizer steps in all; more than M where a batch is split or used again.
        world_size: Devices that train, or None.
        data_parallel: Copies of the model that share a batch, or None.
        baseline_rollouts: Responses generated for each problem on top of n and not trained on (veRL's remax: 1).
        unknown: What the settings do not say, and how to say it.
        inconsistent: What contradicts itself, or does not do what it seems to.
        notes: Defaults that were taken, and what is generated on top.
    """

    problems_per_batch: int | None
    rollouts_per_problem: int | None
    update_steps: int | None
    optimizer_steps: int | None
    world_size: int | None
    data_parallel: int | None = None
    baseline_rollouts: int = 0
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

    @property
    def generated(self) -> int | None:
        """Rollouts that the run generates, B_p · (n + baseline) · M, or None when the allocation is not known."""
        a = self.allocation
        return None if a is None else a.rollouts + a.problems_per_batch * a.update_steps * self.baseline_rollouts


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
            self.unknown.append(f"{name} is {value:.120}, which is only known when the script runs")
            return None
        return self.checked(value, name)

    def checked(self, value: Value, name: str) -> int:
        """A value as a whole number of at least 1.

        Raises:
            BudgetError: It is none.
        """
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
            most = f" and at most {LARGEST}" if isinstance(value, int) and value > LARGEST else ""
            raise BudgetError(f"{self.where}: {name} is {short(value)}; it must be a whole number of at least 1{most}")
        return value

    def on(self, *names: str, default: bool = False) -> bool:
        """Whether a switch is on."""
        value = self.find(*names)[1]
        return default if value is None else value is True

    def missing(self, what: str, names: str) -> None:
        """Note that the settings do not say something."""
        self.unknown.append(f"{what}: {names} is not set")

    def product(self, *factors: int | None) -> int | None:
        """Several numbers multiplied, or None when one is not known."""
        total = 1
        for factor in factors:
            if factor is None:
                return None
            total *= factor
        return total

    def ranks(
        self,
        world: int | None,
        *,
        tensor: Sequence[str] = (),
        pipeline: Sequence[str] = (),
        context: Sequence[str] = (),
    ) -> int | None:
        """Data-parallel ranks: devices over tensor × pipeline × context parallelism.

        Args:
            world: Devices that train, or None.
            tensor: Names of the setting of tensor parallelism; none where the trainer has no such setting.
            pipeline: Likewise of pipeline parallelism.
            context: Likewise of context, ring-attention or Ulysses sequence parallelism.

        Returns:
            The ranks, or None when they cannot be known or the devices do not divide, which is noted.
        """
        copy, said = 1, []
        for names in (tensor, pipeline, context):
            if not names or self.find(*names)[1] is None:
                continue
            degree = self.whole(*names)
            if degree is None:
                return None
            copy *= degree
            if degree > 1:
                said.append(f"{self.find(*names)[0]} {degree}")
        if world is None or world % copy == 0:
            return world and world // copy
        self.inconsistent.append(
            f"{world} devices do not divide into copies of the model on {copy} each ({', '.join(said)})"
        )
        return None

    def share(self, batch: int | None, ranks: int | None, world: int | None, key: str) -> None:
        """Note a batch that does not divide over the data-parallel ranks, or devices where these are as many."""
        if batch and ranks and batch % ranks:
            what = "devices" if ranks == world else "data-parallel ranks"
            self.inconsistent.append(f"{key}: {batch:,} rollouts do not divide over {ranks} {what}")

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
        data_parallel: int | None,
        baseline_rollouts: int = 0,
    ) -> Reading:
        """Put the parts and the remarks together.

        Args:
            problems_per_batch: B_p.
            rollouts_per_problem: n.
            update_steps: M.
            per_batch: Optimizer steps on each batch that is generated.
            world_size: Devices that train.
            data_parallel: Copies of the model that share a batch.
            baseline_rollouts: Responses for each problem on top of n.
        """
        if per_batch is not None and per_batch > 1:
            self.notes.append(f"each batch gets {per_batch:,} optimizer steps, of which only the first is on-policy")
        if self.world_size is not None and world_size is not None and self.world_size != world_size:
            self.inconsistent.append(f"the settings are for {world_size} devices, not for {self.world_size}")
        return Reading(
            problems_per_batch=problems_per_batch,
            rollouts_per_problem=rollouts_per_problem,
            update_steps=update_steps or None,
            optimizer_steps=update_steps * per_batch if update_steps and per_batch else None,
            world_size=world_size,
            data_parallel=data_parallel,
            baseline_rollouts=baseline_rollouts,
            unknown=tuple(self.unknown),
            inconsistent=tuple(self.inconsistent),
            notes=tuple(self.notes),
        )


def split(batch: int | None, part: int | None) -> int | None:
    """How often ``part`` goes into ``batch``, or None when it does not."""
    return batch // part if batch and part and batch % part == 0 else None

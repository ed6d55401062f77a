"""A trainer's settings while they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

from ..checks import LARGEST, finite
from ..errors import BudgetError
from ..wording import shorten
from .reading import Reading
from .run import Value


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
        """The first of several names of one setting that is set, and its value (None when none is)."""
        for name in names:
            if self.values.get(name) is not None:
                return name, self.values[name]
        return names[0], None

    def whole(self, *names: str, default: int | None = None) -> int | None:
        """A whole number of at least 1, under the first of its names that is set.

        Args:
            names: Names of the setting, the current one first.
            default: The trainer's default, assumed and noted when the setting is missing.

        Raises:
            BudgetError: The value is not a whole number of at least 1.
        """
        name, value = self.find(*names)
        if value is None:
            if default is not None:
                self.notes.append(f"{name} is not set; the default of {default:,} is assumed")
            return default
        if isinstance(value, str) and "$" in value:
            self.unknown.append(f"{name} is {value:.120}, which is only known when the script runs")
            return None
        return self.check_whole(value, name)

    def check_whole(self, value: Value, name: str) -> int:
        """A value as a whole number of at least 1.

        Args:
            name: Name of the setting, for the error message.

        Raises:
            BudgetError: It is not such a number.
        """
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
            most = f" and at most {LARGEST}" if isinstance(value, int) and value > LARGEST else ""
            raise BudgetError(
                f"{self.where}: {name} is {shorten(value)}; it must be a whole number of at least 1{most}"
            )
        return value

    def is_on(self, *names: str, default: bool = False) -> bool:
        """Whether a switch is on."""
        value = self.find(*names)[1]
        return default if value is None else value is True

    def note_missing(self, what: str, names: str) -> None:
        """Note that the settings do not say something.

        Args:
            what: What remains unknown.
            names: Names of the settings that would say it.
        """
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
            The ranks, or None when they cannot be known or the devices cannot be split evenly, which is noted.
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
            f"{world} devices cannot be split into copies of the model on {copy} each ({', '.join(said)})"
        )
        return None

    def check_divides(self, batch: int | None, ranks: int | None, world: int | None, key: str) -> None:
        """Note a batch that cannot be split evenly over the data-parallel ranks.

        Args:
            batch: Rollouts in a batch, or None.
            ranks: Data-parallel ranks, or None.
            world: Devices that train, or None; where there are as many ranks, the note says devices.
            key: Name of the setting of the batch.
        """
        if batch and ranks and batch % ranks:
            what = "devices" if ranks == world else "data-parallel ranks"
            self.inconsistent.append(f"{key}: {batch:,} rollouts cannot be split evenly over {ranks} {what}")

    def fraction(self, name: str, *, default: int) -> float | None:
        """A number above 0, which need not be whole.

        Args:
            default: The trainer's default, assumed and noted when the setting is missing.

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
                    f"update steps: they follow from {key} and the number of problems; give --problems D"
                )
            elif epochs is not None and epochs < limit:
                self.notes.append(
                    f"{limit:,} steps are reached only with at least {ceil(limit / epochs):,} batches of problems "
                    f"per epoch, because {key} is {epochs:,}; give --problems D to have it checked"
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
        """The result, with the remarks gathered so far.

        Args:
            problems_per_batch: B_p.
            per_batch: Optimizer steps on each batch that is generated.
            world_size: Devices that train.
            data_parallel: Copies of the model that share a batch.
            baseline_rollouts: Responses for each problem in addition to n.
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


def exact_quotient(batch: int | None, part: int | None) -> int | None:
    """``batch`` / ``part`` if it is a whole number and both are known, or None.

    Args:
        batch: The number that is divided, or None.
        part: The number to divide by, or None.
    """
    return batch // part if batch and part and batch % part == 0 else None

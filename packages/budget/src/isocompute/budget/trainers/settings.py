"""A trainer's settings while they are read, from files, flags or logs: what is missing is said, with how to give it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil

from ..checks import LARGEST, finite
from ..errors import BudgetError
from ..wording import shorten
from .batching import Batching
from .target import Value


class MissingSettingError(BudgetError):
    """A log cannot be read without a setting that nothing says.

    Attributes:
        name: Its name, to be given with ``--set``.
        choices: What it may be, where that is known.
    """

    def __init__(self, message: str, *, name: str, choices: str = "") -> None:
        super().__init__(message)
        self.name, self.choices = name, choices


@dataclass(slots=True, kw_only=True)
class Settings:
    """A trainer's settings while they are read, with remarks gathered on the way.

    Attributes:
        values: Dotted keys and their values.
        where: The file or the run, for error messages.
        world_size: Devices that train, as the caller knows them.
        problems: D, as the caller knows it.
        given: Names that the user says, against logs and files.
        has_defaults: Whether what is left out has the trainer's default: not where there is no configuration.
        unknown: Remarks as in ``Batching``.
        inconsistent: Remarks as in ``Batching``.
        notes: Remarks as in ``Batching``.
        read: Names that were looked for.
    """

    values: Mapping[str, Value]
    where: str
    world_size: int | None = None
    problems: int | None = None
    given: frozenset[str] = frozenset()
    has_defaults: bool = True
    unknown: list[str] = field(default_factory=list)
    inconsistent: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    read: set[str] = field(default_factory=set)

    def find(self, *names: str) -> tuple[str, Value]:
        """The first of several names of one setting that is set, and its value (None when none is)."""
        self.read.update(names)
        for name in names:
            if self.values.get(name) is not None:
                return name, self.values[name]
        return names[0], None

    def matching(self, pattern: str) -> dict[str, Value]:
        """The settings whose names a regular expression matches whole."""
        found: dict[str, Value] = {k: v for k, v in self.values.items() if v is not None and re.fullmatch(pattern, k)}
        self.read.update(found)
        return found

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
            if default is not None and not self.has_defaults:
                self.unknown.append(f"{name} is not known: {' or '.join(names)} is not in its logs or configuration")
                return None
            if default is not None:
                self.notes.append(f"{name} is not set; the default of {default:,} is assumed")
            return default
        if isinstance(value, str) and "$" in value:
            self.unknown.append(f"{name} is {value:.120}, which is only known when the script runs")
            return None
        return self.check_whole(value, name)

    def required(self, *names: str, default: int | None = None) -> int:
        """A whole number of at least 1 without which a log cannot be read.

        Raises:
            BudgetError: Nothing says it, or it is not such a number.
        """
        value = self.whole(*names, default=default)
        if value is None:
            raise self.missing(names[0])
        return value

    def required_switch(self, *names: str) -> bool:
        """Whether a switch is on, without which a log cannot be read.

        Raises:
            BudgetError: There is no configuration that could say it, or it is neither on nor off.
        """
        if self.find(*names)[1] is None and not self.has_defaults:
            raise self.missing(names[0], choices="true or false")
        return self.is_on(*names)

    def missing(self, name: str, *, choices: str = "") -> MissingSettingError:
        """The error for a setting without which a log cannot be read.

        Args:
            choices: What it may be.
        """
        return MissingSettingError(
            f"{self.where}: {name} is not known: it is not in its logs or configuration; give it with --set "
            f"{name}=VALUE",
            name=name,
            choices=choices,
        )

    def check_whole(self, value: Value, name: str) -> int:
        """A value as a whole number of at least 1.

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
        """Whether a switch is on.

        Raises:
            BudgetError: It is neither on nor off.
        """
        name, value = self.find(*names)
        if value is None or (isinstance(value, str) and ("$" in value or value == "None")):
            return default
        if value not in (True, False, 0, 1):
            raise BudgetError(f"{self.where}: {name} is {shorten(value)}; it must be true or false")
        return bool(value)

    def text(self, *names: str, default: str = "") -> str:
        """A text, or the default where nothing says it."""
        value = self.find(*names)[1]
        return default if value is None else str(value)

    def note_missing(self, what: str, names: str) -> None:
        """Note that the settings do not say something.

        Args:
            what: What remains unknown.
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
            world: Devices that train, or None; where there are as many ranks, the note says devices.
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
        value = self.find(name)[1]
        if isinstance(value, float) and not value.is_integer():
            return finite(value, f"{self.where}: {name}")
        return self.whole(name, default=default)

    def steps(self, limit: int | None, epochs: float | None, problems_per_batch: int | None, key: str) -> int | None:
        """Batches of a run that stops at a number of steps or of epochs, whichever comes first.

        Args:
            problems_per_batch: Problems of a step.
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

    def batching(
        self,
        *,
        problems_generated: int | None,
        rollouts_per_problem: int | None,
        generations: int | None,
        world_size: int | None,
        data_parallel: int | None,
        updates: Fraction | int | None = 1,
        passes: int = 1,
        update_steps: int | None = None,
        baseline_rollouts: int = 0,
    ) -> Batching:
        """The result, with the remarks gathered so far.

        Args:
            problems_generated: Problems that are generated at once.
            generations: How often, in the whole run.
            world_size: Devices that train.
            data_parallel: Copies of the model that share a batch.
            updates: Optimizer steps for each generation batch; below 1 where a step takes several.
            passes: How often each response is trained on.
            update_steps: Optimizer steps in all, where they are not generations · updates.
            baseline_rollouts: Responses for each problem in addition to n.
        """
        if updates is not None and updates > 1:
            self.notes.append(
                f"each batch gets {float(updates):,g} optimizer steps, of which only the first is on-policy"
            )
        if self.world_size is not None and world_size is not None and self.world_size != world_size:
            self.inconsistent.append(f"the settings are for {world_size} devices, not for {self.world_size}")
        per_step = problems_generated * passes / Fraction(updates) if problems_generated and updates else None
        if per_step is not None and per_step.denominator > 1:
            self.notes.append(
                f"an optimizer step takes the responses of {float(per_step):g} problems: B_p is rounded to "
                f"{max(1, round(per_step)):,}"
            )
        if update_steps is None and generations and updates:
            update_steps = int(generations * updates)
        return Batching(
            problems_per_batch=None if per_step is None else max(1, round(per_step)),
            rollouts_per_problem=rollouts_per_problem,
            update_steps=update_steps or None,
            problems_generated=problems_generated,
            generations=generations,
            baseline_rollouts=baseline_rollouts,
            world_size=world_size,
            data_parallel=data_parallel,
            unknown=tuple(self.unknown),
            inconsistent=tuple(self.inconsistent),
            notes=tuple(self.notes),
        )


def exact_quotient(batch: int | None, part: int | None) -> int | None:
    """``batch`` / ``part`` if it is a whole number and both are known, or None."""
    return batch // part if batch and part and batch % part == 0 else None

"""A trainer's settings: written for a planned run, or read from files, flags or logs as the batches that they produce.

Files are YAML, JSON, TOML and launch scripts. Missing settings are reported, with how to give them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import SequenceMatcher
from fractions import Fraction
from functools import cache
from math import ceil, gcd, prod
from pathlib import Path
from typing import Any, Literal

from ..contract.documents import DocumentError, parsed
from ..errors import BudgetError, finite, reason, shorten, whole
from ..planning.compute import Allocation
from .logs.log import flat


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """A trainer's batches according to its settings: generated at once, and trained on in optimizer steps.

    A trainer that samples 1,024 problems at once and splits them into four optimizer steps generates 1,024 problems
    every four steps of 256. One that accumulates four generation batches of one problem takes a step of 4. None stands
    for what cannot be known.

    Attributes:
        problems_per_batch: B_p, problems that one optimizer step trains on.
        update_steps: M, optimizer steps.
        problems_generated: Problems that are generated at once.
        generations: How often that happens in the whole run.
        updates: Optimizer steps per generation batch; below 1 if a step takes several such batches.
        baseline_rollouts: Responses per problem beyond n that are not trained on (veRL's remax: 1).
        unknown: What the settings leave open, and how to give it.
        inconsistent: Contradictions, and settings that do not do what they seem to.
        notes: Defaults that were assumed, and what is generated in addition.
        ignored: Settings that determine neither batches nor steps.
    """

    problems_per_batch: int | None
    rollouts_per_problem: int | None
    update_steps: int | None
    problems_generated: int | None
    generations: int | None
    updates: Fraction | None = None
    baseline_rollouts: int = 0
    world_size: int | None
    data_parallel: int | None = None
    unknown: tuple[str, ...] = ()
    inconsistent: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    @property
    def allocation(self) -> Allocation | None:
        """The split, if all three parts are known; it generates B_p · n · M unless batches are reused."""
        problems, n, steps = self.problems_per_batch, self.rollouts_per_problem, self.update_steps
        if problems is None or n is None or steps is None:
            return None
        return Allocation(problems_per_batch=problems, rollouts_per_problem=n, update_steps=steps)

    @property
    def batch_rollouts(self) -> int | None:
        """Rollouts that are generated at once, baselines included."""
        n = self.rollouts_per_problem
        return product(self.problems_generated, None if n is None else n + self.baseline_rollouts)

    @property
    def generated(self) -> int | None:
        """Rollouts that the run generates."""
        return product(self.batch_rollouts, self.generations)


Value = bool | int | float | str | None | list["Value"] | dict[str, "Value"]
"""A setting's value in YAML, JSON, TOML or flags."""

Style = Literal["dashes", "hyphens", "hydra"]
"""The form of a trainer's flags: ``--the_key value``, ``--the-key value`` or ``the_key=value``."""

MEGATRON = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
"""Megatron's names of tensor, pipeline and context parallelism."""

MICRO_BATCH = 8
"""Default for the largest micro-batch of a rank, in rollouts."""

MOST_DEVICES = 2**20
"""More devices than this are refused as a mistake."""

MOST_NAMED = 128
"""Largest micro-batch that a refusal proposes."""


def _check_devices(number: int, name: str) -> None:
    if whole(number, name, least=1) > MOST_DEVICES:
        raise BudgetError(f"{name} is {number:,}; it must be at most {MOST_DEVICES:,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """The devices that share one copy of the model in training.

    They share each layer's matrices (tensor), its layers (pipeline) or each sequence (context, ring-attention or
    Ulysses sequence parallelism).
    """

    tensor: int = 1
    pipeline: int = 1
    context: int = 1

    def __post_init__(self) -> None:
        for name, degree in self.degrees.items():
            _check_devices(degree, f"{name} parallelism")

    @property
    def degrees(self) -> Mapping[str, int]:
        """The three degrees by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def devices(self) -> int:
        """Devices that together hold one copy of the model."""
        return self.tensor * self.pipeline * self.context

    def megatron(self, prefix: str) -> dict[str, Value]:
        """The three degrees by Megatron's names with a prefix."""
        return {f"{prefix}{name}": degree for name, degree in zip(MEGATRON, self.degrees.values(), strict=True)}

    def __str__(self) -> str:
        return " × ".join(f"{name} {degree}" for name, degree in self.degrees.items() if degree > 1) or "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A run to write as a trainer's settings.

    With 16 devices, tensor parallelism of 4 and context parallelism of 2 there are 2 data-parallel ranks, each of which
    trains on half of a batch.

    Attributes:
        micro_batch: Rollouts that a data-parallel rank holds in one forward and backward pass; None takes the largest
            divisor of its share of the batch up to 8. It changes memory and speed, but not what is learned.
        problems: D, problems in the training set; None if unknown.
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
            _check_devices(getattr(self, name), name)
        if self.learning_rate is not None:
            finite(self.learning_rate, "learning_rate")
        a = self.allocation
        if self.problems is not None and whole(self.problems, "problems", least=1) < a.problems_per_batch:
            drawn = f"a batch of {a.problems_per_batch:,} problems cannot be drawn from {self.problems:,}"
            raise BudgetError(f"{drawn}; take problems_per_batch of at most {self.problems:,}")
        copy = self.parallelism.devices
        if self.world_size % copy:
            below = self.world_size // copy * copy
            raise BudgetError(
                f"{self.world_size:,} devices cannot be split into copies of the model on {copy:,} each "
                f"({self.parallelism}); world_size {_either(below, below + copy)} would"
            )
        if a.batch_rollouts % self.data_parallel:
            step = self.data_parallel // gcd(self.data_parallel, a.rollouts_per_problem)
            below = a.problems_per_batch // step * step
            ranks = "devices" if copy == 1 else "data-parallel ranks"
            raise BudgetError(
                f"a batch of {a.batch_rollouts:,} rollouts ({a.problems_per_batch:,} problems × "
                f"{a.rollouts_per_problem:,}) cannot be split evenly over {self.data_parallel} {ranks}; "
                f"problems_per_batch {_either(below, below + step)} would"
            )
        if self.micro_batch is not None and self.rank_rollouts % whole(self.micro_batch, "micro_batch", least=1):
            fits = [str(d) for d in range(1, min(self.rank_rollouts, MOST_NAMED) + 1) if self.rank_rollouts % d == 0]
            said = f"micro_batch is {self.micro_batch}, which does not divide a rank's {self.rank_rollouts:,} rollouts"
            raise BudgetError(f"{said}; {', '.join(fits)} would")

    @property
    def data_parallel(self) -> int:
        """Copies of the model that share a batch: devices over tensor × pipeline × context parallelism."""
        return self.world_size // self.parallelism.devices

    @property
    def rank_rollouts(self) -> int:
        """A data-parallel rank's share of a batch, in rollouts."""
        return self.allocation.batch_rollouts // self.data_parallel

    @property
    def pass_rollouts(self) -> int:
        """Rollouts in one pass of a data-parallel rank."""
        return self.micro_batch or largest_divisor(self.rank_rollouts, MICRO_BATCH)

    @property
    def nodes(self) -> tuple[int, int]:
        """Machines, and devices per machine."""
        per_node = largest_divisor(self.world_size, self.gpus_per_node)
        return self.world_size // per_node, per_node

    @property
    def epochs(self) -> int:
        """Enough passes over the problems to hold M batches: every pass holds at least one."""
        if self.problems is None:
            return self.allocation.update_steps
        return -(-self.allocation.update_steps // (self.problems // self.allocation.problems_per_batch))


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A trainer's settings by dotted keys, the assumptions behind them, and what must be set elsewhere."""

    settings: Mapping[str, Value]
    notes: tuple[str, ...] = ()


def _either(*numbers: int) -> str:
    """Numbers to choose from, without 0."""
    return " or ".join(f"{number:,}" for number in numbers if number)


def product(*factors: int | None) -> int | None:
    """Multiply numbers; None if one is unknown."""
    known = [factor for factor in factors if factor is not None]
    return prod(known) if len(known) == len(factors) else None


def largest_divisor(number: int, most: int) -> int:
    """The largest divisor of ``number`` that is at most ``most``."""
    return next(d for d in range(min(number, most), 0, -1) if number % d == 0)


REFERENCE = re.compile(r"^\$\{([\w.]+)\}$")

SCRIPTS = ("", ".sh", ".bash", ".zsh", ".ksh", ".slurm", ".sbatch", ".pbs", ".lsf", ".job", ".txt")
"""Suffixes of launch scripts."""

LONGEST_FILE = 2**24
"""Most characters of a settings file."""


def load(source: Path) -> dict[str, Value]:
    """Read settings from a file.

    Args:
        source: ``.yaml``, ``.yml``, ``.json``, ``.toml``, or a launch script (``.sh`` and the like, or no suffix), of
            which the words that look like flags are read.

    Returns:
        Dotted keys and their values; references such as ``${data.train_batch_size}`` are resolved.
    """
    suffix = source.suffix.lower()
    if suffix not in (".yaml", ".yml", ".json", ".toml", *SCRIPTS):
        raise BudgetError(
            f"{source}: settings are not read from {suffix} files; give YAML, JSON, TOML, a script or flags"
        )
    try:
        with source.open(encoding="utf-8") as stream:
            text = stream.read(LONGEST_FILE + 1)
    except UnicodeDecodeError:
        raise BudgetError(f"{source}: cannot be read (it is not text)") from None
    except (OSError, ValueError) as error:
        raise BudgetError(f"{source}: cannot be read ({reason(error)})") from None
    if len(text) > LONGEST_FILE:
        raise BudgetError(f"{source}: is longer than {LONGEST_FILE:,} characters, so these are no settings")
    if suffix in SCRIPTS:
        return _parse_script(text, source)
    try:
        document = parsed(text, "json" if suffix == ".json" else "toml" if suffix == ".toml" else "yaml")
    except DocumentError as error:
        raise BudgetError(f"{source}: {error}") from None
    except ImportError:
        raise BudgetError(f'{source}: YAML needs PyYAML: pip install "isocompute-budget[yaml]"') from None
    if not isinstance(document, Mapping):
        raise BudgetError(f"{source}: holds no settings (its top level must be keys with values)")
    return _resolve_references(flat(document, source))


def flags(words: Iterable[str]) -> dict[str, Value]:
    """Read settings from flags.

    ``--key value``, ``--key=value``, ``key=value``, ``+key=value`` and a bare ``--switch`` are understood. Dashes
    within a key become underscores, several numbers form a list, and other words are ignored.
    """
    settings: dict[str, Value] = {}
    open_key: str | None = None
    for word in words:
        key, equals, value = word.lstrip("-+").partition("=")
        key = key.replace("-", "_")
        if not key:
            open_key = None
        elif word.startswith("--") and not equals:
            open_key = key
            settings[key] = True
        elif equals and re.fullmatch(r"[A-Za-z_][\w.]*", key):
            settings[key] = parse_value(value)
            open_key = None
        elif open_key is not None and not word.startswith("--"):
            open_key = open_key if _append_word(settings, open_key, parse_value(word)) else None
    return settings


def render(configuration: Configuration, style: Style) -> list[str]:
    """A trainer's settings as flags, one setting per line."""
    if style == "hydra":
        return [f"{key}={_format_value(value)}" for key, value in configuration.settings.items()]
    settings = {key.replace("_", "-") if style == "hyphens" else key: v for key, v in configuration.settings.items()}
    return [f"--{key} {_format_value(value)}" for key, value in settings.items()]


def _parse_script(text: str, source: Path) -> dict[str, Value]:
    first = text.partition("\n")[0]
    if first.startswith("#!") and "python" in first:
        raise BudgetError(f"{source}: is a Python program; give the script that starts it or, after --, its flags")
    try:
        return flags(shlex.split(text.replace("\\\n", " "), comments=True))
    except ValueError as error:
        kind = source.suffix.removeprefix(".") or "a script"
        raise BudgetError(f"{source}: not {kind} ({reason(error)})") from None


def _resolve_references(settings: dict[str, Value]) -> dict[str, Value]:
    """Resolve references to other keys; one that is broken or circular stays as written."""
    for key, value in settings.items():
        seen = {key}
        while isinstance(value, str) and (match := REFERENCE.match(value)):
            target = match.group(1)
            if target in seen or target not in settings:
                break
            seen.add(target)
            value = settings[target]
        settings[key] = value
    return settings


def _append_word(settings: dict[str, Value], key: str, value: Value) -> bool:
    """Append a further word to a flag; return whether the next word may belong to it as well."""
    before = settings[key]
    if before is True:
        settings[key] = value
    elif not _is_number(value):
        # The word after a launcher's last option value is the program that it starts.
        return False
    elif isinstance(before, list):
        before.append(value)
    elif _is_number(before):
        settings[key] = [before, value]
    return _is_number(value)


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def parse_value(text: str) -> Value:
    """A command line value: a number, a switch, a list, a text, or none."""
    if text.startswith("[") and text.endswith("]"):
        return [_parse_scalar(part.strip()) for part in text[1:-1].split(",") if part.strip()]
    return _parse_scalar(text)


def plain(config: Mapping[str, Any], where: str = "the settings") -> dict[str, Any]:
    """Dotted keys, with values parsed if MLflow stores them as text."""
    nested = flat(config, where)
    return {k.replace("/", "."): parse_value(v) if isinstance(v, str) else v for k, v in nested.items()}


def configuration(source: Path | None) -> dict[str, Any]:
    """A run's configuration in the form of its log, if there is a file."""
    return {} if source is None else plain(load(source))


def _parse_scalar(text: str) -> Value:
    low = text.lower()
    if low in {"true", "false"}:
        return low == "true"
    if low in {"null", "none", ""}:
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _format_value(value: Value) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(_format_value(part) for part in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


class MissingSettingError(BudgetError):
    """A log cannot be read without a setting that nothing gives."""

    def __init__(self, message: str, *, name: str, choices: str = "") -> None:
        super().__init__(message)
        self.name, self.choices = name, choices


@dataclass(slots=True, kw_only=True)
class Settings:
    """A trainer's settings while they are read, with remarks collected on the way.

    Attributes:
        world_size: Devices that train, according to the caller; ``devices``, according to the settings.
        given: Names that the user gives, overriding logs and files.
        has_defaults: Whether omitted settings have the trainer's defaults: not if there is no configuration.
        read: Names that were looked up.
    """

    values: Mapping[str, Value]
    where: str
    world_size: int | None = None
    problems: int | None = None
    devices: int | None = None
    data_parallel: int | None = None
    given: frozenset[str] = frozenset()
    has_defaults: bool = True
    unknown: list[str] = field(default_factory=list)
    inconsistent: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    read: set[str] = field(default_factory=set)

    def find(self, *names: str) -> tuple[str, Value]:
        """The first name of a setting that is set, and its value (None if none is)."""
        self.read.update(names)
        for name in names:
            if self.values.get(name) is not None:
                return name, self.values[name]
        return names[0], None

    def matching(self, pattern: str) -> dict[str, Value]:
        """The settings whose full names match a regular expression."""
        matched: dict[str, Value] = {k: v for k, v in self.values.items() if v is not None and re.fullmatch(pattern, k)}
        self.read.update(matched)
        return matched

    def whole(self, *names: str, default: int | None = None) -> int | None:
        """A whole number of at least 1, under the first name that is set, else the default, which is noted."""
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
        """A whole number of at least 1 that is needed to read a log."""
        value = self.whole(*names, default=default)
        if value is None:
            raise self.missing(names[0])
        return value

    def required_switch(self, *names: str) -> bool:
        """Return whether a switch is on that is needed to read a log."""
        if self.find(*names)[1] is None and not self.has_defaults:
            raise self.missing(names[0], choices="true or false")
        return self.is_on(*names)

    def missing(
        self, name: str, *, choices: str = "", because: str = "it is not in its logs or configuration"
    ) -> MissingSettingError:
        """The error for a missing setting that is needed to read a log."""
        said = f"{self.where}: {name} is not known: {because}; give it with --set {name}=VALUE"
        return MissingSettingError(said, name=name, choices=choices)

    def check_whole(self, value: Value, name: str) -> int:
        """A value as a whole number of at least 1."""
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        return whole(value, f"{self.where}: {name}", least=1)

    def is_on(self, *names: str, default: bool = False) -> bool:
        """Return whether a switch is on."""
        name, value = self.find(*names)
        if value is None or (isinstance(value, str) and ("$" in value or value == "None")):
            return default
        if value not in (True, False, 0, 1):
            raise BudgetError(f"{self.where}: {name} is {shorten(value)}; it must be true or false")
        return bool(value)

    def text(self, *names: str, default: str = "") -> str:
        """A text, or the default if it is not set."""
        value = self.find(*names)[1]
        return default if value is None else str(value)

    def note_missing(self, what: str, names: str) -> None:
        """Note that the settings do not say something."""
        self.unknown.append(f"{what}: {names} is not set")

    def ranks(
        self, world: int | None, tensor: Sequence[str] = (), pipeline: Sequence[str] = (), context: Sequence[str] = ()
    ) -> int | None:
        """Store the devices and return the data-parallel ranks: devices over tensor × pipeline × context parallelism.

        Args:
            tensor: Names of the setting for tensor parallelism; likewise the others.

        Returns:
            None if unknown or if the devices cannot be split evenly, which is noted.
        """
        self.devices, self.data_parallel = world, None
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
        if world and world % copy:
            self.inconsistent.append(
                f"{world} devices cannot be split into copies of the model on {copy} each ({', '.join(said)})"
            )
        else:
            self.data_parallel = world and world // copy
        return self.data_parallel

    def megatron_ranks(self, world: int | None, prefix: str) -> int | None:
        """``ranks`` for Megatron's settings with a prefix."""
        return self.ranks(world, *((f"{prefix}{name}",) for name in MEGATRON))

    def check_divides(self, batch: int | None, ranks: int | None, key: str) -> None:
        """Note a batch that cannot be split evenly over the data-parallel ranks; these may be all devices."""
        if batch and ranks and batch % ranks:
            what = "devices" if ranks == self.devices else "data-parallel ranks"
            self.inconsistent.append(f"{key}: {batch:,} rollouts cannot be split evenly over {ranks} {what}")

    def check_micro_batch(self, key: str, rollouts: int | None, of: str = "of a data-parallel rank") -> None:
        """Note a micro-batch, in rollouts, that does not divide a data-parallel rank's share of a batch."""
        micro, share = self.whole(key), exact_quotient(rollouts, self.data_parallel)
        if micro and share and share % micro:
            name = key.rpartition(".")[2]
            fits = f"{largest_divisor(share, micro):,} would"
            self.inconsistent.append(f"{name} counts responses: {micro} does not divide the {share:,} {of}; {fits}")

    def note_epochs(self, key: str) -> None:
        """Note that the number of steps follows from epochs over an unknown number of problems."""
        self.unknown.append(f"update steps: they follow from {key} and the number of problems; give --problems D")

    def note_more(self, what: str, where: str = "") -> None:
        """Note what generates in addition to the plan."""
        self.notes.append(f"{what} generates more than B_p · n · M rollouts; how many is known only afterwards{where}")

    def fraction(self, name: str, *, default: int) -> float | None:
        """A number above 0, not necessarily whole; the default works as in ``whole``."""
        value = self.find(name)[1]
        if isinstance(value, float) and not value.is_integer():
            return finite(value, f"{self.where}: {name}")
        return self.whole(name, default=default)

    def steps(self, limit: int | None, epochs: float | None, problems_per_batch: int | None, key: str) -> int | None:
        """Batches of a run that stops after a number of steps or of epochs, whichever comes first."""
        batches = self.problems // problems_per_batch if self.problems and problems_per_batch else None
        if epochs is None or batches is None:
            if limit is None:
                self.note_epochs(key)
            elif epochs is not None and epochs < limit:
                least = f"only with at least {ceil(limit / epochs):,} batches of problems per epoch"
                self.notes.append(
                    f"{limit:,} steps are reached {least}, because {key} is {epochs:,}; give --problems D"
                )
            return limit
        by_epochs = ceil(epochs * batches)
        if limit is not None and by_epochs < limit:
            self.inconsistent.append(
                f"{key} of {epochs:,} ends the run after {by_epochs:,} steps, before the {limit:,} asked for; "
                f"{-(-limit // batches):,} would do"
                if batches
                else f"{key}: there is no whole batch in an epoch"
            )
        return by_epochs if limit is None else min(limit, by_epochs)

    def batching(
        self,
        *,
        problems_generated: int | None,
        rollouts_per_problem: int | None,
        generations: int | None,
        updates: Fraction | int | None = 1,
        passes: int = 1,
        problems_per_batch: Fraction | int | None = None,
        update_steps: int | None = None,
        baseline_rollouts: int = 0,
    ) -> Batching:
        """The result, with the remarks collected so far.

        Args:
            updates: Optimizer steps per generation batch; below 1 if a step takes several.
            passes: How often each response is trained on.
            problems_per_batch: Problems per optimizer step, if not all that are generated are trained on.
            update_steps: Optimizer steps in all, if they are not generations · updates.
        """
        if updates is not None and updates > 1:
            self.notes.append(
                f"each batch gets {float(updates):,g} optimizer steps, of which only the first is on-policy"
            )
        if None not in (self.world_size, self.devices) and self.world_size != self.devices:
            self.inconsistent.append(f"the settings are for {self.devices} devices, not for {self.world_size}")
        per_step = problems_generated * passes / Fraction(updates) if problems_generated and updates else None
        per_step = per_step if problems_per_batch is None else Fraction(problems_per_batch)
        if per_step is not None and per_step.denominator > 1:
            rounded = f"B_p is rounded to {max(1, round(per_step)):,}"
            self.notes.append(f"an optimizer step takes the responses of {float(per_step):g} problems: {rounded}")
        if update_steps is None and generations and updates:
            update_steps = int(generations * updates)
        return Batching(
            problems_per_batch=None if per_step is None else max(1, round(per_step)),
            rollouts_per_problem=rollouts_per_problem,
            update_steps=update_steps or None,
            problems_generated=problems_generated,
            generations=generations,
            updates=None if updates is None else Fraction(updates),
            baseline_rollouts=baseline_rollouts,
            world_size=self.devices,
            data_parallel=self.data_parallel,
            unknown=tuple(self.unknown),
            inconsistent=tuple(self.inconsistent),
            notes=tuple(self.notes),
        )


def meant_by(name: str, known: Iterable[str]) -> str | None:
    """The known setting that a name may misspell, or that it abbreviates by omitting the section."""
    alike = [each for each in known if each.endswith(f".{name}") or all(map(_alike, _parts(each), _parts(name)))]
    return max(sorted(alike), key=lambda each: SequenceMatcher(None, each, name).ratio(), default=None)


def _parts(name: str) -> tuple[str, str]:
    section, _, own = name.rpartition(".")
    return section, own


@cache
def _alike(one: str, other: str) -> bool:
    """Return whether two words differ by few of their characters, about two at most, or are one letter each."""
    if len(one) == len(other) == 1:
        return True
    return SequenceMatcher(None, one, other).ratio() >= max(0.8, 1 - 2.1 / max(len(one), 1))


def exact_quotient(batch: int | None, part: int | None) -> int | None:
    """``batch`` / ``part`` if it is a whole number and both are known, or None."""
    return batch // part if batch and part and batch % part == 0 else None

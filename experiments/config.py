"""``params.yaml`` as frozen dataclasses: an unknown key is an error, and so is a value that cannot be."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from isocompute.learner import LearnerConfig
from isocompute.rollout import DifficultySplit, Sampling, source_from
from isocompute.rollout.sources import Source

from .errors import ExperimentError
from .tiny_config import TinyModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A base model that is there already.

    Attributes:
        model: A folder, or a name on the hub.
        revision: Commit of a model on the hub.
    """

    model: str
    revision: str = ""

    @property
    def name(self) -> str:
        """``model`` or ``model@revision``; a folder's whole path."""
        if Path(self.model).is_dir():
            return str(Path(self.model).resolve())
        return f"{self.model}@{self.revision}" if self.revision else self.model


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotConfig:
    """The search for the learning-rate anchor, at the largest batch (IsoCompute Playbook, appendix A)."""

    learning_rates: tuple[float, ...]
    rollouts: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepConfig:
    """The cells of one problem set: every n × B_p × seed, each with a budget of ``rollouts``."""

    rollouts_per_problem: tuple[int, ...]
    problems_per_batch: tuple[int, ...]
    seeds: tuple[int, ...]
    rollouts: int
    evaluate_every: int
    learner: Mapping[str, Any]
    pilot: PilotConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierConfig:
    """How the frontier is fitted."""

    form: str = "auto"
    bootstrap: int = 1000
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PrescribeConfig:
    """The larger budget at which the prescription is tested; no seeds: it is written and not tested."""

    rollouts: int
    baselines: tuple[int, ...]
    seeds: tuple[int, ...]
    evaluate_every: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcesConfig:
    """What the machine gives. None of it changes what a cell finds, beyond the rounding of several ranks' sums.

    Attributes:
        workers: Cells trained at a time.
        sampler: ``vllm``, ``transformers``, or ``auto``: vLLM where it is installed.
        device: ``cpu`` or ``cuda``.
        placement: ``colocated``: the engine is in the worker's process; ``separate``: vLLM is a Ray actor of
            its own, on a processor of its own.
        learner_ranks: Learner ranks of a cell. One is in the worker's process; several are Ray actors, each on
            a processor of its own.
        reverse: Whether the last cells are started first.
    """

    workers: int = 2
    sampler: str = "auto"
    device: str = "cpu"
    placement: str = "colocated"
    learner_ranks: int = 1
    reverse: bool = False

    def __post_init__(self) -> None:
        for name in ("workers", "learner_ranks"):
            if getattr(self, name) < 1:
                raise ExperimentError(f"{name} is {getattr(self, name)}; it has to be at least 1")
        choices = {
            "sampler": ("auto", "vllm", "transformers"),
            "device": ("cpu", "cuda"),
            "placement": ("colocated", "separate"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ExperimentError(f"{name} is {getattr(self, name)!r}; it has to be one of {', '.join(allowed)}")
        if self.placement == "separate" and self.sampler == "transformers":
            raise ExperimentError("placement is 'separate', which needs vLLM, and sampler is 'transformers'")

    def resolved_sampler(self) -> str:
        """The sampler; ``auto`` is vLLM where it is installed, else transformers."""
        if self.sampler != "auto":
            return self.sampler
        return "vllm" if find_spec("vllm") else "transformers"

    def processors(self) -> int:
        """Processors that all workers hold, with their engines and learner ranks."""
        ranks = self.learner_ranks if self.learner_ranks > 1 else 0
        return self.workers * (1 + ranks + (self.placement == "separate"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DifficultyConfig:
    """How difficulty is measured, and the problem sets cut by it."""

    samples: int
    seed: int
    sets: Mapping[str, DifficultySplit]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One preset of ``params.yaml``."""

    name: str
    problems: tuple[Source, ...]
    base: TinyModelConfig | ModelConfig
    sampling: Sampling
    difficulty: DifficultyConfig
    sweep: Mapping[str, SweepConfig]
    frontier: FrontierConfig
    prescribe: Mapping[str, PrescribeConfig]
    resources: ResourcesConfig = field(default_factory=ResourcesConfig)

    def sweep_of(self, problem_set: str) -> SweepConfig:
        """The sweep of a problem set.

        Raises:
            ExperimentError: There is none.
        """
        if problem_set not in self.sweep:
            known = ", ".join(self.sweep)
            raise ExperimentError(f"preset {self.name} has no sweep of {problem_set!r}; it has {known}")
        return self.sweep[problem_set]


def load(path: Path = Path("params.yaml"), preset: str | None = None) -> Preset:
    """Read one preset, by default the one that ``preset:`` names.

    Raises:
        ExperimentError: The file is missing or no YAML, a key is unknown or missing, or a value is refused.
    """
    try:
        raw = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ExperimentError(f"{path}: cannot be read ({error.strerror})") from None
    except yaml.YAMLError as error:
        raise ExperimentError(f"{path}: not YAML ({str(error).splitlines()[0]})") from None
    name = preset or raw.get("preset")
    if name == "preset" or not isinstance(raw.get(name), dict):
        known = ", ".join(k for k in raw if k != "preset")
        raise ExperimentError(f"{path}: there is no preset {name!r}; there are {known}")
    try:
        return _preset(name, raw[name])
    except ExperimentError as error:
        raise ExperimentError(f"{path}: {error}") from None


def _preset(name: str, raw: Mapping[str, Any]) -> Preset:
    known = {f.name for f in dataclasses.fields(Preset)} - {"name"}
    _keys(name, raw, known, known)
    where = f"{name}.difficulty"
    _keys(where, raw["difficulty"], {"samples", "seed", "sets"}, {"samples", "seed", "sets"})
    sets = {
        key: build(DifficultySplit, {"name": key, **value}, f"{where}.sets.{key}")
        for key, value in raw["difficulty"]["sets"].items()
    }
    sweeps = {k: _sweep(v, f"{name}.sweep.{k}") for k, v in raw["sweep"].items()}
    prescribes = {k: build(PrescribeConfig, v, f"{name}.prescribe.{k}") for k, v in raw["prescribe"].items()}
    for part in (sweeps, prescribes):
        for key in part:
            if key not in sets:
                raise ExperimentError(f"{name}: {key} is no problem set of {where}.sets ({', '.join(sets)})")
    preset = Preset(
        name=name,
        problems=tuple(_guarded(source_from, p, f"{name}.problems") for p in raw["problems"]),
        base=_base(raw["base"], f"{name}.base"),
        sampling=build(Sampling, raw["sampling"], f"{name}.sampling"),
        difficulty=DifficultyConfig(samples=raw["difficulty"]["samples"], seed=raw["difficulty"]["seed"], sets=sets),
        sweep=sweeps,
        frontier=build(FrontierConfig, raw["frontier"], f"{name}.frontier"),
        prescribe=prescribes,
        resources=build(ResourcesConfig, raw["resources"], f"{name}.resources"),
    )
    _consistent(preset)
    return preset


def _sweep(raw: Mapping[str, Any], where: str) -> SweepConfig:
    settings = dict(raw)
    settings["pilot"] = build(PilotConfig, raw.get("pilot", {}), f"{where}.pilot")
    sweep: SweepConfig = build(SweepConfig, settings, where)
    build(LearnerConfig, {"learning_rate": 1.0, **sweep.learner}, f"{where}.learner")
    if "learning_rate" in sweep.learner:
        raise ExperimentError(f"{where}.learner.learning_rate: the pilot finds it; see pilot.learning_rates")
    return sweep


def _consistent(preset: Preset) -> None:
    """Refuse what could only fail later."""
    for name, sweep in preset.sweep.items():
        where = f"{preset.name}.sweep.{name}"
        for setting in ("rollouts_per_problem", "problems_per_batch", "seeds"):
            if not getattr(sweep, setting):
                raise ExperimentError(f"{where}.{setting} is empty")
        if not sweep.pilot.learning_rates:
            raise ExperimentError(f"{where}.pilot.learning_rates is empty")
        if sweep.evaluate_every < 1:
            raise ExperimentError(f"{where}.evaluate_every is {sweep.evaluate_every}; it has to be at least 1")
        for n in sweep.rollouts_per_problem:
            if n < 2:
                raise ExperimentError(f"{where}: rollouts_per_problem {n}: a group baseline needs 2 or more")
            for size in sweep.problems_per_batch:
                batch = n * size
                if batch > min(sweep.rollouts, sweep.pilot.rollouts):
                    raise ExperimentError(
                        f"{where}: one step of n = {n}, B_p = {size} is {batch} rollouts, and the budget is "
                        f"{min(sweep.rollouts, sweep.pilot.rollouts)}: no step could be taken"
                    )
                if sweep.evaluate_every % batch or sweep.rollouts % sweep.evaluate_every:
                    raise ExperimentError(
                        f"{where}: evaluate_every ({sweep.evaluate_every}) has to be a multiple of every batch "
                        f"({batch}) and to divide rollouts ({sweep.rollouts})"
                    )
                if size < 1 or size > preset.difficulty.sets[name].train:
                    raise ExperimentError(
                        f"{where}: problems_per_batch {size} has to lie between 1 and the training problems"
                    )

        _prescribable(preset, name)


def _prescribable(preset: Preset, name: str) -> None:
    """Refuse a test of the prescription that would stop at its end."""
    if name not in preset.prescribe:
        raise ExperimentError(f"{preset.name}.prescribe has no {name}, which {preset.name}.sweep has")
    sweep, test, where = preset.sweep[name], preset.prescribe[name], f"{preset.name}.prescribe.{name}"
    for n in {*test.baselines, *sweep.rollouts_per_problem}:
        for size in sweep.problems_per_batch:
            if test.evaluate_every < 1 or test.evaluate_every % (n * size) or test.rollouts % test.evaluate_every:
                raise ExperimentError(
                    f"{where}: evaluate_every ({test.evaluate_every}) has to be a multiple of every batch "
                    f"({n * size}) and to divide rollouts ({test.rollouts})"
                )
    if test.rollouts <= sweep.rollouts:
        raise ExperimentError(
            f"{where}: rollouts is {test.rollouts}; a prescription is tested above the sweep's {sweep.rollouts}"
        )
    if test.seeds and len(test.seeds) < 2:
        raise ExperimentError(f"{where}: one seed gives no interval: give two or more, or none to leave the test out")


def _base(raw: Mapping[str, Any], where: str) -> TinyModelConfig | ModelConfig:
    rest = dict(raw)
    kind = rest.pop("kind", None)
    kinds: dict[Any, type[Any]] = {"tiny": TinyModelConfig, "model": ModelConfig}
    if kind not in kinds:
        raise ExperimentError(f"{where}.kind is {kind!r}; it has to be tiny or model")
    built: TinyModelConfig | ModelConfig = build(kinds[kind], rest, where)
    return built


def build(kind: type[Any], raw: Mapping[str, Any], where: str) -> Any:
    """Make a dataclass from plain settings; lists become tuples.

    Raises:
        ExperimentError: A key is unknown or missing, a value has the wrong type or is refused.
    """
    fields = {f.name: f for f in dataclasses.fields(kind)}
    needed = {
        name
        for name, f in fields.items()
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }
    _keys(where, raw, set(fields), needed)
    hints = typing.get_type_hints(kind)
    values = {name: _typed(value, hints[name], f"{where}.{name}") for name, value in raw.items()}
    return _guarded(lambda kw: kind(**kw), values, where)


def _typed(value: Any, hint: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ExperimentError(f"{where} is {value!r}; it has to be a list")
        return tuple(_typed(v, typing.get_args(hint)[0], where) for v in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint in (int, float, str, bool) and (not isinstance(value, hint) or (hint is int and isinstance(value, bool))):
        raise ExperimentError(f"{where} is {value!r}; it has to be of type {hint.__name__}")
    if origin in (types.UnionType, typing.Union):
        return value
    return value


def _guarded(make: Any, raw: Any, where: str) -> Any:
    try:
        return make(raw)
    except ExperimentError:
        raise
    except ValueError as error:
        raise ExperimentError(f"{where}: {error}") from None


def _keys(where: str, raw: Any, known: set[str], needed: set[str]) -> None:
    if not isinstance(raw, Mapping):
        raise ExperimentError(f"{where} is {raw!r}; it has to be a mapping")
    unknown = sorted(set(raw) - known)
    if unknown:
        raise ExperimentError(f"{where} has no setting {unknown[0]!r}; it has {', '.join(sorted(known))}")
    missing = sorted(needed - set(raw))
    if missing:
        raise ExperimentError(f"{where} lacks {', '.join(missing)}")

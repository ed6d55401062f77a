"""From YAML to the settings of a preset: an unknown key is an error, and so is a value of the wrong type."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from isocompute.learner import LearnerConfig
from isocompute.rollout import DifficultySplit, Sampling, source_from

from ..errors import ExperimentError
from ..tiny_config import TinyModelConfig
from .consistency import check
from .model import (
    DifficultyConfig,
    EvaluationConfig,
    FrontierConfig,
    ModelConfig,
    PilotConfig,
    PrescribeConfig,
    Preset,
    ResourcesConfig,
    SweepConfig,
)

NOT_PRESETS = ("preset", "problem_sets")
FOUND_ELSEWHERE = {
    "learning_rate": "the pilot finds it; see pilot.learning_rates",
    "temperature": "it is the sampler's; see sampling.temperature",
}
"""Settings of the learner that a sweep does not give, and where they come from."""


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
    if not isinstance(raw, dict):
        raise ExperimentError(f"{path}: must be a mapping of presets")
    name = str(preset or raw.get("preset"))
    if name in NOT_PRESETS or not isinstance(raw.get(name), dict):
        known = ", ".join(k for k in raw if k not in NOT_PRESETS)
        raise ExperimentError(f"{path}: there is no preset {name!r}; there are {known}")
    try:
        read = _preset(name, raw[name])
        if preset is None and list(read.sweep) != raw.get("problem_sets"):
            raise ExperimentError(
                f"problem_sets is {raw.get('problem_sets')}, and {name}.sweep has {list(read.sweep)}: "
                "dvc.yaml runs what problem_sets lists, so both must list the same in the same order"
            )
    except ExperimentError as error:
        raise ExperimentError(f"{path}: {error}") from None
    return read


def _preset(name: str, raw: Mapping[str, Any]) -> Preset:
    known = {f.name for f in dataclasses.fields(Preset)} - {"name"}
    _keys(name, raw, known, known)
    where = f"{name}.difficulty"
    difficulty = dict(raw["difficulty"]) if isinstance(raw["difficulty"], Mapping) else raw["difficulty"]
    _keys(where, difficulty, {f.name for f in dataclasses.fields(DifficultyConfig)}, {"sets"})
    difficulty["sets"] = {
        key: build(DifficultySplit, {"name": key, **value}, f"{where}.sets.{key}")
        for key, value in difficulty["sets"].items()
    }
    preset = Preset(
        name=name,
        problems=tuple(_guarded(source_from, p, f"{name}.problems") for p in raw["problems"]),
        base=_base(raw["base"], f"{name}.base"),
        sampling=build(Sampling, raw["sampling"], f"{name}.sampling"),
        evaluation=build(EvaluationConfig, raw["evaluation"], f"{name}.evaluation"),
        difficulty=build(DifficultyConfig, difficulty, where),
        sweep={k: _sweep(v, f"{name}.sweep.{k}") for k, v in raw["sweep"].items()},
        frontier=build(FrontierConfig, raw["frontier"], f"{name}.frontier"),
        prescribe={k: build(PrescribeConfig, v, f"{name}.prescribe.{k}") for k, v in raw["prescribe"].items()},
        resources=build(ResourcesConfig, raw["resources"], f"{name}.resources"),
    )
    check(preset)
    return preset


def _sweep(raw: Mapping[str, Any], where: str) -> SweepConfig:
    settings = dict(raw)
    settings["pilot"] = build(PilotConfig, raw.get("pilot", {}), f"{where}.pilot")
    sweep: SweepConfig = build(SweepConfig, settings, where)
    for name, advice in FOUND_ELSEWHERE.items():
        if name in sweep.learner:
            raise ExperimentError(f"{where}.learner.{name}: {advice}")
    horizon = {} if sweep.learner.get("decay", "constant") == "constant" else {"decay_steps": 1}
    build(LearnerConfig, {"learning_rate": 1.0, **horizon, **sweep.learner}, f"{where}.learner")
    return sweep


def _base(raw: Mapping[str, Any], where: str) -> TinyModelConfig | ModelConfig:
    rest = dict(raw)
    kind = rest.pop("kind", None)
    kinds: dict[Any, type[Any]] = {"tiny": TinyModelConfig, "model": ModelConfig}
    if kind not in kinds:
        raise ExperimentError(f"{where}.kind is {kind!r}; it must be tiny or model")
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
            raise ExperimentError(f"{where} is {value!r}; it must be a list")
        return tuple(_typed(v, typing.get_args(hint)[0], where) for v in value)
    if origin in (types.UnionType, typing.Union):
        inner = [h for h in typing.get_args(hint) if h is not types.NoneType]
        return value if value is None or len(inner) > 1 else _typed(value, inner[0], where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint in (int, float, str, bool) and (not isinstance(value, hint) or (hint is int and isinstance(value, bool))):
        raise ExperimentError(f"{where} is {value!r}; it must be of type {hint.__name__}")
    return value


def _guarded(make: Any, raw: Any, where: str) -> Any:
    try:
        return make(raw)
    except ExperimentError as error:
        raise error if str(error).startswith(where) else ExperimentError(f"{where}: {error}") from None
    except ValueError as error:
        raise ExperimentError(f"{where}: {error}") from None


def _keys(where: str, raw: Any, known: set[str], needed: set[str]) -> None:
    if not isinstance(raw, Mapping):
        raise ExperimentError(f"{where} is {raw!r}; it must be a mapping")
    unknown = sorted(set(raw) - known)
    if unknown:
        raise ExperimentError(f"{where} has no setting {unknown[0]!r}; it has {', '.join(sorted(known))}")
    missing = sorted(needed - set(raw))
    if missing:
        raise ExperimentError(f"{where} lacks {', '.join(missing)}")

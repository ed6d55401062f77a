"""From ``params.yaml`` to the settings of a preset."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from ..errors import ExperimentError
from .messages import sentence
from .model import Preset
from .strict import SettingError, checked_name, with_names

NOT_PRESETS = ("preset", "problem_sets")


def load(path: Path = Path("params.yaml"), preset: str | None = None) -> Preset:
    """Read one preset.

    Args:
        path: The file of settings.
        preset: Name of the preset; by default the one that ``preset:`` names.

    Raises:
        ExperimentError: The file is missing or is not YAML, a key is unknown or missing, or a value is refused.
    """
    raw = _document(path)
    name = str(preset or raw.get("preset"))
    if name in NOT_PRESETS or not isinstance(raw.get(name), dict):
        known = ", ".join(str(key) for key in raw if key not in NOT_PRESETS)
        raise ExperimentError(f"{path}: there is no preset {name!r}; there are {known}")
    try:
        for each in (name, *(str(each) for each in raw.get("problem_sets") or ())):
            checked_name(each)
        read = _preset(name, raw[name])
    except ValidationError as error:
        raise ExperimentError(f"{path}: {sentence(error, name)}") from None
    except SettingError as error:
        raise ExperimentError(f"{path}: {error.where} {error}" if error.where else f"{path} {error}") from None
    except (TypeError, ValueError) as error:
        raise ExperimentError(f"{path}: {name} contains a value of an unsupported type ({error})") from None
    if preset is None and list(read.sweep) != raw.get("problem_sets"):
        raise ExperimentError(
            f"{path}: problem_sets is {raw.get('problem_sets')}, and {name}.sweep has {list(read.sweep)}: "
            "dvc.yaml runs what problem_sets lists, so both must list the same in the same order"
        )
    return read


def _document(path: Path) -> dict[str, Any]:
    try:
        raw = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ExperimentError(f"{path}: cannot be read ({error.strerror})") from None
    except yaml.YAMLError as error:
        raise ExperimentError(f"{path}: not YAML ({str(error).splitlines()[0]})") from None
    if not isinstance(raw, dict):
        raise ExperimentError(f"{path}: must be a mapping of presets")
    return raw


def _preset(name: str, raw: Mapping[str, Any]) -> Preset:
    # As JSON, whose lists and mappings are the tuples and dataclasses of a strict model; YAML's dates become texts.
    return Preset.model_validate_json(json.dumps(with_names({name: raw})[name], default=str))

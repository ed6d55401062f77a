"""From ``params.yaml`` to the settings of a preset."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from ..errors import ExperimentError
from .messages import sentence
from .model import Preset
from .strict import SettingError, checked_name, with_names

NOT_PRESETS = ("preset", "settings_file", "problem_sets", "tested_sets")
LISTS = {"problem_sets": "sweep", "tested_sets": "prescribe"}
"""The lists that dvc.yaml has stages for, and the sections of a preset whose names they hold."""
SETTINGS_FILE = r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.ya?ml"


def load(path: Path = Path("params.yaml"), preset: str | None = None) -> Preset:
    """Read one preset."""
    name, file, raw, written = find(path, preset)
    try:
        for each in (name, *(str(each) for key in LISTS for each in raw.get(key) or ())):
            checked_name(each)
        # As JSON, whose lists and mappings are the tuples and dataclasses of a strict model; YAML's dates become texts.
        text = json.dumps(with_names({name: written})[name], default=str)
        read = Preset.model_validate_json(text)
    except ValidationError as error:
        raise ExperimentError(f"{file}: {sentence(error, name)}") from None
    except SettingError as error:
        raise ExperimentError(f"{file}: {error.where} {error}" if error.where else f"{file} {error}") from None
    except (TypeError, ValueError) as error:
        raise ExperimentError(f"{file}: {name} contains a value of an unsupported type ({error})") from None
    for key, section in LISTS.items():
        there = list(getattr(read, section))
        if preset is None and there != raw.get(key):
            raise ExperimentError(
                f"{path}: {key} is {raw.get(key)}, and {name}.{section} has {there}: "
                f"dvc.yaml runs what {key} lists, so both must list the same in the same order"
            )
    return read


def find(path: Path = Path("params.yaml"), preset: str | None = None) -> tuple[str, Path, dict[str, Any], Any]:
    """Find a preset as it is written: in the file that ``settings_file`` names, or beside that setting.

    Returns:
        Its name, its file, what ``path`` holds, and the preset.
    """
    raw = _document(path)
    name, listed = str(preset or raw.get("preset")), str(raw.get("settings_file", path.name))
    if not re.fullmatch(SETTINGS_FILE, listed):
        raise ExperimentError(f"{path}: settings_file is {listed!r}; it must be the name of a .yaml file beside it")
    file = path.with_name(listed)
    if preset is not None and isinstance(raw.get(name), dict):
        # What is asked for by name, and not by DVC, may be in either.
        file = path
    held = raw if file == path else _document(file)
    if name in NOT_PRESETS or not isinstance(held.get(name), dict):
        known = ", ".join(str(key) for key in held if key not in NOT_PRESETS)
        raise ExperimentError(f"{file}: there is no preset {name!r}; there are {known}")
    return name, file, raw, held[name]


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

"""Reads presets of ``params.yaml``, and says in one sentence what is wrong with one: where, and what would be right.

From the same models come the JSON schema for editors, and a preset written whole, with comments, for ``init --all``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

import yaml
from isocompute.learner import LearnerConfig
from isocompute.learner.config import RECIPES
from isocompute.rollout.contract.documents import DocumentError, parsed
from isocompute.rollout.contract.files import reason_of
from isocompute.rollout.contract.settings import refusal
from pydantic import BaseModel, TypeAdapter, ValidationError

from ..errors import ExperimentError
from .preset import AUTO, ELSEWHERE, Preset
from .sections import NAME, checked_name

NOT_PRESETS = ("preset", "settings_file", "problem_sets", "tested_sets")
LISTS = {"problem_sets": "sweep", "tested_sets": "prescribe"}
"""The lists that dvc.yaml has stages for, and the sections of a preset whose names they hold."""
Written = dict[str, Any]
SETTINGS_FILE = r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.ya?ml"


def load(path: Path = Path("params.yaml"), preset: str | None = None) -> Preset:
    """Read one preset."""
    name, file, raw, written = find(path, preset)
    for key in LISTS:
        _check_list(raw.get(key), f"{path}: {key}")
    if "name" in written:
        raise ExperimentError(f"{file}: {name} has no setting 'name': its name is its key")
    try:
        read = _made(name, written)
    except ValidationError as error:
        keys, sentence = refusal(error, Preset, name)
        raise ExperimentError(f"{file}, line {_line(file, keys)}: {sentence}") from None
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


def _made(name: str, written: Written) -> Preset:
    # As JSON, whose lists are tuples and whose mappings are dataclasses of strict settings; dates become texts.
    return Preset.model_validate_json(json.dumps({**written, "name": name}, default=str))


def _check_list(listed: Any, where: str) -> None:
    """Refuse a list of problem sets with a name that DVC or its shell could read otherwise."""
    if not isinstance(listed, list | None):
        raise ExperimentError(f"{where} is {listed!r}; it must be a list of problem sets")
    for each in listed or ():
        try:
            checked_name(str(each))
        except ExperimentError as error:
            raise ExperimentError(f"{where}: {error}") from None


def find(path: Path = Path("params.yaml"), preset: str | None = None) -> tuple[str, Path, Written, Written]:
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
        # ``init`` writes a preset into a file of its name.
        own = [each.stem for each in sorted(path.absolute().parent.glob("*.yaml")) if each.stem in _keys(each)]
        known = ", ".join(dict.fromkeys(str(key) for key in (*held, *own) if key not in NOT_PRESETS))
        raise ExperimentError(f"{file}: there is no preset {name!r}; there are {known}")
    return name, file, raw, held[name]


def _keys(path: Path) -> Collection[str]:
    """The keys of a document; none of a file that is none."""
    try:
        return _document(path)
    except ExperimentError:
        return ()


def _document(path: Path) -> dict[str, Any]:
    try:
        raw = parsed(path.read_text("utf-8"))
    except (OSError, UnicodeError) as error:
        raise ExperimentError(f"{path}: cannot be read ({reason_of(error)})") from None
    except DocumentError as error:
        raise ExperimentError(f"{path}: {error}") from None
    if not isinstance(raw, dict):
        raise ExperimentError(f"{path}: must be a mapping of presets")
    return raw


def _line(file: Path, keys: Sequence[str | int]) -> int:
    """The line of a setting, or of the last one on the way to it that is there."""
    node = yaml.compose(file.read_text("utf-8"), Loader=yaml.SafeLoader)
    line = 1
    for key in keys:
        if isinstance(node, yaml.SequenceNode) and isinstance(key, int):
            node = node.value[key]
            line = node.start_mark.line + 1
            continue
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        found = next(((at, value) for at, value in pairs if at.value == str(key)), None)
        if found is None:
            break
        line, node = found[0].start_mark.line + 1, found[1]
    return line


def leaves(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a preset or a cell by its dotted name; the sources of problems share one name.

    Args:
        before: Dotted path of these settings with its last dot; empty for a whole preset.
    """
    for key, value in values.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping):
            yield from leaves(value, f"{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            for each in value:
                yield from leaves(each, f"{name}.")
        else:
            yield name, value


def document_schema() -> dict[str, Any]:
    """The JSON schema of ``params.yaml``, for editors."""
    preset = Preset.model_json_schema()
    learner = TypeAdapter(LearnerConfig).json_schema(ref_template="#/$defs/{model}")
    parts = {**preset.pop("$defs"), **learner.pop("$defs"), "LearnerConfig": learner, "Preset": preset}
    for part, hidden in ((preset, {"name"}), (parts["DifficultySplit"], {"name"}), (learner, {*ELSEWHERE})):
        part["properties"] = {name: own for name, own in part["properties"].items() if name not in hidden}
        part["required"] = [name for name in part.get("required", ()) if name not in hidden]
    for part in parts.values():
        if "kind" in part["properties"]:
            # It says which of several parts this is.
            part["required"] = sorted({"kind", *part.get("required", ())})
    recipe = {"enum": sorted(RECIPES), "description": "A recipe, whose settings apply where none is given here."}
    own = learner["properties"]["sync"]
    sync = {"description": own.pop("description"), "anyOf": [{"const": AUTO}, own]}
    learner["properties"] = {"recipe": recipe, **learner["properties"], "sync": sync}
    written = parts["SweepConfig"]["properties"]["learner"]
    parts["SweepConfig"]["properties"]["learner"] = {
        "description": written["description"],
        "$ref": "#/$defs/LearnerConfig",
    }
    name = {"type": "string", "pattern": f"^{NAME}$"}
    described: dict[str, dict[str, Any]] = {
        "preset": {**name, "description": "The preset that the stages use."},
        "settings_file": {"type": "string", "description": "The file that the preset is in, beside this one."},
        "problem_sets": {
            "type": "array",
            "items": name,
            "description": "Its problem sets, in order: dvc.yaml runs them.",
        },
        "tested_sets": {"type": "array", "items": name, "description": "Those whose prescription is tested, in order."},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "params.yaml",
        "type": "object",
        "properties": described,
        "required": list(described),
        "additionalProperties": {"$ref": "#/$defs/Preset"},
        "$defs": parts,
    }


WIDTH = 118


def template_text(name: str, like: Preset) -> str:
    """A file with one preset: every setting with its description."""
    checked_name(name)
    head = [
        f"# Every setting of the preset {name}, with the values of {like.name} to begin with. In params.yaml:",
        f"#   settings_file: {name}.yaml",
        f"#   preset: {name}",
        f"#   problem_sets: [{', '.join(like.sweep)}]",
        f"#   tested_sets: [{', '.join(like.prescribe)}]",
    ]
    sweeps = dict(like.sweep)
    if like.trainer is None:
        sweeps = {key: own.model_copy(update={"learner": like.learner(own)}) for key, own in sweeps.items()}
    whole = like.model_copy(update={"sweep": sweeps})
    return "\n".join([*head, "", f"{name}:", *_lines(whole, document_schema()["$defs"], indent=2)]) + "\n"


def _lines(own: Any, parts: Mapping[str, Any], *, indent: int, without: str = "") -> Iterator[str]:
    """Every setting of a model or a dataclass with its description, as YAML.

    Args:
        parts: The schemas of the classes.
        without: Name of a setting that another one stands in place of.
    """
    space = " " * indent
    for name, shown in parts[type(own).__name__]["properties"].items():
        if name in ("recipe", without):
            continue
        value = getattr(own, name)
        if name == "sync" and not value.given:
            value = AUTO
        if name == "constant_length":
            # The longest response that is sampled, when the file is read.
            value = None
        if name == "warmup_rollouts" and value is not None:
            without = "warmup_steps"
        described = shown.get("description") or parts.get(type(value).__name__, {}).get("description", "")
        yield from (f"{space}# {line}" for line in wrap(described, WIDTH - indent))
        if _is_settings(value):
            yield f"{space}{name}:"
            yield from _lines(value, parts, indent=indent + 2, without=without)
        elif isinstance(value, Mapping) and value and all(map(_is_settings, value.values())):
            yield f"{space}{name}:"
            for key, each in value.items():
                yield f"{space}  {key}:"
                yield from _lines(each, parts, indent=indent + 4)
        elif isinstance(value, tuple) and value and _is_settings(value[0]):
            yield f"{space}{name}:"
            for each in value:
                yield f"{space}  -"
                yield from _lines(each, parts, indent=indent + 4)
        else:
            # As JSON, whose lists YAML knows.
            written = yaml.safe_dump(json.loads(json.dumps(value)), default_flow_style=True, width=10**6)
            written = written.removesuffix("...\n").strip()
            yield f"{space}{name}: {written}"


def _is_settings(value: Any) -> bool:
    return isinstance(value, BaseModel) or is_dataclass(value)

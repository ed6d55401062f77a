"""Reads presets of ``params.yaml``, and says in one sentence what is wrong with one: where, and what would be right.

From the same models comes the JSON schema for editors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from isocompute.learner import LearnerConfig
from isocompute.learner.config import RECIPES
from isocompute.rollout.contract.documents import DocumentError, parsed
from isocompute.rollout.contract.files import reason_of
from isocompute.rollout.contract.settings import refusal
from pydantic import TypeAdapter, ValidationError

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
        # As JSON, whose lists are tuples and whose mappings are dataclasses of strict settings; dates become texts.
        read = Preset.model_validate_json(json.dumps({**written, "name": name}, default=str))
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
    written = parts["SweepConfig"]["properties"]
    written["learner"] = {"description": written["learner"]["description"], "$ref": "#/$defs/LearnerConfig"}
    name = {"type": "string", "pattern": f"^{NAME}$"}
    names = {"type": "array", "items": name}
    described = {
        "preset": {**name, "description": "The preset that the stages use."},
        "settings_file": {"type": "string", "description": "The file that the preset is in, beside this one."},
        "problem_sets": {**names, "description": "Its problem sets, in order: dvc.yaml runs them."},
        "tested_sets": {**names, "description": "Those whose prescription is tested, in order."},
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


def copied_text(name: str, like: str, path: Path) -> str:
    """The text of a file with one preset: that of another file, as it is written there, under another name."""
    checked_name(name)
    text = path.read_text("utf-8")
    root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    begins = {key.value: key.start_mark.line for key, _ in root.value}
    end = min((line for line in begins.values() if line > begins[like]), default=None)
    own = text.splitlines()[begins[like] + 1 : end]
    while own and not own[-1].startswith(" "):
        # Comments on the next one.
        del own[-1]
    return "\n".join([f"{name}:", *own]) + "\n"

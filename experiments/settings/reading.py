"""Reads presets of ``params.yaml``, and says in one sentence what is wrong with one: where, and what would be right.

From the same models come the JSON schema that editors use, and a preset written whole, with comments, for ``init``.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from textwrap import wrap
from typing import Any

import yaml
from isocompute.rollout.contract.documents import DocumentError, parsed
from isocompute.rollout.contract.files import reason_of
from pydantic import ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import ErrorDetails, core_schema

from ..errors import ExperimentError
from .model import AUTO, BOTH, LearnerSettings, Preset, kind_of
from .strict import NAME, SettingError, checked_name, with_names

NOT_PRESETS = ("preset", "settings_file", "problem_sets", "tested_sets")
LISTS = {"problem_sets": "sweep", "tested_sets": "prescribe"}
"""The lists that dvc.yaml has stages for, and the sections of a preset whose names they hold."""
SETTINGS_FILE = r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.ya?ml"


def load(path: Path = Path("params.yaml"), preset: str | None = None) -> Preset:
    """Read one preset."""
    name, file, raw, written = find(path, preset)
    for key in LISTS:
        _check_list(raw.get(key), f"{path}: {key}")
    try:
        checked_name(name)
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


def _check_list(listed: Any, where: str) -> None:
    """Refuse a list of problem sets with a name that DVC or its shell could read otherwise."""
    if not isinstance(listed, list | None):
        raise ExperimentError(f"{where} is {_shown(listed)}; it must be a list of problem sets")
    for each in listed or ():
        try:
            checked_name(str(each))
        except SettingError as error:
            raise ExperimentError(f"{where} {error}") from None


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
        raw = parsed(path.read_text("utf-8"))
    except (OSError, UnicodeError) as error:
        raise ExperimentError(f"{path}: cannot be read ({reason_of(error)})") from None
    except DocumentError as error:
        raise ExperimentError(f"{path}: {error}") from None
    if not isinstance(raw, dict):
        raise ExperimentError(f"{path}: must be a mapping of presets")
    return raw


LONGEST = 80
"""Characters of a value that a message shows."""
UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")
MISSING_KEY = ("missing", "missing_argument", "missing_keyword_only_argument")
EXPECTED: Mapping[str, str] = {
    "int_type": "of type int",
    "int_from_float": "of type int",
    "float_type": "of type float",
    "string_type": "of type str",
    "bool_type": "of type bool",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a mapping",
    "dataclass_type": "a mapping",
    "dataclass_exact_type": "a mapping",
    "literal_error": "{choices}",
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "greater than {gt:g}",
    "finite_number": "a finite number",
    "too_short": "a list of {min_length} or more",
}
"""The expected value, by pydantic's type of error."""
EXPONENT = re.compile(r"([+-]?\d+)(?:\.(\d*))?[eE]([+-]?)(\d+)")
"""A number that YAML reads as text, such as 1e-4."""


def sentence(error: ValidationError, preset: str) -> str:
    """Say the first thing that is wrong with a preset.

    Unknown keys are reported before missing ones: an unknown key may be a misspelling of a missing one.
    """
    found = error.errors(include_url=False)
    unknown = [each for each in found if each["type"] in UNKNOWN_KEY]
    first = (unknown or found)[0]
    kind, location = first["type"], first["loc"]
    if location[-1:] == ("[key]",):
        # What is wrong is the name itself, which the error says.
        location = location[:-2]
    if kind in UNKNOWN_KEY:
        return _unknown_key(str(location[-1]), *_follow(location[:-1], preset))
    if kind in MISSING_KEY:
        missing = [each["loc"] for each in found if each["type"] in MISSING_KEY]
        keys = sorted(str(key) for *above, key in missing if above == list(location[:-1]))
        return f"{_follow(location[:-1], preset)[0]} lacks {', '.join(keys)}"
    path, schema = _follow(location, preset)
    if kind == "value_error":
        return _broken_rule(path, first["ctx"]["error"])
    if kind.startswith("union_tag"):
        return _wrong_kind(path, first["input"], schema)
    return f"{path} is {_shown(first['input'])}; {_expected(first, schema)}"


def _unknown_key(key: str, path: str, schema: Mapping[str, Any]) -> str:
    """Name the keys that there are, and the one that was probably meant."""
    keys = sorted(schema["properties"])
    near = get_close_matches(key, keys, n=1)
    meant = f" (did you mean {near[0]!r}?)" if near else ""
    return f"{path} has no setting {key!r}{meant}; it has {', '.join(keys)}"


def _broken_rule(path: str, error: ValueError) -> str:
    """Say what a rule of a model says; errors of the packages' own dataclasses are whole sentences."""
    if isinstance(error, SettingError):
        return f"{'.'.join(filter(None, (path, error.where)))} {error}"
    return f"{path}: {error}"


def _wrong_kind(path: str, value: Any, schema: Mapping[str, Any]) -> str:
    """Say which kinds there are."""
    if not isinstance(value, Mapping):
        return f"{path} is {_shown(value)}; it must be a mapping"
    key, known = deciding(schema)
    if value.get(key) in known:
        return f"{path} {BOTH}"
    found = f"{path}.{key} is {_shown(value[key])}" if key in value else f"{path} lacks {key}"
    return f"{found}; it must be {_one_of(known)}"


def _expected(error: ErrorDetails, schema: Mapping[str, Any]) -> str:
    """Say what a single value must be."""
    kind, value = error["type"], error["input"]
    if kind not in EXPECTED:
        return error["msg"][:1].lower() + error["msg"][1:]
    expected = EXPECTED[kind].format(choices=_one_of(schema.get("enum", [])), **error.get("ctx", {}))
    number = EXPONENT.fullmatch(value) if kind == "float_type" and isinstance(value, str) else None
    if number:
        whole, fraction, sign, exponent = number.groups()
        written = f"{whole}.{fraction or 0}e{sign or '+'}{exponent}"
        expected += f" (YAML reads an exponent only with a point and a sign: {written})"
    return f"it must be {expected}"


def _follow(location: Sequence[int | str], preset: str) -> tuple[str, dict[str, Any]]:
    """The dotted path of a place in a preset, and its schema; the tags that pydantic adds for a kind are left out."""
    root = preset_schema()
    path, schema = preset, root
    for key in location:
        if "oneOf" in schema:
            schema = resolved(choices(schema)[str(key)], root)
            continue
        if isinstance(key, int):
            path, schema = f"{path}[{key}]", schema["items"]
        else:
            path = f"{path}.{key}"
            schema = schema.get("properties", {}).get(key) or schema["additionalProperties"]
        schema = resolved(schema, root)
        if "anyOf" in schema:
            # What may also be null.
            schema = resolved(schema["anyOf"][0], root)
    return path, schema


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _one_of(choices: Sequence[Any]) -> str:
    names = [str(choice) for choice in choices]
    return " or ".join(names) if len(names) < 3 else f"one of {', '.join(names)}"


NAMED_BY_THEIR_KEY = ("Preset", "DifficultySplit")
"""Classes whose ``name`` is the key that they have in ``params.yaml``."""


class _Described(GenerateJsonSchema):
    """A schema without titles, in which the fields of a dataclass have the descriptions of its docstring."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        shown = super().dataclass_schema(schema)
        shown["additionalProperties"] = False
        shown["description"], attributes = documented(schema["cls"])
        for name, description in attributes.items():
            if name in shown["properties"]:
                shown["properties"][name]["description"] = description
        return shown


def documented(kind: type[Any]) -> tuple[str, dict[str, str]]:
    """The first paragraph of a Google-style docstring, and its attributes with their descriptions."""
    text = inspect.getdoc(kind) or ""
    summary, _, rest = text.partition("\n\n")
    section = re.search(r"^Attributes:\n((?:[ ]+.*\n?|\n)*)", rest, re.MULTILINE)
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", section[1] if section else "", re.MULTILINE)
    return " ".join(summary.split()), {name: " ".join(description.split()) for name, description in entries}


@cache
def preset_schema() -> dict[str, Any]:
    """The JSON schema of one preset, with its parts under ``$defs``."""
    schema = Preset.model_json_schema(schema_generator=_Described)
    for held in (schema, *schema["$defs"].values()):
        if held.get("title") in NAMED_BY_THEIR_KEY:
            del held["properties"]["name"]
            held["required"].remove("name")
    return schema


def resolved(schema: dict[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """A schema itself, in place of a reference to it."""
    found: dict[str, Any] = root["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    return found


def choices(schema: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The schemas of a union by pydantic's tag of each: its ``kind``, or the name of its class."""
    return {
        choice["$ref"].rpartition("/")[2] if "$ref" in choice else str(choice["properties"]["kind"]["const"]): choice
        for choice in schema["oneOf"]
    }


def deciding(schema: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The key that decides between the schemas of a union, and every value that it may have."""
    root = preset_schema()
    every = [resolved(choice, root)["properties"] for choice in schema["oneOf"]]
    key = "kind" if "kind" in every[0] else "rule"
    values = [value for own in every for value in own[key].get("enum") or [own[key]["const"]]]
    return key, list(dict.fromkeys(values))


def document_schema() -> dict[str, Any]:
    """The JSON schema of the whole of ``params.yaml``."""
    preset = dict(preset_schema())
    parts = preset.pop("$defs")
    name = {"type": "string", "pattern": f"^{NAME}$"}
    names = {"type": "array", "items": name}
    properties = {
        "preset": {**name, "description": "The preset that the stages use."},
        "settings_file": {
            "type": "string",
            "description": "The file that the preset is in, beside this one; `python -m experiments init` writes one "
            "of your own.",
        },
        "problem_sets": {
            **names,
            "description": "Its problem sets, in the order of its sweep; dvc.yaml has stages for each.",
        },
        "tested_sets": {
            **names,
            "description": "Those of its problem sets whose prescription is tested, in the order of `prescribe`.",
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "params.yaml",
        "description": "Presets of the pipeline, and which of them the stages use.",
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": {"$ref": "#/$defs/Preset"},
        "$defs": {"Preset": preset, **parts},
    }


def schema_text() -> str:
    """The schema as it is in ``params.schema.json``."""
    return json.dumps(document_schema(), indent=1, ensure_ascii=False) + "\n"


WIDTH = 118


def template_text(name: str, like: Preset, raw: Mapping[str, Any]) -> str:
    """A file with one preset.

    Args:
        raw: That preset as it is written, which names the kinds of its parts.
    """
    checked_name(name)
    head = [
        f"# Every setting of the preset {name}, with the values of {like.name} to begin with. In params.yaml:",
        f"#   settings_file: {name}.yaml",
        f"#   preset: {name}",
        f"#   problem_sets: [{', '.join(like.sweep)}]",
        f"#   tested_sets: [{', '.join(like.prescribe)}]",
    ]
    lines = _lines(_plain(like, raw), preset_schema(), indent=2)
    return "\n".join([*head, "", f"{name}:", *lines]) + "\n"


def _plain(preset: Preset, raw: Mapping[str, Any]) -> dict[str, Any]:
    """All values of a preset as params.yaml would have them."""
    without_learner = {"sweep": {name: {"learner"} for name in preset.sweep}}
    plain: dict[str, Any] = preset.model_dump(mode="json", exclude={"name": True, **without_learner})
    plain["problems"] = [{"kind": r["kind"], **p} for r, p in zip(raw["problems"], plain["problems"], strict=True)]
    plain["base"] = {"kind": raw["base"]["kind"], **plain["base"]}
    plain["trainer"] = {"kind": raw.get("trainer", {}).get("kind", "learner"), **plain["trainer"]}
    for entry in (plain["difficulty"] or {"sets": {}})["sets"].values():
        del entry["name"]
    for name, sweep in preset.sweep.items():
        plain["sweep"][name]["learner"] = {}
        if preset.command:
            continue
        config = preset.learner(sweep)
        learner = {key: value for key, value in asdict(config).items() if key not in LearnerSettings.ELSEWHERE}
        if not config.sync.given:
            learner["sync"] = AUTO
        if sweep.warmup_rollouts is not None:
            # It stands in place of a number of steps.
            learner["optimizer"] = {k: v for k, v in learner["optimizer"].items() if k != "warmup_steps"}
        plain["sweep"][name]["learner"] = learner
    return plain


def _lines(values: Mapping[str, Any], schema: Mapping[str, Any], *, indent: int) -> Iterator[str]:
    space, root = " " * indent, preset_schema()
    for key, value in values.items():
        own = schema.get("properties", {}).get(key) or schema["additionalProperties"]
        part = _part(own, value, root)
        described = own.get("description") or part.get("description", "")
        yield from (f"{space}# {line}" for line in wrap(described, WIDTH - indent))
        if isinstance(value, Mapping) and value and _has_parts(part):
            yield f"{space}{key}:"
            yield from _lines(value, part, indent=indent + 2)
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            yield f"{space}{key}:"
            for item in value:
                yield f"{space}  -"
                yield from _lines(item, _part(part["items"], item, root), indent=indent + 4)
        else:
            written = yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("...\n").strip()
            yield f"{space}{key}: {written}"


def _has_parts(schema: Mapping[str, Any]) -> bool:
    """Return whether the settings of a mapping are described one by one."""
    return "properties" in schema or isinstance(schema.get("additionalProperties"), dict)


def _part(schema: Mapping[str, Any], value: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """The schema that a value is of, where there are several."""
    found = resolved(dict(schema), root)
    if "oneOf" in found and isinstance(value, Mapping):
        tag = value["kind"] if "kind" in value else kind_of(value)
        return resolved(choices(found)[str(tag)], root)
    if "anyOf" in found and isinstance(value, Mapping):
        return next(each for each in (resolved(s, root) for s in found["anyOf"]) if each.get("type") == "object")
    return found

"""The JSON schema of ``params.yaml``: what editors complete and check by, and error messages name keys from."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from .model import Preset
from .strict import NAME

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
    preset = preset_schema()
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


def text() -> str:
    """The schema as it is in ``params.schema.json``."""
    return json.dumps(document_schema(), indent=1, ensure_ascii=False) + "\n"

"""One sentence for settings that pydantic refuses: where, what was found, and what would be right."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from .schema import choices, deciding, preset_schema, resolved
from .strict import SettingError
from .sweep import BOTH

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
"""What a value must be, by pydantic's type of error."""
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
    """What a single value must be."""
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

"""Settings validated by pydantic, strict and frozen; and what is wrong with invalid ones, in one sentence."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import wraps
from typing import Annotated, Any, Literal, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from .errors import IsoComputeError

T = TypeVar("T")
Whole = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
STRICT = ConfigDict(strict=True, extra="forbid", use_attribute_docstrings=True)
"""No value is converted, and no unknown key is accepted."""
UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
MISSING = ("missing", "missing_argument", "missing_keyword_only_argument")
LONGEST = 80
"""Most characters of a value to show in a message."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
def settings(error: type[IsoComputeError]) -> Callable[[type[T]], type[T]]:
    """Make a class a frozen dataclass with values checked by pydantic."""

    def made(kind: type[T]) -> type[T]:
        checked: Any = dataclass(config=STRICT, frozen=True, slots=True, kw_only=True)(kind)
        check = checked.__init__

        @wraps(check)
        def refusing(self: Any, **values: Any) -> None:
            try:
                check(self, **values)
            except ValidationError as refused:
                raise error(refusal(refused, checked)[1]) from None

        checked.__init__ = refusing
        found: type[T] = checked
        return found

    return made


def made_of(kind: type[T], plain: Mapping[str, Any], error: type[Exception], *above: str) -> T:
    """Make settings from plain values, as in JSON, YAML and ``dataclasses.asdict``.

    Args:
        error: Raised with a sentence if a value is refused, or is not a JSON value.
        above: Keys that lead to these settings; the sentence begins with them.
    """
    try:
        # Through JSON, whose lists and mappings become the tuples and dataclasses of strict settings.
        return TypeAdapter(kind).validate_json(json.dumps(plain))
    except ValidationError as refused:
        raise error(refusal(refused, kind, *above)[1]) from None
    except TypeError as refused:
        raise error(f"{'.'.join(above) or kind.__name__}: a value is of an unsupported type ({refused})") from None


def refusal(error: ValidationError, kind: type, *above: str) -> tuple[tuple[str | int, ...], str]:
    """Describe the first thing that is wrong with settings, and where: the keys that lead to it.

    Unknown keys are reported before missing ones: an unknown key may be a misspelling of a missing one.
    """
    found = error.errors(include_url=False)
    first = next((each for each in found if each["type"] in UNKNOWN), found[0])
    why, value, message, context = first["type"], first["input"], first["msg"], first.get("ctx", {})
    location = first["loc"]
    if why in (*UNKNOWN, *MISSING):
        # A key is wrong; the settings that have it, or should have it, are one level up.
        location = location[:-1]
    elif location[-1:] == ("[key]",):
        location = location[:-2]
    keys, models = _followed(location, kind)
    keys = (*above, *keys)
    path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")
    if why in UNKNOWN:
        key, known = str(first["loc"][-1]), sorted({name for model in models for name in _fields(model)})
        near = get_close_matches(key, known, n=1)
        meant = f" (did you mean {near[0]!r}?)" if near else ""
        text = f"{path or kind.__name__} has no setting {key!r}{meant}; it has {', '.join(known)}"
        return (*keys, key), text
    if why in MISSING:
        missing = [str(each["loc"][-1]) for each in found if each["type"] in MISSING and each["loc"][:-1] == location]
        return keys, f"{path or kind.__name__} lacks {', '.join(missing)}"
    if why == "value_error":
        text = str(context["error"])
        names = text.split(" ")[0].strip(":").split(".")
        if not path:
            return tuple(names), text
        if any(names[0] in _fields(model) for model in models):
            # A rule that begins with the setting to change.
            return (*keys, *names), f"{path}.{text}"
        return keys, f"{path}: {text}"
    if why.startswith("union_tag") and isinstance(value, Mapping):
        name = str(context["discriminator"]).strip("'")
        if why == "union_tag_not_found":
            return keys, f"{path} lacks {name}"
        return (*keys, name), f"{path}.{name} is {context['tag']!r}; it must be one of {context['expected_tags']}"
    return keys, f"{path} is {_shown(value)}; {_expected(why, message, value)}"


def _expected(why: str, message: str, value: Any) -> str:
    """Say what a value must be, mostly in pydantic's words."""
    if why.startswith(("model_", "dataclass_", "dict_", "mapping_", "union_tag")):
        return "it must be a mapping"
    if why in ("tuple_type", "list_type"):
        return "it must be a list"
    if why == "float_type" and isinstance(value, str):
        message += " (YAML reads an exponent only with a point and a sign, as in 1.0e-4)"
    return (
        message.replace("Input should", "it must").replace("Tuple should", "it must").replace(" after validation", "")
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _followed(location: tuple[str | int, ...], kind: type) -> tuple[tuple[str | int, ...], list[type]]:
    """Return the keys of a location without pydantic's tags for union members, and the classes there."""
    keys: list[str | int] = []
    models = [kind]
    for key in location:
        below = [_fields(model)[str(key)] for model in models if key in _fields(model)]
        tagged = [model for model in models if key in (model.__name__, *get_args(_fields(model).get("kind")))]
        if len(models) > 1 and tagged:
            models = tagged
            continue
        if below:
            models = [model for each in below for model in _models(each)]
        keys.append(key)
    return tuple(keys), models


def _fields(kind: type) -> dict[str, Any]:
    """Return the types of a class's settings."""
    names = kind.model_fields if issubclass(kind, BaseModel) else [each.name for each in fields(kind)]  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    return {name: hints[name] for name in names}


def _models(hint: Any) -> Iterator[type]:
    """Yield the settings classes in a type."""
    if isinstance(hint, type) and not isinstance(hint, types.GenericAlias):
        if is_dataclass(hint) or issubclass(hint, BaseModel):
            yield hint
    elif get_origin(hint) is not Literal:
        for each in get_args(hint):
            yield from _models(each)

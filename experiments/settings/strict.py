"""The base of all settings, and the types of values that several sections have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, TypeVar

from isocompute.rollout.contract.settings import STRICT
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from ..errors import ExperimentError

T = TypeVar("T")


class Settings(BaseModel):
    """Base of all settings: no value is converted, no key is unknown, nothing changes after it was read.

    A rule over several settings is a validator of the lowest model that has them all. Its message begins with the
    dotted path of the setting that is to change, so that a reader finds it in the file.
    """

    model_config = ConfigDict(frozen=True, **STRICT)


NAME = "[a-z0-9][a-z0-9_-]*"
"""A name that reaches command lines, paths and keys, and means nothing else in any of them."""


def checked_name(name: str) -> str:
    """A name of a preset or a problem set, which no shell, path or DVC could read otherwise."""
    if not re.fullmatch(NAME, name):
        raise ExperimentError(
            f"the name {name!r} is none: names have lower-case letters, digits, - and _, and begin with neither sign"
        )
    return name


def _distinct(values: tuple[T, ...]) -> tuple[T, ...]:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{value!r} is there twice; values must differ")
    return values


Name = Annotated[str, AfterValidator(checked_name)]
"""Name of a preset or a problem set."""
Named = Annotated[Mapping[Name, T], Field(json_schema_extra={"propertyNames": {"pattern": f"^{NAME}$"}})]
"""Settings of problem sets, by name."""
Grid = Annotated[tuple[T, ...], Field(min_length=1, json_schema_extra={"uniqueItems": True}), AfterValidator(_distinct)]
"""The values that a sweep tries: one or more, each once."""

"""The base of all settings: strict, frozen models, and the shapes of YAML that a class alone does not have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

T = TypeVar("T")


class Settings(BaseModel):
    """Base of all settings: no value is converted, no key is unknown, nothing changes after it was read.

    A rule over several settings is a validator of the lowest model that has them all.

    Raises:
        pydantic.ValidationError: A value is refused; ``reading.load`` turns it into one sentence.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, use_attribute_docstrings=True)


class SettingError(ValueError):
    """A setting that a rule refuses.

    Attributes:
        where: Its dotted path below the model that has the rule; empty for the whole of it.
    """

    def __init__(self, where: str, message: str) -> None:
        """Take the path, and the sentence of which the path is the subject: ``is 4; it must be …``."""
        super().__init__(message)
        self.where = where


def _distinct(values: tuple[T, ...]) -> tuple[T, ...]:
    for value in values:
        if values.count(value) > 1:
            raise SettingError("", f"holds {value!r} twice; its values must differ")
    return values


NAME = "[a-z0-9][a-z0-9_-]*"
"""A name that reaches command lines, paths and keys, and means nothing else in any of them."""


def checked_name(name: str) -> str:
    """A name of a preset or a problem set.

    Raises:
        SettingError: A shell, a path or DVC could read it otherwise.
    """
    if not re.fullmatch(NAME, name):
        raise SettingError(
            "", f"holds the name {name!r}; names have lower-case letters, digits, - and _, and begin with neither sign"
        )
    return name


Name = Annotated[str, AfterValidator(checked_name)]
"""Name of a preset or a problem set."""
Named = Annotated[Mapping[Name, T], Field(json_schema_extra={"propertyNames": {"pattern": f"^{NAME}$"}})]
"""Settings of problem sets, by name."""
Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""A learning rate."""
Grid = Annotated[tuple[T, ...], Field(min_length=1, json_schema_extra={"uniqueItems": True}), AfterValidator(_distinct)]
"""The values that a sweep tries: one or more, each once."""


KIND = "Which kind it is, which decides the other settings."


@dataclass(frozen=True)
class ByKind:
    """Marks a setting of several kinds: its key ``kind`` says which class the other keys are the fields of."""

    kinds: Mapping[str, type[Any]]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """A union that ``kind`` decides."""
        choices: dict[Any, CoreSchema] = {
            kind: core_schema.no_info_before_validator_function(_without_kind, handler.generate_schema(chosen))
            for kind, chosen in self.kinds.items()
        }
        return core_schema.tagged_union_schema(choices, discriminator=self._kind_of)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Each class with a ``kind`` that is its own."""
        choices = []
        for kind, choice in zip(self.kinds, handler(schema)["oneOf"], strict=True):
            shown = dict(handler.resolve_ref_schema(choice))
            shown["properties"] = {"kind": {"const": kind, "description": KIND}, **shown["properties"]}
            shown["required"] = ["kind", *shown.get("required", [])]
            choices.append(shown)
        return {"oneOf": choices}

    def _kind_of(self, value: Any) -> str | None:
        if isinstance(value, Mapping):
            return str(value["kind"]) if "kind" in value else None
        return next((kind for kind, chosen in self.kinds.items() if type(value) is chosen), None)


def _without_kind(value: Any) -> Any:
    return {key: held for key, held in value.items() if key != "kind"} if isinstance(value, Mapping) else value


def with_names(entries: Any) -> Any:
    """Give each entry of a mapping its key as ``name``."""
    if not isinstance(entries, Mapping):
        return entries
    for key, entry in entries.items():
        if isinstance(entry, Mapping) and "name" in entry:
            raise SettingError(key, f"has no setting 'name': its name is its key, {key}")
    return {key: {"name": key, **entry} if isinstance(entry, Mapping) else entry for key, entry in entries.items()}


def check_budget(rollouts: int, evaluate_every: int, batches: Iterable[int], *, where: str = "") -> None:
    """Refuse a budget in which no step could be taken, or whose evaluations fall between two steps.

    Args:
        batches: Rollouts of one step, B = B_p · n, of every cell.
        where: Dotted path of the settings with its last dot, in front of the names ``rollouts`` and
            ``evaluate_every``.
    """
    for batch in batches:
        if batch > rollouts:
            raise SettingError(f"{where}rollouts", f"is {rollouts}; one step takes {batch}: no step could be taken")
        if evaluate_every % batch or rollouts % evaluate_every:
            raise SettingError(
                f"{where}evaluate_every",
                f"is {evaluate_every}; it must be a multiple of every batch ({batch}) and divide rollouts ({rollouts})",
            )

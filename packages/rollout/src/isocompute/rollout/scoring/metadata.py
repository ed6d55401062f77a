"""What a verifier needs besides the answer, as JSON in the ``metadata`` column.

JSON has no tuples, and some scorers compare with them: a tuple is written as ``{"__tuple__": [...]}``. Other values
that JSON cannot hold are converted: arrays and sets to lists, dates and everything else to text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import RolloutError

if TYPE_CHECKING:
    # The processes that score decode metadata and need no tables.
    import polars as pl

TUPLE = "__tuple__"


def encode(value: Any) -> str:
    """Return the JSON text of a value; equal values give equal texts.

    Args:
        value: Mappings, sequences, sets, arrays, numbers, texts and dates, nested as they may be.
    """
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def decode(text: str, *, where: str) -> dict[str, Any]:
    """Return the mapping that a text holds, with its tuples.

    Args:
        text: What ``encode`` made of a mapping.

    Raises:
        RolloutError: The text is not JSON, or not a mapping.
    """
    try:
        value = json.loads(text, object_hook=_restored)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise RolloutError(f"the metadata of a problem of {where} are not a JSON mapping: {text[:60]!r}")
    return value


def from_column(value: Any, *, where: str) -> str:
    """Return the text for what a user's column holds: a mapping, the JSON text of one, or nothing.

    Raises:
        RolloutError: It is neither.
    """
    if value is None or value == "":
        return ""
    if not isinstance(value, str | Mapping):
        raise RolloutError(f"the metadata of a problem of {where} are not a JSON mapping: {str(value)[:60]!r}")
    return encode(decode(value, where=where) if isinstance(value, str) else value)


def metadata_of(problems: pl.DataFrame) -> list[str]:
    """Return each problem's metadata, an empty text where there is none.

    Args:
        problems: A ``problems`` table, with or without a ``metadata`` column.
    """
    if "metadata" not in problems.columns:
        return [""] * len(problems)
    return [text or "" for text in problems["metadata"].to_list()]


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return {TUPLE: [_plain(inner) for inner in value]}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, set | frozenset):
        return sorted((_plain(inner) for inner in value), key=repr)
    # Before numbers: numpy's float64 is a float.
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _restored(value: dict[str, Any]) -> Any:
    """The tuple that a mapping stands for, or the mapping."""
    if value.keys() == {TUPLE} and isinstance(value[TUPLE], list):
        return tuple(value[TUPLE])
    return value

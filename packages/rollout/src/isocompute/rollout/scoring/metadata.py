"""What a verifier needs besides the answer, as the JSON of the ``metadata`` column.

JSON knows no tuples, and some scorers compare with them: a tuple is written as ``{"__tuple__": [...]}``. What JSON
cannot hold otherwise becomes what comes nearest: arrays and sets lists, dates and all else their text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .errors import RolloutError

TUPLE = "__tuple__"


def written(value: Any) -> str:
    """Return the JSON text of a value; equal values give equal texts."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def read(text: str, *, where: str) -> dict[str, Any]:
    """Return the mapping that a text holds, with its tuples.

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


def _plain(value: Any) -> Any:
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
    if value.keys() == {TUPLE} and isinstance(value[TUPLE], list):
        return tuple(value[TUPLE])
    return value

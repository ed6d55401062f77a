"""The configuration of a run in a file, flattened."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import FrontierError


def read_config(path: Path) -> dict[str, Any]:
    """Read a JSON, TOML or YAML configuration, flattened to dotted keys.

    Raises:
        FrontierError: It cannot be read, or is not a mapping.
    """
    try:
        text = path.read_text()
        document = {".json": json.loads, ".toml": tomllib.loads}.get(path.suffix, _yaml)(text)
        if isinstance(document, dict):
            return flat(document)
    except FrontierError:
        raise
    except RecursionError:
        raise FrontierError(f"{path}: cannot be read (it is nested too deep)") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise FrontierError(f"{path}: cannot be read ({reason})") from None
    raise FrontierError(f"{path}: a configuration must be a mapping, not a {type(document).__name__}")


def flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted keys, and lists of mappings by index; W&B's ``{"value": …}`` is its value.

    Args:
        prefix: What every key begins with.
    """
    out: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, Mapping) and set(value) <= {"value", "desc"} and "value" in value:
            value = value["value"]
        if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            value = dict(enumerate(value))
        if isinstance(value, Mapping):
            out |= flat(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value
    return out


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise FrontierError('a YAML configuration needs PyYAML: pip install "isocompute-frontier[ingest]"') from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None

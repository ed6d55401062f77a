"""Settings as people keep them: YAML, JSON, TOML, launch scripts and flags."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import BudgetError
from .settings import Configuration, Style, Value

REFERENCE = re.compile(r"^\$\{([\w.]+)\}$")


def load(source: Path) -> dict[str, Value]:
    """Read settings from a file.

    Args:
        source: ``.yaml``, ``.yml``, ``.json``, ``.toml``, or a launch script (any other suffix), whose words
            that look like flags are taken.

    Returns:
        Dotted keys and their values; references such as ``${data.train_batch_size}`` are followed.

    Raises:
        BudgetError: The file cannot be read or understood, or it is YAML and PyYAML is not installed.
    """
    try:
        text = source.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BudgetError(f"{source}: cannot be read ({reason})") from None
    suffix = source.suffix.lower()
    try:
        if suffix in {".yaml", ".yml"}:
            document = _yaml(text, source)
        elif suffix == ".json":
            document = json.loads(text)
        elif suffix == ".toml":
            document = tomllib.loads(text)
        else:
            return flags(shlex.split(text.replace("\\\n", " "), comments=True))
    except (json.JSONDecodeError, tomllib.TOMLDecodeError, ValueError) as error:
        if isinstance(error, BudgetError):
            raise
        raise BudgetError(f"{source}: not {suffix.removeprefix('.') or 'a script'} ({_first_line(error)})") from None
    if not isinstance(document, Mapping):
        raise BudgetError(f"{source}: holds no settings (its top level has to be keys with values)")
    return _resolved(dict(_flat(document)))


def flags(words: Iterable[str]) -> dict[str, Value]:
    """Read settings from flags.

    ``--key value``, ``--key=value``, ``key=value``, ``+key=value`` and a bare ``--switch`` are understood;
    dashes within a key are underscores, several values make a list, and other words are passed over.
    """
    found: dict[str, Value] = {}
    open_key: str | None = None
    for word in words:
        key, equals, value = word.lstrip("-+").partition("=")
        key = key.replace("-", "_")
        if not key:
            open_key = None
        elif word.startswith("--") and not equals:
            open_key = key
            found[key] = True
        elif equals and re.fullmatch(r"[A-Za-z_][\w.]*", key):
            found[key] = _value(value)
            open_key = None
        elif open_key is not None and not word.startswith("--"):
            before = found[open_key]
            if before is True:
                found[open_key] = _value(word)
            elif isinstance(before, list):
                before.append(_value(word))
            else:
                found[open_key] = [before, _value(word)]
    return found


def render(configuration: Configuration, style: Style) -> list[str]:
    """A trainer's settings as flags, one setting a line."""
    if style == "hydra":
        return [f"{key}={_text(value)}" for key, value in configuration.settings.items()]
    return [f"--{key} {_text(value)}" for key, value in configuration.settings.items()]


def nested(settings: Mapping[str, Value]) -> dict[str, Any]:
    """Dotted keys as the nested document that the trainers' own files are."""
    document: dict[str, Any] = {}
    for key, value in settings.items():
        *parents, last = key.split(".")
        inner = document
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value
    return document


def _yaml(text: str, source: Path) -> object:
    try:
        import yaml  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise BudgetError(
            f'{source}: reading YAML needs PyYAML: pip install "isocompute-budget[yaml]"; JSON, TOML, scripts and '
            "flags do without"
        ) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BudgetError(f"{source}: not YAML ({_first_line(error)})") from None


def _flat(document: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Value]]:
    for key, value in document.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        else:
            yield name, value


def _resolved(settings: dict[str, Value]) -> dict[str, Value]:
    """Follow references to other keys; one that leads nowhere, or in a circle, stays as it is written."""
    for key, value in settings.items():
        seen = {key}
        while isinstance(value, str) and (match := REFERENCE.match(value)):
            target = match.group(1)
            if target in seen or target not in settings:
                break
            seen.add(target)
            value = settings[target]
        settings[key] = value
    return settings


def _value(text: str) -> Value:
    low = text.lower()
    if low in {"true", "false"}:
        return low == "true"
    if low in {"null", "none", ""}:
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    if text.startswith("[") and text.endswith("]"):
        return [_value(part.strip()) for part in text[1:-1].split(",") if part.strip()]
    return text


def _text(value: Value) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(_text(part) for part in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

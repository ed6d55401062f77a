"""Settings in files and on command lines: YAML, JSON, TOML, launch scripts and flags."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import BudgetError
from ..wording import reason, shorten
from .target import Configuration, Style, Value

REFERENCE = re.compile(r"^\$\{([\w.]+)\}$")

SCRIPTS = ("", ".sh", ".bash", ".zsh", ".ksh", ".slurm", ".sbatch", ".pbs", ".lsf", ".job", ".txt")
"""Suffixes of launch scripts."""

LONGEST_FILE = 2**24
LONGEST_KEY = 1_000
MOST_SETTINGS = 100_000
DEEPEST = 100
"""Limits on the size of settings, because YAML aliases let a short file expand without bound."""


def load(source: Path) -> dict[str, Value]:
    """Read settings from a file.

    Args:
        source: ``.yaml``, ``.yml``, ``.json``, ``.toml``, or a launch script (``.sh`` and the like, or no suffix),
            whose words that look like flags are taken.

    Returns:
        Dotted keys and their values; references such as ``${data.train_batch_size}`` are followed.

    Raises:
        BudgetError: The file cannot be read or understood, is of another kind, or is YAML and PyYAML is not installed.
    """
    suffix = source.suffix.lower()
    if suffix not in (".yaml", ".yml", ".json", ".toml", *SCRIPTS):
        raise BudgetError(
            f"{source}: settings are not read from {suffix} files; give YAML, JSON, TOML, a launch script (.sh) or, "
            "after --, flags"
        )
    try:
        with source.open(encoding="utf-8") as stream:
            text = stream.read(LONGEST_FILE + 1)
    except UnicodeDecodeError:
        raise BudgetError(f"{source}: cannot be read (it is not text)") from None
    except (OSError, ValueError) as error:
        raise BudgetError(f"{source}: cannot be read ({reason(error)})") from None
    if len(text) > LONGEST_FILE:
        raise BudgetError(f"{source}: is longer than {LONGEST_FILE:,} characters, so these are no settings")
    if suffix in SCRIPTS:
        return _parse_script(text, source)
    try:
        if suffix == ".json":
            document = json.loads(text)
        elif suffix == ".toml":
            document = tomllib.loads(text)
        else:
            document = _parse_yaml(text, source)
    except RecursionError:
        raise BudgetError(f"{source}: is nested too deeply") from None
    except ValueError as error:
        if isinstance(error, BudgetError):
            raise
        # Python's advice on numbers of thousands of digits concerns programmers, not users.
        cause = reason(error).partition("; use sys.")[0]
        raise BudgetError(f"{source}: not {suffix.removeprefix('.')} ({cause})") from None
    if not isinstance(document, Mapping):
        raise BudgetError(f"{source}: holds no settings (its top level must be keys with values)")
    return _resolve_references(flatten(document, source))


def flags(words: Iterable[str]) -> dict[str, Value]:
    """Read settings from flags.

    ``--key value``, ``--key=value``, ``key=value``, ``+key=value`` and a bare ``--switch`` are understood;
    dashes within a key are underscores, several numbers make a list, and other words are ignored.
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
            found[key] = parse_value(value)
            open_key = None
        elif open_key is not None and not word.startswith("--"):
            open_key = open_key if _append_word(found, open_key, parse_value(word)) else None
    return found


def render(configuration: Configuration, style: Style) -> list[str]:
    """A trainer's settings as flags, one setting per line.

    Args:
        style: The form of the trainer's flags: ``key=value`` for ``hydra``, otherwise ``--key value``.
    """
    if style == "hydra":
        return [f"{key}={_format_value(value)}" for key, value in configuration.settings.items()]
    return [f"--{key} {_format_value(value)}" for key, value in configuration.settings.items()]


def nested(settings: Mapping[str, Value]) -> dict[str, Any]:
    """Dotted keys as a nested document, as in the trainers' own files."""
    document: dict[str, Any] = {}
    for key, value in settings.items():
        *parents, last = key.split(".")
        inner = document
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value
    return document


def _parse_script(text: str, source: Path) -> dict[str, Value]:
    first = text.partition("\n")[0]
    if first.startswith("#!") and "python" in first:
        raise BudgetError(f"{source}: is a Python program; give the script that starts it or, after --, its flags")
    try:
        return flags(shlex.split(text.replace("\\\n", " "), comments=True))
    except ValueError as error:
        kind = source.suffix.removeprefix(".") or "a script"
        raise BudgetError(f"{source}: not {kind} ({reason(error)})") from None


def _parse_yaml(text: str, source: Path) -> object:
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
        raise BudgetError(f"{source}: not YAML ({reason(error)})") from None


def flatten(document: Mapping[Any, Any], source: Path | str) -> dict[str, Value]:
    """Dotted keys and values of a document that is neither too deep nor too large."""
    settings: dict[str, Value] = {}
    visited = 0
    left = [("", 1, document)]
    while left:
        prefix, depth, inner = left.pop()
        if depth > DEEPEST:
            raise BudgetError(f"{source}: is nested more than {DEEPEST} deep, or contains itself")
        deeper = []
        for key, value in inner.items():
            name = prefix + (key if isinstance(key, str) else shorten(key))
            visited += 1
            if len(name) > LONGEST_KEY or visited > MOST_SETTINGS:
                most = f"{LONGEST_KEY:,} characters in a key" if visited <= MOST_SETTINGS else f"{MOST_SETTINGS:,} keys"
                raise BudgetError(f"{source}: holds more than {most}")
            if isinstance(value, Mapping) and "value" in value and set(value) <= {"value", "desc"}:
                # As W&B keeps a setting.
                value = value["value"]
            if isinstance(value, Mapping):
                deeper.append((f"{name}.", depth + 1, value))
            else:
                settings[name] = value
        left += reversed(deeper)
    return settings


def _resolve_references(settings: dict[str, Value]) -> dict[str, Value]:
    """Follow references to other keys; one that leads nowhere, or in a circle, stays as written."""
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


def _append_word(found: dict[str, Value], key: str, value: Value) -> bool:
    """Append a further word to a flag, and return whether the next one may belong to it as well."""
    before = found[key]
    if before is True:
        found[key] = value
    elif not _is_number(value):
        # What follows the value of the last option of a launcher is the program that it starts.
        return False
    elif isinstance(before, list):
        before.append(value)
    elif _is_number(before):
        found[key] = [before, value]
    return _is_number(value)


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def parse_value(text: str) -> Value:
    """A value as it stands on a command line: a number, a switch, a list, a text, or none."""
    if text.startswith("[") and text.endswith("]"):
        return [_parse_scalar(part.strip()) for part in text[1:-1].split(",") if part.strip()]
    return _parse_scalar(text)


def _parse_scalar(text: str) -> Value:
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
    return text


def _format_value(value: Value) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(_format_value(part) for part in value)
    return str(value).lower() if isinstance(value, bool) else str(value)

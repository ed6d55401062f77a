"""Values of flags: KEY=VALUE pairs, YAML files, settings of scoring, shards."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from hashlib import blake2b
from pathlib import Path
from typing import Any

import polars as pl

from ..contract.documents import DocumentError, EndlessError, parsed
from ..contract.files import reason_of
from ..errors import RolloutError
from ..scoring.sandbox.process import ScoringConfig, scoring_from
from ..scoring.scorer import Scorer, default_scorer


def pairs(given: Sequence[str], *, flag: str) -> dict[str, Any]:
    """Return the values of a repeatable flag ``KEY=VALUE``; a value is read as YAML."""
    found: dict[str, Any] = {}
    for text in given:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise RolloutError(f"{flag} is {text!r}; it must be like KEY=VALUE")
        if key.strip() in found:
            raise RolloutError(f"{flag} gives {key.strip()} twice")
        try:
            found[key.strip()] = parsed(value)
        except EndlessError as error:
            raise RolloutError(f"{flag} {key.strip()} {error}") from None
        except DocumentError:
            found[key.strip()] = value
    return found


def yaml_mappings(path: Path, *, several: bool = True) -> list[dict[str, Any]]:
    """Return the mappings of a YAML (or JSON) file that holds one, or a list of them where there may be several."""
    try:
        settings = parsed(path.read_text("utf-8"))
    except (OSError, UnicodeError) as error:
        raise RolloutError(f"{path}: cannot be read ({reason_of(error)})") from None
    except DocumentError as error:
        raise RolloutError(f"{path}: {error}") from None
    found = settings if several and isinstance(settings, list) else [settings]
    if not found or not all(isinstance(each, dict) for each in found):
        more = ", or a list of such mappings" if several else ""
        raise RolloutError(f"{path}: must be a mapping of settings{more}")
    return found


def add_scoring(command: argparse.ArgumentParser) -> argparse.Action:
    """Add the flag for the settings of scoring."""
    known = ", ".join(field.name for field in fields(ScoringConfig))
    return command.add_argument(
        "--scoring",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=f"a setting of scoring, such as seconds=2 (repeatable; {known})",
    )


def scorer_of(arguments: argparse.Namespace) -> Scorer:
    """Return the scorer with the settings of the flag, or that of the process without it."""
    settings = scoring_from(pairs(arguments.scoring, flag="--scoring"))
    return Scorer(settings) if arguments.scoring else default_scorer()


def shard_of(text: str) -> tuple[int, int]:
    """Return I and K of ``I/K``."""
    part, separator, parts = text.partition("/")
    if separator and part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts):
        return int(part), int(parts)
    raise RolloutError(f"--shard is {text!r}; it must be like 1/4, the first of four parts")


def chosen(problems: pl.DataFrame, *, limit: int | None, shard: str | None) -> pl.DataFrame:
    """Return the problems of a shard, of the first so many by ``problem_id``.

    Which shard a problem belongs to depends on its id alone. The shards of a limited run partition its problems.
    """
    if limit is not None and limit < 1:
        raise RolloutError(f"--limit is {limit}; it must be at least 1")
    problems = problems.sort("problem_id") if limit is None else problems.sort("problem_id").head(limit)
    if shard is None:
        return problems
    part, parts = shard_of(shard)
    hashes = (blake2b(problem_id.encode(), digest_size=8).digest() for problem_id in problems["problem_id"])
    keep = [int.from_bytes(hashed, "big") % parts == part - 1 for hashed in hashes]
    if not any(keep):
        raise RolloutError(f"--shard {shard} holds none of the {len(problems)} problems: take fewer shards")
    return problems.filter(pl.Series(keep))

"""``problems``: make a problems table from a description of its source."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from ..errors import RolloutError
from ..problems import load_checked, source_from
from .output import Output, add_flags, deliver

EXAMPLES = 3
"""Dropped problems that are named."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    problems = commands.add_parser("problems", help="make a problems table from a YAML or JSON description")
    problems.add_argument("config", type=Path)
    add_flags(problems)
    problems.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Make the table and say how many problems it has, and which were dropped."""
    return deliver(arguments, _problems)


def _problems(arguments: argparse.Namespace) -> Output:
    import yaml

    try:
        settings = yaml.safe_load(arguments.config.read_text())
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        raise RolloutError(f"{arguments.config}: cannot be read ({str(error).splitlines()[0]})") from None
    if not isinstance(settings, dict):
        raise RolloutError(f"{arguments.config}: must be a mapping with the key kind")
    loaded = load_checked(source_from(settings))
    summary = f"{len(loaded.problems):,} problems"
    if len(loaded.dropped):
        examples = ", ".join(
            f"{row['problem_id']} ({row['reason']}: {row['answer'][:40]!r})"
            for row in loaded.dropped.head(EXAMPLES).iter_rows(named=True)
        )
        summary = f"{len(loaded.dropped):,} dropped, such as {examples}; {summary}"
    return Output(
        name="problems", table=loaded.problems, summary=summary, params=settings,
        metrics={"dropped_problems": float(len(loaded.dropped))},
    )  # fmt: skip

"""``problems``: make a problems table from a description of its source, or from a set known by name."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import RolloutError
from ..problems.loading import Loaded, joined, load_checked
from ..problems.named import NAMED, named_set
from ..problems.sources import source_from
from .output import Output, add_flags, deliver
from .values import add_scoring, scorer_of, yaml_mappings

EXAMPLES = 3
"""Dropped problems that are named."""
OF_A_SET = ("folder", "revision", "train", "validation")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    problems = commands.add_parser(
        "problems", help="make a problems table from a YAML or JSON description, or from a set known by name"
    )
    problems.add_argument("config", type=Path, nargs="?", help="a source (kind and its settings), or a list of them")
    add_set_flags(problems)
    problems.add_argument("--train", type=int, metavar="N", help="training problems of a training set")
    problems.add_argument("--validation", type=int, metavar="N", help="validation problems of a training set")
    add_scoring(problems)
    add_flags(problems)
    problems.set_defaults(run=run)


def add_set_flags(command: argparse.ArgumentParser) -> None:
    """Add the flags that name a set."""
    command.add_argument("--set", metavar="NAME", help=f"a set known by name: {', '.join(NAMED)}")
    command.add_argument("--folder", metavar="FOLDER", help="a copy of the set's dataset, where there is no hub")
    command.add_argument("--revision", metavar="COMMIT", help="another commit, branch or tag of the set's dataset")


def load_set(arguments: argparse.Namespace) -> tuple[Loaded, dict[str, Any]]:
    """Load the set that the flags name, and say from where.

    Raises:
        RolloutError: There is no such set, or it cannot be loaded.
    """
    source = named_set(
        arguments.set,
        folder=arguments.folder,
        revision=arguments.revision,
        train=getattr(arguments, "train", None),
        validation=getattr(arguments, "validation", None),
    )
    return load_checked(source, scorer=scorer_of(arguments)), {"set": source.title, "source": source.name}


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Make the table and say how many problems it has, and which were dropped."""
    return deliver(arguments, _problems)


def _problems(arguments: argparse.Namespace) -> Output:
    if (arguments.config is None) == (arguments.set is None):
        raise RolloutError("problems needs either a description of their source or --set NAME")
    if arguments.set is None:
        for name in OF_A_SET:
            if getattr(arguments, name) is not None:
                raise RolloutError(f"--{name} needs --set NAME")
        described, scorer = yaml_mappings(arguments.config), scorer_of(arguments)
        loaded = joined([load_checked(source_from(each), scorer=scorer) for each in described])
        settings = described[0] if len(described) == 1 else {f"sources.{i}": each for i, each in enumerate(described)}
    else:
        loaded, settings = load_set(arguments)
    summary = f"{len(loaded.problems):,} problems"
    if len(loaded.dropped):
        examples = ", ".join(
            f"{row['problem_id']} ({row['reason']}: {row['answer'][:40]!r})"
            for row in loaded.dropped.head(EXAMPLES).iter_rows(named=True)
        )
        summary = f"{len(loaded.dropped):,} dropped, such as {examples}; {summary}"
    return Output(
        name="problems",
        table=loaded.problems,
        summary=summary,
        params=settings,
        metrics={"dropped_problems": float(len(loaded.dropped))},
    )

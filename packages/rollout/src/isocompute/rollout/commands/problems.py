"""``problems`` and ``split``: make a problems table from a source or a named set, and select from one."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import RolloutError
from ..problems.loading import Loaded, joined, load_checked
from ..problems.named import NAMED, named_set
from ..problems.sources import source_from
from ..scoring.evaluation import DifficultySplit, inside, split
from .output import SOURCE, Output, add_flags, check, deliver, read
from .settings import add_scoring, scorer_of, yaml_mappings

EXAMPLES = 3
"""Number of dropped problems to name."""
OF_A_SET = ("folder", "revision", "train", "validation")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    problems = commands.add_parser(
        "problems",
        help="make a problems table from a YAML or JSON description, or from a set known by name",
        epilog="example: isocompute-rollout problems source.yaml --out problems.parquet",
    )
    problems.add_argument("config", type=Path, nargs="?", help="a source (kind and its settings), or a list of them")
    add_set_flags(problems)
    problems.add_argument("--train", type=int, metavar="N", help="training problems of a training set")
    problems.add_argument("--validation", type=int, metavar="N", help="validation problems of a training set")
    add_scoring(problems)
    add_flags(problems)
    problems.set_defaults(run=run)
    command = commands.add_parser(
        "split",
        help="choose the problems of an interval of pass rates",
        description="Choose the problems of an interval of pass rates: --interval 0 0 --min-samples 128 are extremely "
        "hard ones (pass@128 = 0), --interval 0.9 1 very easy ones.",
        epilog="example: isocompute-rollout split measured.parquet --interval 0.1 0.9 --out set.parquet",
    )
    command.add_argument("problems", help=SOURCE)
    command.add_argument(
        "--interval",
        type=float,
        nargs=2,
        required=True,
        metavar=("LOWEST", "HIGHEST"),
        help="pass rates of the problems taken, both ends included",
    )
    command.add_argument(
        "--min-samples", type=int, default=1, metavar="M", help="only problems measured with at least M responses"
    )
    command.add_argument("--train", type=int, metavar="N", help="training problems (without it all of the interval)")
    command.add_argument("--validation", type=int, default=300, metavar="N", help="validation problems (default 300)")
    add_flags(command)
    command.set_defaults(run=run_split)


def add_set_flags(command: argparse.ArgumentParser) -> None:
    """Add the flags that name a set."""
    command.add_argument("--set", metavar="NAME", help=f"a set known by name: {', '.join(NAMED)}")
    command.add_argument("--folder", metavar="FOLDER", help="a copy of the set's dataset, where there is no hub")
    command.add_argument("--revision", metavar="COMMIT", help="another commit, branch or tag of the set's dataset")


def load_set(arguments: argparse.Namespace) -> tuple[Loaded, dict[str, Any]]:
    """Load the set that the flags name, and describe where it is from."""
    source = named_set(arguments.set, **{name: getattr(arguments, name, None) for name in OF_A_SET})
    return load_checked(source, scorer=scorer_of(arguments)), {"set": source.title, "source": source.name}


def refuse_without_set(arguments: argparse.Namespace) -> None:
    """Refuse flags of a set if none is named."""
    for name in OF_A_SET:
        if arguments.set is None and getattr(arguments, name, None) is not None:
            raise RolloutError(f"--{name} needs --set NAME")


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Make the table and report how many problems it has and which were dropped."""
    check(arguments)
    if (arguments.config is None) == (arguments.set is None):
        raise RolloutError("problems needs either a description of their source or --set NAME")
    refuse_without_set(arguments)
    if arguments.set is None:
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
    output = Output(
        name="problems",
        table=loaded.problems,
        summary=summary,
        params=settings,
        metrics={"dropped_problems": float(len(loaded.dropped))},
    )
    yield from deliver(arguments, output)


def run_split(arguments: argparse.Namespace) -> Iterable[str]:
    """Select the problems and report how many there are."""
    check(arguments)
    source = read(arguments.problems, "problems")
    if "pass_rate" not in source.table.columns:
        raise RolloutError(f"{arguments.problems}: has no pass rates; add them with `difficulty` first")
    lowest, highest = arguments.interval
    params = {"lowest": lowest, "highest": highest, "min_samples": arguments.min_samples}
    if arguments.train is None:
        chosen = inside(source.table, lowest=lowest, highest=highest, min_samples=arguments.min_samples)
        if chosen.is_empty():
            raise RolloutError(
                f"{arguments.problems}: none of its {len(source.table)} problems has a pass rate from {lowest:g} to "
                f"{highest:g}"
            )
    else:
        sides = {"train": arguments.train, "validation": arguments.validation}
        wanted = DifficultySplit(name=arguments.out.stem, lowest=lowest, highest=highest, **sides)
        chosen = split(source.table, wanted, min_samples=arguments.min_samples)
        params |= sides
    summary = f"{len(chosen):,} problems"
    output = Output(name="problems", table=chosen, summary=summary, sources={"problems": source}, params=params)
    yield from deliver(arguments, output)

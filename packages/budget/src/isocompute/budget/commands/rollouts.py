"""``rollouts``: the responses that a trainer wrote to files, as tables that ``waste`` reads."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from ..contract import tables
from ..contract.files import atomic_write
from ..errors import BudgetError
from ..trainers import TRAINERS
from ..trainers.rollout_files import rates, read_responses


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "rollouts",
        help="responses that a trainer wrote to files, as tables",
        description="TRL's completions (log_completions) or veRL's rollouts (trainer.rollout_data_dir) as a table of "
        "responses, which waste reads, and where rewards are 0 and 1 as pass rates of problems.",
    )
    parser.add_argument("trainer", choices=[name for name, known in TRAINERS.items() if known.rollouts])
    parser.add_argument("folder", type=Path, help="the folder of the files")
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="for rollouts and pass_rates.parquet")
    parser.add_argument("--metric", default="", metavar="COLUMN", help="column of the reward, where there are several")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Write the tables, and say what they hold.

    Raises:
        BudgetError: There are no such files, or their reward is not known.
    """
    files = TRAINERS[arguments.trainer].rollouts
    assert files is not None
    found = read_responses(arguments.folder, files, metric=arguments.metric)
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "rollouts.parquet"
    with atomic_write(path, error=BudgetError) as stream:
        found.write_parquet(stream)
    groups = found.group_by("step", "problem_id").len()["len"].to_list()
    problems, steps = (found[column].n_unique() for column in ("problem_id", "step"))
    yield (
        f"{len(found):,} responses to {problems:,} problems in {steps:,} steps, groups of {min(groups)} to "
        f"{max(groups)}, in {path}"
    )
    shares = rates(found)
    if shares is not None:
        yield f"pass rates in {tables.write(shares, 'pass_rates', arguments.out / 'pass_rates.parquet')}"
    if files.note:
        yield f"note: {files.note}"
    yield "note: tokens are not in these files, so there is no ledger of them"
    yield f"what was wasted: isocompute-budget waste {path}"

"""``rollouts``: the responses that a trainer wrote to files, as tables that ``waste`` reads."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from ..contract import tables
from ..contract.files import atomic_write
from ..errors import BudgetError
from ..trainers import TRAINERS
from ..trainers.rollout_files import rates, read_responses, tokenizer


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "rollouts",
        help="responses that a trainer wrote to files, as tables",
        description="TRL's completions (log_completions) or veRL's rollouts (trainer.rollout_data_dir) as a table of "
        "responses, which waste reads, where tokens are known as a ledger, and where rewards are 0 and 1 as pass rates "
        "of problems. Each folder that holds such files is a run.",
    )
    parser.add_argument("trainer", choices=[name for name, known in TRAINERS.items() if known.rollouts])
    parser.add_argument(
        "places", nargs="+", type=Path, metavar="PATH", help="files, or folders with files at any depth"
    )
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="for the tables")
    parser.add_argument(
        "--tokenizer", type=Path, help="a tokenizer.json or its folder, to count the tokens of files without them"
    )
    parser.add_argument("--metric", default="", metavar="COLUMN", help="column of the reward, where there are several")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Write the tables, and say what they hold.

    Raises:
        BudgetError: There are no such files, or their reward is not known, or there is no such tokenizer.
    """
    files = TRAINERS[arguments.trainer].rollouts
    assert files is not None
    encode = tokenizer(arguments.tokenizer) if arguments.tokenizer else None
    found = read_responses(arguments.places, files, metric=arguments.metric, encode=encode)
    arguments.out.mkdir(parents=True, exist_ok=True)
    path, rows = arguments.out / "rollouts.parquet", found.rows
    with atomic_write(path, error=BudgetError) as stream:
        rows.write_parquet(stream)
    groups = rows.group_by("run_id", "step", "problem_id").len()["len"].to_list()
    problems, runs = rows["problem_id"].n_unique(), rows["run_id"].n_unique()
    steps = rows.select("run_id", "step").n_unique()
    of_runs = f" of {runs:,} runs" if runs > 1 else ""
    yield (
        f"{len(rows):,} responses to {problems:,} problems in {steps:,} steps{of_runs}, groups of {min(groups)} to "
        f"{max(groups)}, in {path}"
    )
    shares = rates(rows)
    if shares is not None:
        yield f"pass rates in {tables.write(shares, 'pass_rates', arguments.out / 'pass_rates.parquet')}"
    if found.ledger is not None:
        place = tables.write(found.ledger, "ledger", arguments.out / "ledger.parquet")
        sums = [int(found.ledger[name].sum()) for name in ("prompt_tokens", "response_tokens")]
        yield f"{sums[0]:,} prompt tokens and {sums[1]:,} response tokens in {place}"
    yield from (f"note: {note}" for note in (*found.notes, *filter(None, [files.note])))
    if found.ledger is None:
        yield "tokens are unknown, so no ledger is written: the files hold texts only; count them with --tokenizer"
    paid = f" --ledger {place}" if found.ledger is not None else ""
    yield f"what was wasted: isocompute-budget waste {path}{paid}"

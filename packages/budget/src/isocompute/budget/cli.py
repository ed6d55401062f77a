"""The console script ``isocompute-budget``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .accounts import GROUPS, Account, account
from .allocation import Allocation
from .counts import COHORTS, TRAINING_COHORTS
from .errors import BudgetError
from .history import COUNTED, History
from .meter import overshoot
from .tables import TableError
from .tracking import TrackingError

if TYPE_CHECKING:
    import polars as pl


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``isocompute-budget``.

    Args:
        argv: The arguments, by default those of the process.

    Returns:
        0, or 2 after an error that was told on stderr.
    """
    arguments = _parser().parse_args(argv)
    try:
        lines = list(arguments.run(arguments))
    except (BudgetError, TableError, TrackingError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        print("\n".join(lines), flush=True)
    except BrokenPipeError:
        # The reader (head, less) has seen enough; keep the interpreter from complaining on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="isocompute-budget",
        description="Count what reinforcement learning on samples generated, and split a budget.",
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    sources = "a ledger, a folder of ledgers, or a ledger table (Parquet, CSV, mlflow:EXPERIMENT, runs:/RUN_ID)"

    show = commands.add_parser(
        "show",
        help="sum ledgers up: canonical + lost = paid",
        description="Sum ledgers up. Canonical is what the surviving attempt of each step generated; lost is "
        "what was generated and lost when a run was killed; their sum is what was paid for.",
    )
    show.add_argument("sources", nargs="+", metavar="LEDGER", help=sources)
    show.add_argument("--by", choices=GROUPS, default="cohort", help="what to sum by (default: %(default)s)")
    show.set_defaults(run=_show)

    export = commands.add_parser(
        "export",
        help="write the ledger table",
        description="Write the canonical charges as the ledger table, and log it to MLflow on request.",
    )
    export.add_argument("sources", nargs="+", metavar="LEDGER", help=sources)
    export.add_argument("--out", type=Path, required=True, metavar="FILE", help="a .parquet or .csv file")
    export.add_argument(
        "--log", metavar="EXPERIMENT", help="also log it to this MLflow experiment (at MLFLOW_TRACKING_URI)"
    )
    export.set_defaults(run=_export)

    allocate = commands.add_parser(
        "allocate",
        help="split a budget into batches and steps",
        description="How many update steps a budget pays for, C = B_p · n · M, and what follows from it.",
    )
    need = allocate.add_argument_group("the budget and the batch")
    need.add_argument("--budget", type=_whole, required=True, metavar="C", help="rollouts for training")
    need.add_argument("--problems-per-batch", type=_whole, required=True, metavar="B_p", help="problems")
    need.add_argument("--rollouts-per-problem", type=_whole, required=True, metavar="n", help="responses")
    allocate.add_argument("--problems", type=_whole, metavar="D", help="training problems, to count epochs")
    rate = allocate.add_argument_group("the learning rate, from one measured at another batch")
    rate.add_argument("--anchor", type=float, metavar="RATE", help="learning rate measured")
    rate.add_argument("--anchor-batch", type=_whole, metavar="B", help="the batch it was measured at, in rollouts")
    rate.add_argument(
        "--scaling",
        choices=("sqrt", "linear", "constant"),
        default="sqrt",
        help="growth with the batch (default: %(default)s)",
    )
    allocate.set_defaults(run=_allocate)
    return parser


def _whole(text: str) -> int:
    """A whole number, also as 2e6 or 24_576."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        return int(number)


_whole.__name__ = "whole number"


def _allocate(arguments: argparse.Namespace) -> Iterable[str]:
    allocation = Allocation.within(
        arguments.budget,
        problems_per_batch=arguments.problems_per_batch,
        rollouts_per_problem=arguments.rollouts_per_problem,
    )
    yield f"budget                {arguments.budget:,} rollouts"
    yield f"problems per batch    {allocation.problems_per_batch:,}"
    yield f"rollouts per problem  {allocation.rollouts_per_problem:,}"
    yield f"batch                 {allocation.batch_rollouts:,} rollouts"
    yield f"update steps          {allocation.update_steps:,}"
    unused = arguments.budget - allocation.rollouts
    yield f"generates             {allocation.rollouts:,} rollouts ({unused:,} unused)"
    if arguments.problems is not None:
        epochs = allocation.epochs(arguments.problems)
        yield f"epochs                {epochs:,.2f} over {arguments.problems:,} problems"
    if (arguments.anchor is None) != (arguments.anchor_batch is None):
        raise BudgetError("a learning rate needs both --anchor and --anchor-batch")
    if arguments.anchor is not None:
        rate = allocation.learning_rate(
            anchor=arguments.anchor, anchor_batch=arguments.anchor_batch, scaling=arguments.scaling
        )
        yield (
            f"learning rate         {rate:.4g} "
            f"({arguments.scaling} scaling from {arguments.anchor:g} at {arguments.anchor_batch:,} rollouts)"
        )


def _show(arguments: argparse.Namespace) -> Iterable[str]:
    found = account(arguments.sources)
    yield from _heading(found)
    yield ""
    sums = found.by(arguments.by)
    if arguments.by == "cohort":
        order = {cohort: place for place, cohort in enumerate(COHORTS)}
        rows = sorted(sums.rows(), key=lambda row: order[row[0]])
        training = [row for row in rows if row[0] in TRAINING_COHORTS]
        rows += [("training", *_column_sums(training, sums)), ("everything", *_column_sums(rows, sums))]
    else:
        rows = [*sums.rows(), ("everything", *_column_sums(sums.rows(), sums))]
    header = [arguments.by]
    for name in COUNTED:
        header += [name.replace("_", " "), "+ lost", "= paid"]
    yield from _aligned(header, rows)


def _heading(found: Account) -> Iterable[str]:
    runs = found.ledger["run_id"].n_unique()
    if len(found.histories) == 1 and not found.tables:
        history = found.histories[0]
        yield f"run {history.run_id}, {_plural(len(history.resumed_from), 'attempt')}"
        yield from _budget(history)
    else:
        attempts = sum(len(history.resumed_from) for history in found.histories)
        yield _plural(runs, "run") + (f", {_plural(attempts, 'attempt')}" if found.histories else "")
    for history in found.histories:
        if history.torn_bytes:
            yield f"{history.where}: a torn record of {history.torn_bytes} bytes at its end is not counted"
    for source in found.tables:
        yield f"{source}: an exported table, which does not hold lost work"


def _budget(history: History) -> Iterable[str]:
    if history.limits is None:
        return
    used = history.totals().used
    over = overshoot(used, history.limits)
    for name in ("rollouts", "response_tokens"):
        limit = getattr(history.limits, name)
        if limit is not None:
            spent, beyond = getattr(used, name), getattr(over, name)
            line = f"used {spent:,} of {limit:,} {name.replace('_', ' ')} ({spent / limit:.1%})"
            yield line + (f", {beyond:,} over" if beyond else "")


def _export(arguments: argparse.Namespace) -> Iterable[str]:
    from . import tables, tracking

    found = account(arguments.sources)
    path = tables.write(found.ledger, "ledger", arguments.out)
    runs = found.ledger["run_id"].n_unique()
    yield f"{path}: {_plural(found.ledger.height, 'row')}, {_plural(runs, 'run')}"
    if arguments.log:
        sums = found.by("run")
        names = [name for name in sums.columns if name != "run_id"]
        run_id = tracking.log_artifacts(
            arguments.log,
            {"ledger": path},
            run_name="ledger",
            metrics={name: float(sums[name].sum()) for name in names},
        )
        yield f"runs:/{run_id}/ledger"


def _column_sums(rows: Iterable[Sequence[int]], like: pl.DataFrame) -> list[int]:
    sums = [0] * (like.width - 1)
    for row in rows:
        sums = [total + value for total, value in zip(sums, row[1:], strict=True)]
    return sums


def _aligned(header: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterable[str]:
    cells = [list(header)]
    cells += [[str(row[0]), *(f"{value:,}" for value in row[1:])] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"

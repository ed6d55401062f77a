"""``show``: sum up what ledgers hold."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import asdict
from math import fsum
from typing import Any

from ..contract.command_line import new_file
from ..errors import plural
from ..ledger.counts import COHORTS, TRAINING_COHORTS
from ..ledger.fold import COUNTED
from ..ledger.ledger import GROUPS, Account, History, account
from ..ledger.limits import Standing
from .text import aligned_table, write_json


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    show = commands.add_parser(
        "show",
        help="sum ledgers up: canonical + lost = paid",
        description="Sum ledgers up. Canonical is what the surviving attempt of each step generated; lost is "
        "what was generated and lost when a run was killed; their sum is what was paid for.",
        epilog="example: isocompute-budget show runs --by cohort --attempts",
    )
    said = "a ledger, a folder of ledgers, or a ledger table (Parquet, CSV, mlflow:EXPERIMENT, runs:/RUN_ID)"
    show.add_argument("sources", nargs="+", metavar="LEDGER", help=said)
    show.add_argument("--by", choices=GROUPS, default="cohort", help="what to sum by (default: %(default)s)")
    show.add_argument(
        "--attempts", action="store_true", help="also say when and where each attempt began, and what it went on after"
    )
    show.add_argument("--json", type=new_file, metavar="FILE", help="also write the figures")
    show.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Print the sums."""
    total = account(arguments.sources)
    yield from _heading_lines(total)
    yield ""
    if arguments.attempts:
        attempts = [(h.run_id, k, *each.values()) for h in total.histories for k, each in enumerate(_attempts(h), 1)]
        header = ["run", "attempt", "after step", "began", "host", "job"]
        yield from aligned_table(header, [["-" if value is None else value for value in row] for row in attempts])
        yield ""
    sums = total.by(arguments.by)
    rows, totals = sums.rows(), [("everything", *sums.drop(sums.columns[0]).sum().row(0))]
    if arguments.by == "cohort":
        rows = sorted(rows, key=lambda row: COHORTS.index(row[0]))
        training = sums.filter(sums["cohort"].is_in(TRAINING_COHORTS))
        totals = [("training", *training.drop("cohort").sum().row(0)), *totals]
    header = [arguments.by]
    for name in COUNTED:
        header += [name.replace("_", " "), "+ lost", "= paid"]
    yield from aligned_table(header, [*rows, *totals])
    if arguments.json is not None:
        ledgers = [
            {
                "file": history.where,
                "run_id": history.run_id,
                "attempts": _attempts(history),
                "device_hours": history.device_seconds / 3600,
                "limits": None if history.limits is None else asdict(history.limits),
            }
            for history in total.histories
        ]
        document = {"runs": sorted(total.ledger["run_id"].unique()), "ledgers": ledgers, "tables": list(total.tables)}
        by_column = [dict(zip(sums.columns, row, strict=True)) for row in rows]
        write_json({**document, "by": arguments.by, "rows": by_column}, arguments.json)


def _attempts(history: History) -> list[dict[str, Any]]:
    """For each attempt, the step it resumed after, and when and where it began."""
    names = ("resumed_from", "began", "host", "job")
    return [{name: getattr(attempt, name) for name in names} for attempt in history.attempts]


def _heading_lines(total: Account) -> Iterable[str]:
    runs = total.ledger["run_id"].n_unique()
    if len(total.histories) == 1 and not total.tables:
        history = total.histories[0]
        yield f"run {history.run_id}, {plural(len(history.resumed_from), 'attempt')}"
        yield from budget_lines(history)
    else:
        attempts = sum(len(history.resumed_from) for history in total.histories)
        yield plural(runs, "run") + (f", {plural(attempts, 'attempt')}" if total.histories else "")
    hours = fsum(history.device_seconds for history in total.histories) / 3600
    if hours:
        yield f"device-hours {hours:,.2f}, of all attempts"
    for source in total.tables:
        yield f"{source}: a table, which does not hold lost work"


def budget_lines(history: History) -> Iterable[str]:
    """Say how much of each limit in force was spent."""
    if history.limits is None:
        return
    standing = Standing.of(history.limits, history.totals(), history.device_seconds)
    used, lost, limits = standing.used, standing.lost, history.limits
    for name in ("rollouts", "response_tokens"):
        limit = getattr(limits, name)
        if limit is not None:
            said, own, gone = name.replace("_", " "), getattr(used, name), getattr(lost, name)
            paid = own + gone
            line = f"paid {paid:,} of {limit:,} {said} ({paid / limit:.1%}): {own:,} used and {gone:,} lost"
            if limits.counted == "used":
                line = f"paid {paid:,} {said}: {own:,} used, of {limit:,} ({own / limit:.1%}), and {gone:,} lost"
            yield line + _overshoot(getattr(standing.counted, name) - limit, ",")
    of_devices = (limits.device_seconds, standing.device_seconds, ",.0f", "device-seconds")
    for limit, cost, form, unit in (of_devices, (limits.money, standing.money, ",.2f", "in money")):
        if limit is not None:
            yield f"paid {cost:{form}} of {limit:{form}} {unit} ({cost / limit:.1%}){_overshoot(cost - limit, form)}"


def _overshoot(over: float, form: str) -> str:
    return f", {over:{form}} over" if over > 0 else ""

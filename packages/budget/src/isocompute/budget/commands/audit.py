"""``audit``: what a run's settings say, what its log shows, what was paid, and why they differ."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..audit import OF_LEDGER, Audit, audit
from ..ledger.counts import TRAINING_COHORTS
from ..ledger.ledger import History
from ..trainers.registry import trainer
from .text import add_log_arguments, aligned_table, configuration_of, write_json


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "audit",
        help="why a run generated what it did: its settings, its log and its ledger",
        description="Line up, for one run, what its settings say, what its log shows and what its ledger paid for, and "
        "name the mechanism of each difference.",
    )
    parser.add_argument("source", metavar="RUN", help="its log: a folder, a file, runs:/ID or a tracking URI")
    parser.add_argument("--ledger", type=Path, metavar="FILE", help="its ledger, if it has one")
    add_log_arguments(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Print the table, and a sentence for each difference."""
    audited = audit(
        arguments.source,
        arguments.ledger,
        trainer=None if arguments.trainer is None else trainer(arguments.trainer),
        shared=configuration_of(arguments),
        given=dict(arguments.constants),
    )
    rows = _rows(audited)
    yield f"{audited.name}: {audited.trainer.title}"
    yield ""
    header = ["", "settings", "log", *(["ledger"] if audited.history else [])]
    columns = len(header) - 1
    shown = [
        (name, *values[:columns]) for name, *values in rows if any(value is not None for value in values[:columns])
    ]
    yield from aligned_table(header, [["-" if value is None else value for value in row] for row in shown])
    yield ""
    yield from _bridge(audited)
    if audited.without_signal is not None:
        yield f"without signal: {audited.without_signal:.1%} of groups, whose rewards are all equal"
    if audited.history is not None and (paid := _paid(audited.history)):
        lost = audited.history.totals().lost_training.rollouts
        yield f"lost in restarts: {lost / paid:.1%} of the {paid:,} rollouts paid for"
    yield from (f"note: {note}" for note in audited.notes)
    if arguments.json is not None:
        write_json(_document(audited, rows), arguments.json)


def _rows(audited: Audit) -> list[tuple[str, int | None, int | None, int | None]]:
    """Figures by name: of the settings, the log and the ledger."""
    batching, history = audited.batching, audited.history
    per_step = None if not audited.steps else round(audited.rollouts / audited.steps)
    paid: dict[str, int | None] = {}
    if history is not None:
        totals, steps = history.totals(), history.last_step
        both = totals.paid_training
        others = [cohort for cohort in TRAINING_COHORTS if cohort != "trained"]
        paid = {
            "update steps": steps,
            "rollouts per step": round(totals.used.rollouts / steps) if steps else None,
            "rollouts for training": totals.used.rollouts,
            **{f"  {cohort}": totals.canonical[cohort].rollouts or None for cohort in others},
            "  and lost": totals.lost_training.rollouts,
            "  paid": both.rollouts,
            "response tokens paid": both.response_tokens,
            "rollouts of evaluations": totals.canonical["eval"].rollouts + totals.lost["eval"].rollouts,
        }
    rows = {
        "rollouts per problem": (batching.rollouts_per_problem, None),
        "problems per batch": (batching.problems_per_batch, None),
        "update steps": (batching.update_steps, audited.steps),
        "rollouts per step": (audited.per_step, per_step),
        "rollouts for training": (audited.planned, audited.rollouts),
        **{name: (None, None) for name in paid if name.startswith("  ")},
        "response tokens paid": (None, audited.tokens),
        "rollouts of evaluations": (None, audited.evaluated),
    }
    return [(name, *values, paid.get(name)) for name, values in rows.items()]


def _bridge(audited: Audit) -> Iterable[str]:
    """From B_p · n · M to what was paid for training, one difference after another."""
    if audited.planned is not None:
        yield f"{audited.planned:,} rollouts are B_p · n · M of the settings"
    for difference in audited.differences:
        if difference.mechanism not in OF_LEDGER:
            yield f"{difference.rollouts:+,} {difference.mechanism}: {difference.sentence}"
    error = f" ± {audited.rollouts_error:,}" if audited.rollouts_error else ""
    yield f"{audited.rollouts:,}{error} rollouts were generated for training, by the log"
    for difference in audited.differences:
        if difference.mechanism in OF_LEDGER:
            yield f"{difference.rollouts:+,} {difference.mechanism}: {difference.sentence}"
    if audited.history is not None:
        totals = audited.history.totals()
        yield f"{_paid(audited.history):,} rollouts were paid for training, by the ledger"
        evaluated = totals.canonical["eval"].rollouts + totals.lost["eval"].rollouts
        if evaluated:
            yield f"{evaluated:+,} evaluations: they are paid for, and in no budget of rollouts"
    elif audited.evaluated:
        yield f"{audited.evaluated:+,} evaluations: they are paid for, and in no budget of rollouts"


def _paid(history: History) -> int:
    return history.totals().paid_training.rollouts


def _document(audited: Audit, rows: list[tuple[str, int | None, int | None, int | None]]) -> dict[str, Any]:
    return {
        "run": audited.name,
        "trainer": audited.trainer.name,
        "ledger": None if audited.history is None else audited.history.where,
        "figures": {
            name.strip(): {"settings": said, "log": logged, "ledger": paid} for name, said, logged, paid in rows
        },
        "rollouts_error": audited.rollouts_error,
        "without_signal": audited.without_signal,
        "differences": [asdict(difference) for difference in audited.differences],
        "notes": list(audited.notes),
    }

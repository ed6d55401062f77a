"""``audit``: compare a run's settings, log and ledger: the three counts, and what explains each difference."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..contract.command_line import new_file
from ..errors import BudgetError
from ..ledger.counts import TRAINING_COHORTS
from ..ledger.fold import Totals
from ..ledger.ledger import History
from ..trainers.counting import StepCounts
from ..trainers.doctor import progress_of, reader_of, settings_of
from ..trainers.live import LiveLog
from ..trainers.registry import trainer as registered
from ..trainers.settings import Batching, configuration, product
from ..trainers.trainer import Trainer
from .text import add_log_arguments, aligned_table, only_log, write_json

MECHANISMS = {
    "steps not taken": "the settings allow {planned:,} update steps, and the log ends after {steps:,}",
    "several passes": "B_p · n counts a response in each of the {passes} passes that train on it; it is generated once",
    "rounding": "B_p is not whole, and was rounded",
    "whole batches": "a batch that several steps share is generated whole, also where the run ends within them",
    "short epochs": "an epoch ends with a whole batch, so that its last step trains on less, and generates less",
    "remax baselines": "remax samples a greedy response to each problem as a baseline, in addition to n",
    "refill": "groups were discarded (filtered, stale, failed) and others generated in their place; all were paid for",
    "resume": "the trainer generated anew what it had of a batch when it went on from a checkpoint within it",
    "uncharged steps": "the ledger ends at step {ledger_steps:,}, and the log goes on to step {steps:,}",
    "unlogged steps": "the ledger goes on to step {ledger_steps:,}, and the log ends after {steps:,}",
    "lost work": "{lost}",
    "failed": "responses failed and were generated again, which the ledger charges and the log does not show",
    "error of the log": "the log leaves open so much, either way",
    "not explained": "no setting, log entry or attempt explains it: check that ledger and log are of one run",
}
"""Explanation of each difference between one figure and the next."""
OF_LEDGER = ("uncharged steps", "unlogged steps", "lost work", "failed", "error of the log", "not explained")
"""Differences between the log and the ledger; the others are between the settings and the log."""
ZERO_VARIANCE = re.compile(r"(?:train/)?frac_reward_zero_std")
"""TRL's metric for groups whose rewards are all equal, which have no advantages and no gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A difference between two figures of a run, and its reason."""

    mechanism: str
    rollouts: int
    sentence: str


class Audit:
    """Three accounts of one run, each None if unknown; in rollouts unless stated otherwise.

    Attributes:
        evaluated: Rollouts of the logged evaluations.
        without_signal: Share of groups whose rewards are all equal, averaged over the entries that log it.
        differences: Steps from B_p · n · M over the log to what was paid for training; they add up.
    """

    def __init__(
        self,
        source: str,
        ledger: Path | None = None,
        *,
        trainer: Trainer | None = None,
        shared: Mapping[str, Any] | None = None,
        given: Mapping[str, str] | None = None,
    ) -> None:
        """Compare what is known of one run.

        Args:
            source: Its log, see ``LiveLog``.
            trainer: The trainer that logged it, if its metrics do not tell.
            shared: Its configuration, with dotted keys, if the log lacks it.
        """
        shared, given = shared or {}, given or {}
        live = LiveLog(source, trainer, step_column=given.get("step_column"))
        log = only_log(live)
        if log is None or live.trainer is None:
            raise BudgetError(f"{source}: no run of a trainer that is known is logged there")
        progressed, settings, batching = progress_of(live.trainer, log, shared, given)
        if not progressed.points:
            raise BudgetError(f"{log.name}: no step of training is logged")
        self.name, self.trainer, self.batching, self.last = log.name, live.trainer, batching, progressed.points[-1]
        self.per_step = product(batching.problems_per_batch, batching.rollouts_per_problem)
        self.planned = product(self.per_step, batching.update_steps)
        self.evaluated: int | None = None
        with suppress(BudgetError):
            anew = settings_of(log, shared, given)
            evaluations = reader_of(live.trainer).evaluations(log, anew, live.trainer.parse(anew))
            questions = settings.whole("questions")
            if all(questions or e.questions for e in evaluations):
                validated = [e for e in evaluations if e.split == "validation"]
                self.evaluated = sum((questions or e.questions or 0) * e.samples for e in validated)
        self.history = None if ledger is None else History.read(ledger)
        self.totals = None if self.history is None else self.history.totals()
        shares = [metrics[key] for _, metrics in log.rows for key in metrics if ZERO_VARIANCE.fullmatch(key)]
        self.without_signal = sum(shares) / len(shares) if shares else None
        self.differences = _differences(batching, progressed, self.history)
        self.notes = _notes(batching, progressed, settings.notes, log.notes)


def _differences(batching: Batching, progressed: StepCounts, history: History | None) -> list[Difference]:
    """List the differences from B_p · n · M to the log, and from the log to the ledger."""
    last = progressed.points[-1]
    words: dict[str, Any] = {"steps": last.step, "planned": batching.update_steps or 0}
    changes: dict[str, int] = {}
    if batching.problems_per_batch and batching.rollouts_per_problem:
        per_step = batching.problems_per_batch * batching.rollouts_per_problem
        if batching.update_steps:
            changes["steps not taken"] = per_step * (last.step - batching.update_steps)
        passes = words["passes"] = round(per_step * last.step / progressed.plain) if progressed.plain else 1
        changes["rounding"] = progressed.plain * passes - per_step * last.step
        changes["several passes"] = progressed.plain * (1 - passes)
    changes |= progressed.more
    if history is not None:
        changes |= _ledger_changes(progressed, history, words)
    return [
        Difference(mechanism=name, rollouts=rollouts, sentence=MECHANISMS[name].format(**words))
        for name, rollouts in changes.items()
        if rollouts
    ]


def _ledger_changes(progressed: StepCounts, history: History, words: dict[str, Any]) -> dict[str, int]:
    """Return the changes from the log's count to what was paid for."""
    last, totals, table = progressed.points[-1], history.totals(), history.table()
    words |= {"ledger_steps": history.last_step, "lost": _lost(history)}
    later = table.filter(table["cohort"].is_in(TRAINING_COHORTS) & (table["step"] > last.step))
    unlogged = int(later["rollouts"].sum())
    uncharged = last.rollouts - max((p.rollouts for p in progressed.points if p.step <= history.last_step), default=0)
    rest = totals.paid_training.rollouts - last.rollouts - unlogged + uncharged
    lost = min(totals.lost_training.rollouts, max(rest, 0))
    rest -= lost
    failed = min(totals.canonical["failed"].rollouts, max(rest, 0))
    rest -= failed
    within = 0 < abs(rest) <= last.rollouts_error
    return {
        "uncharged steps": -uncharged,
        "unlogged steps": unlogged,
        "lost work": lost,
        "failed": failed,
        "error of the log" if within else "not explained": rest,
    }


def _lost(history: History) -> str:
    """Say why each attempt that lost work lost it."""
    frame = history.lost_work()
    frame = frame.filter(frame["cohort"].is_in(TRAINING_COHORTS))
    said = []
    for attempt in range(1, len(history.resumed_from) + 1):
        steps = sorted({int(step) for step in frame.filter(frame["attempt"] == attempt)["step"]})
        if not steps:
            continue
        span = f"of steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"of step {steps[0]}"
        later = enumerate(history.resumed_from[attempt:], attempt + 1)
        resumed = next(((number, step) for number, step in later if step < steps[-1]), None)
        said.append(
            f"attempt {attempt} ended before it used what it generated {span}"
            if resumed is None
            else f"attempt {attempt} lost what it generated {span}, since attempt {resumed[0]} went on after step "
            f"{resumed[1]}"
        )
    return "; ".join(said)


def _notes(batching: Batching, progressed: StepCounts, *of_log: Any) -> list[str]:
    points = progressed.points
    interval = max((b.logged - a.logged for a, b in pairwise(points)), default=1)
    notes = [note for notes in of_log for note in notes]
    if interval > 1:
        notes.append(f"the log has an entry every {interval} steps: what was generated after the last one is not in it")
    if progressed.ahead:
        notes.append(f"warm-up: {progressed.ahead:,} rollouts are started ahead of their step, and no log counts them")
    return list(dict.fromkeys([*notes, *batching.inconsistent]))


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "audit",
        help="why a run generated what it did: its settings, its log and its ledger",
        description="Line up, for one run, what its settings say, what its log shows and what its ledger paid for, and "
        "name the mechanism of each difference.",
        epilog="example: isocompute-budget audit runs/grpo --ledger runs/grpo/ledger.sqlite",
    )
    parser.add_argument("source", metavar="RUN", help="its log: a folder, a file, runs:/ID or a tracking URI")
    parser.add_argument("--ledger", type=Path, metavar="FILE", help="its ledger, if it has one")
    add_log_arguments(parser)
    parser.add_argument("--json", type=new_file, metavar="FILE", help="also write the figures")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Print the table, and a sentence for each difference."""
    audited = Audit(
        arguments.source,
        arguments.ledger,
        trainer=None if arguments.trainer is None else registered(arguments.trainer),
        shared=configuration(arguments.config),
        given=dict(arguments.constants),
    )
    rows = _rows(audited)
    yield f"{audited.name}: {audited.trainer.title}"
    yield ""
    header = ["", "settings", "log", *(["ledger"] if audited.history else [])]
    shown = [row[: len(header)] for row in rows if any(value is not None for value in row[1 : len(header)])]
    yield from aligned_table(header, [["-" if value is None else value for value in row] for row in shown])
    yield ""
    yield from _bridge(audited)
    if audited.without_signal is not None:
        yield f"without signal: {audited.without_signal:.1%} of groups, whose rewards are all equal"
    if audited.totals is not None and (paid := audited.totals.paid_training.rollouts):
        lost = audited.totals.lost_training.rollouts
        yield f"lost in restarts: {lost / paid:.1%} of the {paid:,} rollouts paid for"
    yield from (f"note: {note}" for note in audited.notes)
    if arguments.json is not None:
        document = {
            "run": audited.name,
            "trainer": audited.trainer.name,
            "ledger": None if audited.history is None else audited.history.where,
            "figures": {name.strip(): dict(zip(("settings", "log", "ledger"), of, strict=True)) for name, *of in rows},
            "rollouts_error": audited.last.rollouts_error,
            "without_signal": audited.without_signal,
            "differences": [asdict(difference) for difference in audited.differences],
            "notes": audited.notes,
        }
        write_json(document, arguments.json)


def _rows(audited: Audit) -> list[tuple[str, int | None, int | None, int | None]]:
    """Figures by name: from the settings, the log and the ledger."""
    batching, history, totals = audited.batching, audited.history, audited.totals
    per_step = None if not audited.last.step else round(audited.last.rollouts / audited.last.step)
    paid: dict[str, int | None] = {}
    if history is not None and totals is not None:
        steps = history.last_step
        others = [cohort for cohort in TRAINING_COHORTS if cohort != "trained"]
        paid = {
            "update steps": steps,
            "rollouts per step": round(totals.used.rollouts / steps) if steps else None,
            "rollouts for training": totals.used.rollouts,
            **{f"  {cohort}": totals.canonical[cohort].rollouts or None for cohort in others},
            "  and lost": totals.lost_training.rollouts,
            "  paid": totals.paid_training.rollouts,
            "response tokens paid": totals.paid_training.response_tokens,
            "rollouts of evaluations": _evaluated(totals),
        }
    rows = {
        "rollouts per problem": (batching.rollouts_per_problem, None),
        "problems per batch": (batching.problems_per_batch, None),
        "update steps": (batching.update_steps, audited.last.step),
        "rollouts per step": (audited.per_step, per_step),
        "rollouts for training": (audited.planned, audited.last.rollouts),
        **{name: (None, None) for name in paid if name.startswith("  ")},
        "response tokens paid": (None, audited.last.tokens),
        "rollouts of evaluations": (None, audited.evaluated),
    }
    return [(name, *values, paid.get(name)) for name, values in rows.items()]


def _bridge(audited: Audit) -> Iterable[str]:
    """The differences from B_p · n · M to what was paid for training, one after another."""
    if audited.planned is not None:
        yield f"{audited.planned:,} rollouts are B_p · n · M of the settings"
    lines = {d.mechanism: f"{d.rollouts:+,} {d.mechanism}: {d.sentence}" for d in audited.differences}
    yield from (line for mechanism, line in lines.items() if mechanism not in OF_LEDGER)
    error = f" ± {audited.last.rollouts_error:,}" if audited.last.rollouts_error else ""
    yield f"{audited.last.rollouts:,}{error} rollouts were generated for training, by the log"
    yield from (line for mechanism, line in lines.items() if mechanism in OF_LEDGER)
    evaluated = audited.evaluated
    if audited.totals is not None:
        yield f"{audited.totals.paid_training.rollouts:,} rollouts were paid for training, by the ledger"
        evaluated = _evaluated(audited.totals)
    if evaluated:
        yield f"{evaluated:+,} evaluations: they are paid for, and in no budget of rollouts"


def _evaluated(totals: Totals) -> int:
    return totals.canonical["eval"].rollouts + totals.lost["eval"].rollouts

"""``doctor``: find runs, report what is understood of each and what is missing, and write tables to fit."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from ..contract import tables
from ..contract.files import write_text
from ..errors import BudgetError, plural
from ..planning.diagnosis import Course, diagnose
from ..trainers.course import plain_course
from ..trainers.doctor import Given, Patient, Report, examine, read_table, to_be_filled_in, written
from ..trainers.registry import TRAINERS
from ..trainers.settings import configuration
from .text import add_log_arguments

READ = [known.title for known in TRAINERS.values() if known.logs]
"""Titles of the trainers with readable logs."""
RUNS = "runs.csv"
PARTLY = 3
"""Exit status if something that looks like a log is not in the table."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "doctor",
        help="find trainers' runs, what is missing to fit them, and what became of one",
        description=f"Find runs of {', '.join(READ[:-1])} and {READ[-1]} below folders: what is understood of each, "
        "all that is missing, and a table that isocompute-frontier fits as it is; of one run also what became of it.",
        epilog="Exit status: 0 where everything that looks like a log was read and is in the table, 3 where some of it "
        "is not, 1 where nothing is, 2 after an error.\n"
        "example: isocompute-budget doctor runs --out read",
    )
    parser.add_argument("path", nargs="+", metavar="PATH", help="folders, files, mlflow:EXPERIMENT, a tracking URI")
    said = f"write evals.parquet and manifest.json there, and {RUNS} to be filled in where something is missing"
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=said)
    add_log_arguments(parser, of_runs=True)
    parser.add_argument("--runs", type=Path, metavar="FILE", help=f"settings of each run, a row each: {RUNS}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write what is understood of each run here")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Print what is understood and what is missing, and write the table."""
    if arguments.out is not None and arguments.out.exists() and not arguments.out.is_dir():
        raise BudgetError(f"--out {arguments.out}: is a file, and no folder")
    given = Given(
        table={} if arguments.runs is None else read_table(arguments.runs),
        every={name: value for of, name, value in arguments.constants if not of},
        runs=[said for said in arguments.constants if said[0]],
        file=str(arguments.runs),
    )
    report = examine(arguments.path, given, trainer=arguments.trainer, shared=configuration(arguments.config))
    if arguments.json is not None:
        write_text(arguments.json, _manifest(report), error=BudgetError)
    patients, out = report.patients, arguments.out
    if not patients and out is None and arguments.trainer is None and len(arguments.path) == 1:
        with suppress(BudgetError):
            course = plain_course(arguments.path[0])
            yield f"{arguments.path[0]}: steps and rewards, of no trainer that is known: there is no table to fit"
            yield from _became(course)
            return
    for patient in patients:
        yield from _lines(patient)
        if patient.course is not None and (patient.course.training or patient.course.evaluations):
            yield from _became(patient.course)
    yield from (f"{unread.source}: NOT READ: {unread.reason}" for unread in report.unread)
    yield from _missing(patients)
    if out is not None and any(patient.missing for patient in patients):
        yield from _to_be_filled_in(patients, out / RUNS, arguments.runs)
    if not any(patient.rows for patient in patients):
        arguments.exit_status = 1
        yield "no run is understood completely, so there is no table to write"
    elif out is not None:
        yield from _written(report, out)
    lost = _lost(report)
    if lost:
        arguments.exit_status = arguments.exit_status if "exit_status" in arguments else PARTLY
        yield lost


def _became(course: Course) -> Iterable[str]:
    """Say how a run went."""
    found = diagnose(course)
    yield f"what became of it: {found.verdict}"
    width = max(map(len, found.findings))
    yield from (f"  {topic:{width}}  {said}" for topic, said in found.findings.items())
    yield f"  change first: {found.change}"


def _written(report: Report, out: Path) -> Iterable[str]:
    """Write the table and its provenance."""
    frame, notes = written(report.patients)
    path = tables.write(frame, "evals", out / "evals.parquet")
    write_text(out / "manifest.json", _manifest(report), error=BudgetError)
    yield from (f"note: {note}" for note in notes)
    yield f"{len(frame):,} evaluations of {plural(frame['run_id'].n_unique(), 'run')} in {path}"
    rates = frame["learning_rate"].drop_nulls().n_unique()
    sets = frame["problem_set"].unique().sort().to_list()
    more = " --group learning_rate" if rates > 1 else ""
    more += f" --problem-set {sets[0]}" if len(sets) > 1 else ""
    yield f"fit them: isocompute-frontier fit {out} --out fitted{more}"


def _lost(report: Report) -> str:
    """The line that counts what is not in the table; empty if nothing is missing."""
    without, unread = sum(not patient.rows for patient in report.patients), len(report.unread)
    counts = (without, len(report.patients), "run", "understood"), (unread, report.files, "file", "read")
    return " and ".join(
        f"{lacking:,} of {plural(of, noun)} {'was' if lacking == 1 else 'were'} not {what}"
        for lacking, of, noun, what in counts
        if lacking
    )


def _to_be_filled_in(patients: Sequence[Patient], path: Path, given: Path | None) -> Iterable[str]:
    """Write a table of the runs with blank cells for missing values, unless it would replace an edited one."""
    text = to_be_filled_in(patients)
    read = given is not None and path.exists() and given.samefile(path)
    if path.exists() and not read and path.read_text("utf-8", "replace") != text:
        yield f"{path} is there and stays as it is: give it with --runs {path}, or remove it to have it written anew"
        return
    write_text(path, text, error=BudgetError)
    yield f"to be filled in: {path}, then --runs {path}"


def _lines(patient: Patient) -> Iterable[str]:
    yield f"{patient.name}: {patient.trainer.title}"
    if patient.also:
        yield f"  also in: {', '.join(patient.also)}"
    if patient.rows:
        first, last = patient.rows[0], patient.rows[-1]
        rate = first["learning_rate"]
        error = max(row["rollouts_error"] for row in patient.rows)
        what = "training rewards" if patient.training else "evaluations"
        yield (
            f"  n = {first['rollouts_per_problem']}, B_p = {first['problems_per_batch']}, seed {first['seed']}, "
            f"learning rate {'unknown' if rate is None else f'{rate:g}'}; {len(patient.rows):,} {what} "
            f"of {first['questions']:,} problems, {plural(first['samples'], 'response')} each"
        )
        yield (
            f"  {last['rollouts']:,} rollouts{f' ± {error:,}' if error else ''} and {last['tokens']:,} response tokens "
            f"in {last['step']:,} steps, by its {last['count_source']}"
        )
    if patient.problem:
        yield f"  NOT READ: {patient.problem}"
    if patient.missing:
        yield f"  missing: {', '.join(patient.missing)}"
    yield from (f"  note: {note}" for note in patient.notes)


def _missing(patients: Sequence[Patient]) -> Iterable[str]:
    """One table of everything missing from any run."""
    names = dict.fromkeys(name for patient in patients for name in patient.missing)
    if not names:
        return
    each = " (where runs differ in it, of each: --set RUN:NAME=VALUE, by its name or the end of it)"
    yield f"missing{each if len(patients) > 1 else ''}:"
    width = max(map(len, names))
    for name in names:
        lacking = [p for p in patients if name in p.missing]
        choices = next((p.missing[name] for p in lacking if p.missing[name]), "VALUE")
        yield f"  {name:{width}}  {len(lacking):,} of {len(patients):,} runs  --set {name}={choices}"
    if any(name.partition(".")[0] == "questions" for name in names):
        yield "questions: how many problems each evaluation asks, however many responses each gets"


def _manifest(report: Report) -> str:
    """Every run, the evidence for its figures, and what was not read, as JSON."""
    document = {
        "runs": [
            {
                "source": p.name,
                "also": list(p.also),
                "trainer": p.trainer.name,
                "run_id": p.rows[0]["run_id"] if p.rows else None,
                "evaluations": len(p.rows),
                "training_reward": p.training,
                "missing": list(p.missing),
                "problem": p.problem or None,
                "notes": list(p.notes),
                "became": None if p.course is None else asdict(diagnose(p.course)),
            }
            for p in report.patients
        ],
        "files": report.files,
        "unread": [{"source": u.source, "reason": u.reason} for u in report.unread],
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"

"""``doctor``: find runs, say what is understood of each and what is missing of all, and write tables to fit."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..contract import tables
from ..trainers.doctor import Patient, examine, written
from ..trainers.evals import plain
from ..trainers.registry import TRAINERS
from ..trainers.settings import load
from .text import add_constants, write_json


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "doctor",
        help="find trainers' runs, and what is missing to fit them",
        description="Find runs of TRL, veRL, OpenRLHF and prime-rl below folders: what is understood of each, all that "
        "is missing, and a table that isocompute-frontier fits as it is.",
    )
    parser.add_argument("path", nargs="+", metavar="PATH", help="folders, files, mlflow:EXPERIMENT or a tracking URI")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write evals.parquet and manifest.json there")
    parser.add_argument(
        "--trainer",
        choices=[name for name, known in TRAINERS.items() if known.logs],
        help="whose logs they are (default: as their metrics say)",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="the runs' configuration, where the logs lack it")
    add_constants(parser, "what is missing, for all runs")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Print what is understood and what is missing, and write the table.

    Raises:
        BudgetError: There is no run.
    """
    patients = examine(
        arguments.path,
        dict(arguments.constants),
        trainer=arguments.trainer,
        shared={} if arguments.config is None else plain(load(arguments.config)),
    )
    for patient in patients:
        yield from _lines(patient)
    yield from _missing(patients)
    if not any(patient.rows for patient in patients):
        arguments.exit_status = 1
        yield "no run is understood completely, so there is no table to write"
        return
    if arguments.out is None:
        return
    frame, notes = written(patients)
    path = tables.write(frame, "evals", arguments.out / "evals.parquet")
    write_json(_manifest(patients), arguments.out / "manifest.json")
    yield from (f"note: {note}" for note in notes)
    runs = frame["run_id"].n_unique()
    yield f"{len(frame):,} evaluations of {runs:,} run{'s' if runs > 1 else ''} in {path}"
    rates = frame["learning_rate"].drop_nulls().n_unique()
    sets = frame["problem_set"].unique().sort().to_list()
    more = " --group learning_rate" if rates > 1 else ""
    more += f" --problem-set {sets[0]}" if len(sets) > 1 else ""
    yield f"fit them: isocompute-frontier fit {arguments.out} --out fitted{more}"


def _lines(patient: Patient) -> Iterable[str]:
    yield f"{patient.name}: {patient.trainer.title}"
    if patient.rows:
        first, last = patient.rows[0], patient.rows[-1]
        rate = first["learning_rate"]
        error = max(row["rollouts_error"] for row in patient.rows)
        what = "training rewards" if patient.training else "evaluations"
        yield (
            f"  n = {first['rollouts_per_problem']}, B_p = {first['problems_per_batch']}, seed {first['seed']}, "
            f"learning rate {'unknown' if rate is None else f'{rate:g}'}; {len(patient.rows):,} {what} "
            f"of {first['questions']:,} problems, {first['samples']} responses each"
        )
        yield (
            f"  {last['rollouts']:,} rollouts{f' ± {error:,}' if error else ''} and {last['tokens']:,} response tokens "
            f"in {last['step']:,} steps, by its {last['count_source']}"
        )
    if patient.problem:
        yield f"  NOT READ: {patient.problem}"
    if patient.missing:
        yield f"  missing: {', '.join(patient.missing)}"
    yield from (f"  note: {note}" for note in patient.notes if patient.rows)


def _missing(patients: Sequence[Patient]) -> Iterable[str]:
    """One table of all that is missing of all runs."""
    names = dict.fromkeys(name for patient in patients for name in patient.missing)
    if not names:
        return
    yield "missing, for all runs:"
    width = max(map(len, names))
    for name in names:
        lacking = [p for p in patients if name in p.missing]
        choices = next((p.missing[name] for p in lacking if p.missing[name]), "VALUE")
        yield f"  {name:{width}}  {len(lacking):,} of {len(patients):,} runs  --set {name}={choices}"


def _manifest(patients: Sequence[Patient]) -> dict[str, object]:
    """Every run, and what its figures rest on."""
    return {
        "runs": [
            {
                "source": p.name,
                "trainer": p.trainer.name,
                "run_id": p.rows[0]["run_id"] if p.rows else None,
                "evaluations": len(p.rows),
                "training_reward": p.training,
                "missing": list(p.missing),
                "problem": p.problem or None,
                "notes": list(p.notes),
            }
            for p in patients
        ]
    }

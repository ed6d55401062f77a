"""Train a cell by a command in its own process, and make its tables from its ledger and its trainer's log."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
from isocompute.budget import TRAINING_COHORTS, Allocation, History
from isocompute.budget.trainers.doctor import ingest
from isocompute.budget.trainers.registry import convert, trainer
from isocompute.budget.trainers.settings import Configuration, RunPlan, render
from isocompute.learner import EvaluationRecord
from isocompute.rollout.contract import tables
from isocompute.rollout.contract.files import atomic_write

from ..errors import ExperimentError
from ..settings.sections import PLACEHOLDER, CommandTrainer
from . import cell_folder, watchdog
from .cell_folder import CHECKPOINTS, LEDGER, SAID, Spool, local_path
from .cells import READ_BY_A_CELL, CommandCell, CommandSurroundings

POLL_SECONDS = 0.5
SHOWN_LINES, LONGEST_LINE = 3, 300
"""Limits on the number and length of a failed command's last lines that are shown."""
SETTINGS = "settings.json"
"""File with the settings given to the trainer, which its log must agree with."""


def train(
    bases: Mapping[str, str], cell: CommandCell, problems: pl.DataFrame, home: Path, _start: Path | None = None
) -> None:
    """Run a cell's command, which continues from its own checkpoints, and turn its log into tables."""
    if cell_folder.finished(cell, home):
        return
    check_surroundings(cell, project_of(home))
    own = write_problems(problems, home / "problems")
    model = local_path(bases[cell.origin.base])
    values = values_of(cell, home, model=model, problems=own)
    if _run(command_of(cell, values), home):
        questions = int((problems["split"] == "validation").sum())
        logs = filled(trainer_of(cell).logs, values)
        write_tables(cell, home, configuration_of(cell).settings, logs=logs, questions=questions)


def _run(words: Sequence[str], home: Path) -> bool:
    """Run a command to its end; False if it was asked to stop before."""
    with (home / SAID).open("ab") as said:
        began = said.tell()
        process = subprocess.Popen(
            [sys.executable, str(watchdog.__file__), *words],
            cwd=project_of(home),
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=said,
            env=_environment(),
        )
    assert process.stdin is not None
    stopped = False
    with process.stdin as other_end:
        while process.poll() is None:
            if not stopped and cell_folder.stop_requested(home):
                stopped = True
                with suppress(BrokenPipeError):
                    other_end.write(b"stop")
                    other_end.close()
            time.sleep(POLL_SECONDS)
    if process.returncode and not stopped:
        raise ExperimentError(
            f"its command ended with exit code {process.returncode}; what it printed is in {home / SAID}, last: "
            f"{_last_lines(home / SAID, began)}"
        )
    return not stopped


def _last_lines(path: Path, began: int) -> str:
    """Join the last lines that a command has printed since a position in the file."""
    with path.open("rb") as stream:
        stream.seek(max(began, stream.seek(0, os.SEEK_END) - 2**16))
        text = stream.read().decode(errors="replace")
    lines = [line.strip()[:LONGEST_LINE] for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-SHOWN_LINES:]) or "nothing"


def _environment() -> dict[str, str]:
    """A command's environment: ``python`` is this one, and a Ray that it starts is its own, not the sweep's."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**own, "PATH": path, "RAY_ADDRESS": "local"}


def project_of(home: Path) -> Path:
    """The sweep's working folder, from the full path of a cell's folder; a worker may have started elsewhere."""
    return home.parents[len(cell_folder.WORK.parts) + 1]


def trainer_of(cell: CommandCell) -> CommandTrainer:
    """Return the settings of a cell's trainer."""
    return CommandTrainer.model_validate(cell.command.trainer, strict=False)


def check_surroundings(cell: CommandCell, project: Path) -> None:
    """Refuse to run a command whose files or libraries do not match the run id."""
    before = cell.command
    now = CommandSurroundings.of_trainer(trainer_of(cell), before.device, project)
    changed = [name for name in before.files if now.files.get(name) != before.files[name]]
    changed += [name for name in before.versions if now.versions.get(name) != before.versions[name]]
    if now != before:
        raise ExperimentError(
            f"{', '.join(changed) or 'the code that runs commands'} changed since the sweep began, or is another one "
            "on this machine: start the same command again"
        )


def command_of(cell: CommandCell, values: Mapping[str, str]) -> list[str]:
    """The words of a cell's command, followed by its trainer's settings."""
    return [*(filled(word, values) for word in trainer_of(cell).command), *flags_of(cell)]


def values_of(cell: CommandCell, home: Path, *, model: str, problems: Mapping[str, Path]) -> dict[str, str]:
    """Return the value of each placeholder of a command."""
    sampling = cell.origin.generation.sampling
    values = {
        "model": model,
        "train": problems["train"],
        "validation": problems["validation"],
        "seed": cell.run.seed,
        "ledger": home / LEDGER,
        "checkpoints": home / CHECKPOINTS,
        "rollouts": cell.rollouts,
        "evaluate_steps": cell.evaluate_steps,
        "evaluation_samples": cell.evaluation_samples,
        "rollouts_per_problem": cell.run.rollouts_per_problem,
        "problems_per_batch": cell.run.problems_per_batch,
        "update_steps": cell.update_steps,
        "learning_rate": cell.learner.learning_rate,
        **{name: getattr(sampling, name) for name in ("temperature", "max_new_tokens", "max_prompt_tokens")},
    }
    return {name: str(value) for name, value in values.items()}


def filled(word: str, values: Mapping[str, str]) -> str:
    """A word with its placeholders replaced by their values."""
    return PLACEHOLDER.sub(lambda match: values[match[1]], word)


def flags_of(cell: CommandCell) -> list[str]:
    """Return the flags appended to a cell's command: the settings of ``configuration_of``."""
    style = trainer(trainer_of(cell).trainer).style
    lines = render(configuration_of(cell), style)
    # ``--key value`` is two words, ``key=value`` one.
    return lines if style == "hydra" else [word for line in lines for word in line.split(" ")]


def configuration_of(cell: CommandCell) -> Configuration:
    """The settings with which a cell's trainer generates exactly its budget."""
    settings = trainer_of(cell)
    allocation = Allocation(
        problems_per_batch=cell.run.problems_per_batch,
        rollouts_per_problem=cell.run.rollouts_per_problem,
        update_steps=cell.update_steps,
    )
    run = RunPlan(
        allocation=allocation,
        world_size=settings.world_size,
        micro_batch=settings.micro_batch,
        learning_rate=cell.learner.learning_rate,
    )
    return convert(settings.trainer, run)


def write_problems(problems: pl.DataFrame, folder: Path) -> dict[str, Path]:
    """Write each side's problems as JSON lines, with the columns that a cell reads; return the files."""
    columns = [name for name in READ_BY_A_CELL if name in problems.columns]
    files = {}
    for side in ("train", "validation"):
        files[side] = folder / f"{side}.jsonl"
        own = problems.filter(pl.col("split") == side).select(columns).sort("problem_id")
        with atomic_write(files[side]) as stream:
            own.write_ndjson(stream)
    return files


def write_tables(cell: CommandCell, home: Path, settings: Mapping[str, Any], *, logs: str, questions: int) -> None:
    """Write a cell's tables after its command ended, then mark it as finished; tables that no log provides are omitted.

    Raises:
        ExperimentError: No budget was attached, the run is not at its budget, an evaluation is missing, or the log and
            the ledger contradict each other.
    """
    path = home / LEDGER
    if not path.exists():
        raise ExperimentError(
            f"its command ended and wrote no ledger, so that nobody counted what it generated: attach a budget with "
            f"the ledger {{ledger}}, here {path}, such as isocompute.budget.trl.attach does"
        )
    history = History.read(path)
    ledger = history.table().with_columns(run_id=pl.lit(cell.run_id))
    counts = pl.col("rollouts", "response_tokens").sum()
    used = ledger.filter(pl.col("cohort").is_in(TRAINING_COHORTS)).group_by("step").agg(counts)
    if history.last_step != cell.update_steps or used["rollouts"].sum() != cell.rollouts:
        raise ExperimentError(
            f"its command ended with {used['rollouts'].sum():,} of {cell.rollouts:,} rollouts in {history.last_step:,} "
            f"of {cell.update_steps:,} steps, by {path}: attach the budget with rollouts={{rollouts}} and "
            'counted="used", and let the trainer take as many steps as it was given'
        )
    evals = _evals(cell, home, settings, logs, questions, used)
    tables.write(evals, "evals", home / "evals.parquet")
    tables.write(ledger, "ledger", home / "ledger.parquet")
    timings = timings_of(history, cell.run_id, devices=trainer_of(cell).world_size)
    if len(timings):
        tables.write(timings, "timings", home / "timings.parquet")
    spool, metric = Spool(home), f"avg_at_{cell.evaluation_samples}"
    spool.rewind(-1)
    for step, rollouts, score in evals.select("step", "rollouts", metric).iter_rows():
        spool.write(EvaluationRecord(step=step, rollouts=rollouts, scores={metric: score}, evaluate_seconds=0.0))
    cell_folder.set_done(home, cell_folder.Done(rollouts=cell.rollouts, step=cell.update_steps, diverged_at=None))


def _evals(
    cell: CommandCell, home: Path, settings: Mapping[str, Any], logs: str, questions: int, used: pl.DataFrame
) -> pl.DataFrame:
    """The evaluations in the log, with the ledger's counts up to them; ``used`` is what each step used."""
    command = trainer_of(cell)
    cell_folder.write_json(home / SETTINGS, {**settings, "world_size": command.world_size})
    said = {"seed": str(cell.run.seed), "questions": str(questions), "problem_set": cell.origin.problem_set}
    logged, _ = ingest(command.trainer, [logs], config=home / SETTINGS, constants={**command.log_settings, **said})
    metric = f"avg_at_{cell.evaluation_samples}"
    if metric not in logged.columns:
        names = ", ".join(name for name in logged.columns if name.startswith("avg_at_"))
        raise ExperimentError(
            f"{logs}: has {names}, and {metric} is asked for: let the trainer evaluate with {{evaluation_samples}} "
            "responses to each problem"
        )
    rows = []
    for step, rollouts, score in logged.sort("step").select("step", "rollouts", metric).iter_rows():
        own = used.filter(pl.col("step") <= step)
        counted = int(own["rollouts"].sum())
        if counted != rollouts:
            raise ExperimentError(
                f"{logs}: says {rollouts:,} rollouts up to step {step:,}, and {home / LEDGER} counted {counted:,}: "
                "they are not of one run, or the trainer takes other steps than its settings say"
            )
        tokens = int(own["response_tokens"].sum())
        rows.append(
            cell.evals_row(step=step, rollouts=counted, tokens=tokens, questions=questions, scores={metric: score})
        )
    steps = [row["step"] for row in rows]
    missing = [step for step in range(0, cell.update_steps + 1, cell.evaluate_steps) if step not in steps]
    if missing:
        raise ExperimentError(
            f"{logs}: has no evaluation at step {missing[0]:,} (there are {', '.join(map(str, steps))}): let the "
            "trainer evaluate before the first step and every {evaluate_steps} steps"
        )
    return pl.DataFrame(rows)


def timings_of(history: History, run_id: str, *, devices: int) -> pl.DataFrame:
    """Return the duration of each surviving step as a ``timings`` table; no rows if the ledger does not say."""
    resumed = history.resumed_from
    # If a later attempt repeated a step, the first attempt's time for it is lost work.
    kept = [(step, seconds) for attempt, step, seconds in history.times if step <= min(resumed[attempt:], default=step)]
    frame = pl.DataFrame(kept, schema={"step": pl.Int64, "device_seconds": pl.Float64}, orient="row")
    return (
        frame.group_by("step")
        .agg(pl.col("device_seconds").sum())
        .with_columns(run_id=pl.lit(run_id), phase=pl.lit("step"), seconds=pl.col("device_seconds") / devices)
        .sort("step")
    )

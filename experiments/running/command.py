"""Has cells trained by a command, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import polars as pl
from isocompute.budget import Allocation
from isocompute.budget.trainers.forms import render
from isocompute.budget.trainers.registry import convert, trainer
from isocompute.budget.trainers.target import Configuration, Run
from isocompute.rollout.contract.files import atomic_write

from ..errors import ExperimentError
from ..settings.trainer import PLACEHOLDER
from . import leash, work
from .cells import READ_BY_A_CELL
from .command_log import write_tables
from .foreign import CHECKPOINTS, LEDGER, SAID, CommandCell, CommandSurroundings
from .models import local_path

POLL_SECONDS = 0.5
SHOWN_LINES, LONGEST_LINE = 3, 300
"""How much of what a command printed last is shown when it failed."""


def train(bases: Mapping[str, str], cell: CommandCell, problems: pl.DataFrame, home: Path) -> None:
    """Run the command of a cell, which goes on from its own checkpoints, and read its log into tables.

    Args:
        bases: Folder or name of each base model, by the hash of its content.

    Raises:
        ExperimentError: The command cannot be started or fails, its log and its ledger are not those of this cell,
            or what it depends on has changed since the sweep began.
        BudgetError: The log cannot be read.
    """
    if work.finished(cell, home):
        return
    check_surroundings(cell, project_of(home))
    own = write_problems(problems, home / "problems")
    model = local_path(bases[cell.origin.base])
    values = values_of(cell, home, model=model, problems=own)
    if _run(command_of(cell, values), home):
        questions = int((problems["split"] == "validation").sum())
        logs = filled(cell.command.settings.logs, values)
        write_tables(cell, home, configuration_of(cell).settings, logs=logs, questions=questions)


def _run(words: Sequence[str], home: Path) -> bool:
    """Run a command to its end; False where it was asked to stop before."""
    with (home / SAID).open("ab") as said:
        began = said.tell()
        process = subprocess.Popen(
            [sys.executable, str(leash.__file__), *words], cwd=project_of(home), stdin=subprocess.PIPE,
            stdout=said, stderr=said, env=_environment(),
        )  # fmt: skip
    assert process.stdin is not None
    stopped = False
    with process.stdin as other_end:
        while process.poll() is None:
            if not stopped and work.asked_to_stop(home):
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


def configuration_of(cell: CommandCell) -> Configuration:
    """The settings with which the trainer of a cell generates its budget, and no more.

    Raises:
        BudgetError: The trainer cannot do exactly this; the message says what would work.
    """
    settings = cell.command.settings
    allocation = Allocation(
        problems_per_batch=cell.problems_per_batch, rollouts_per_problem=cell.rollouts_per_problem,
        update_steps=cell.update_steps,
    )  # fmt: skip
    run = Run(
        allocation=allocation, world_size=settings.world_size, micro_batch=settings.micro_batch,
        learning_rate=cell.learner.learning_rate,
    )  # fmt: skip
    return convert(settings.trainer, run)


def command_of(cell: CommandCell, values: Mapping[str, str]) -> list[str]:
    """The words of a cell's command, the settings of its trainer after those of the preset."""
    return [*(filled(word, values) for word in cell.command.settings.command), *flags_of(cell)]


def values_of(cell: CommandCell, home: Path, *, model: str, problems: Mapping[str, Path]) -> dict[str, str]:
    """What stands for each placeholder of a command."""
    sampling = cell.origin.generation["sampling"]
    values = {
        "model": model, "train": problems["train"], "validation": problems["validation"], "seed": cell.seed,
        "ledger": home / LEDGER, "checkpoints": home / CHECKPOINTS,
        "rollouts": cell.rollouts, "evaluate_steps": cell.evaluate_steps,
        "evaluation_samples": cell.evaluation_samples, "rollouts_per_problem": cell.rollouts_per_problem,
        "problems_per_batch": cell.problems_per_batch, "update_steps": cell.update_steps,
        "learning_rate": cell.learner.learning_rate,
        **{name: sampling[name] for name in ("temperature", "max_new_tokens", "max_prompt_tokens")},
    }  # fmt: skip
    return {name: str(value) for name, value in values.items()}


def filled(word: str, values: Mapping[str, str]) -> str:
    """A word with what stands for its placeholders."""
    return PLACEHOLDER.sub(lambda match: values[match[1]], word)


def flags_of(cell: CommandCell) -> list[str]:
    """What is appended to the command of a cell: the settings of ``configuration_of``."""
    style = trainer(cell.command.settings.trainer).style
    lines = render(configuration_of(cell), style)
    # ``--key value`` is two words, ``key=value`` one.
    return lines if style == "hydra" else [word for line in lines for word in line.split(" ")]


def write_problems(problems: pl.DataFrame, folder: Path) -> dict[str, Path]:
    """Write the problems of each side as JSON lines, with what a cell reads of them; returns the files."""
    columns = [name for name in READ_BY_A_CELL if name in problems.columns]
    files = {}
    for side in ("train", "validation"):
        files[side] = folder / f"{side}.jsonl"
        own = problems.filter(pl.col("split") == side).select(columns).sort("problem_id")
        with atomic_write(files[side]) as stream:
            own.write_ndjson(stream)
    return files


def project_of(home: Path) -> Path:
    """The folder that a sweep is run in, of the whole path of a cell's folder; a worker may have begun elsewhere."""
    return home.parents[len(work.WORK.parts) + 1]


def _environment() -> dict[str, str]:
    """Variables of a command: ``python`` is this one, and a Ray that it starts is its own, not that of the sweep."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**own, "PATH": path, "RAY_ADDRESS": "local"}


def check_surroundings(cell: CommandCell, project: Path) -> None:
    """Refuse to run a command whose files or libraries are not those that the run id is of."""
    before = cell.command
    now = CommandSurroundings.of_trainer(before.settings, before.device, project)
    changed = [name for name in before.files if now.files.get(name) != before.files[name]]
    changed += [name for name in before.versions if now.versions.get(name) != before.versions[name]]
    if now != before:
        raise ExperimentError(
            f"{', '.join(changed) or 'the code that runs commands'} changed since the sweep began, or is another one "
            "on this machine: start the same command again"
        )


def _last_lines(path: Path, began: int) -> str:
    """What a command printed last since a place in the file, in one line."""
    with path.open("rb") as stream:
        stream.seek(max(began, stream.seek(0, os.SEEK_END) - 2**16))
        text = stream.read().decode(errors="replace")
    lines = [line.strip()[:LONGEST_LINE] for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-SHOWN_LINES:]) or "nothing"

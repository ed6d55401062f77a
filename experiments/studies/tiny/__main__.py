"""Train a tiny base model into DIR/base; of needle and mixture, write the problems into DIR/problems.parquet, too."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from isocompute.rollout.contract import tables

from ...errors import ExperimentError
from ...running.cluster import exit_code
from .config import TinyModelConfig
from .problems import MODELS, SOURCES, source_for, table_of

COUNTS = {"train": "training problems", "validation": "validation problems"}


def main(argv: Sequence[str] | None = None) -> int:
    """Make one folder; an error a user can act on is one line and exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m experiments.studies.tiny", description=__doc__)
    tasks = parser.add_subparsers(dest="task", metavar="TASK", required=True)
    for task, kind in MODELS.items():
        command = tasks.add_parser(task, help=f"a base model that is taught {task}")
        command.add_argument("--out", type=Path, required=True, help="the folder, which must be new")
        for name, field in kind.model_fields.items():
            about = f"{field.description} (default: {field.default})".replace("%", "%%")
            command.add_argument(f"--{name.replace('_', '-')}", type=type(field.default), help=about)
        for name, about in (COUNTS if task in SOURCES else {}).items():
            command.add_argument(f"--{name}", type=int, help=about)
    given = {name: value for name, value in vars(parser.parse_args(argv)).items() if value is not None}
    return exit_code(lambda: make(**given))


def make(task: str, out: Path, **settings: int | float | str) -> int:
    """Train the model of a task, and write its problems."""
    from .model import train

    if out.exists():
        raise ExperimentError(f"{out} exists: give --out a new folder")
    counts = {name: int(settings.pop(name)) for name in COUNTS if name in settings}
    config: TinyModelConfig = MODELS[task].model_validate(settings)
    train(config, out / "base")
    if task in SOURCES:
        tables.write(table_of(source_for(config, **counts)), "problems", out / "problems.parquet")
    return 0


if __name__ == "__main__":
    sys.exit(main())

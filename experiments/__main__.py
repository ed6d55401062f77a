"""Command line of the pipeline: ``python -m experiments STAGE [SET]``, or ``repro`` for all of it."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from isocompute.budget import tracking

from . import stages
from .cluster import shared_cluster
from .config import load


def main(argv: Sequence[str] | None = None) -> int:
    """Run one stage or all; an error a user can act on is one line and exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    parser.add_argument("stage", choices=[*stages.STAGES, *stages.SET_STAGES, "repro"])
    parser.add_argument("problem_set", nargs="?", help="for sweep, frontier and prescribe: the problem set")
    parser.add_argument("--preset", help="preset of params.yaml (default: the one it names)")
    arguments = parser.parse_args(argv)
    if (arguments.stage in stages.SET_STAGES) != (arguments.problem_set is not None):
        parser.error("sweep, frontier and prescribe take a problem set; the other stages take none")
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{Path.cwd() / 'mlflow.db'}")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    try:
        preset = load(preset=arguments.preset)
        if arguments.stage == "repro":
            return repro(preset.resources.processors())
        if arguments.stage in stages.STAGES:
            stages.STAGES[arguments.stage](preset)
        else:
            preset.sweep_of(arguments.problem_set)
            stages.SET_STAGES[arguments.stage](preset, arguments.problem_set)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: finished cells are kept, the same command continues", file=sys.stderr)
        return 130
    return 0


def repro(processors: int) -> int:
    """``dvc repro`` on one Ray head whose workers serve all stages."""
    # Asked first: DVC clears a stage's outputs before it runs.
    tracking.ensure_store()
    with shared_cluster(processors) as environment:
        # The stages' `python` is to be this one, in an activated environment or not.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        code = subprocess.call([sys.executable, "-m", "dvc", "repro"], env={**os.environ, **environment, "PATH": path})
    if code == 0:
        from .report import closing_words

        print(closing_words(stages.OUT))
    return code


if __name__ == "__main__":
    sys.exit(main())

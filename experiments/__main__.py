"""Command line of the pipeline: ``python -m experiments STAGE [SET]``, or ``repro`` for all of it.

``anchor SET`` searches learning rates under a budget, and is no stage of the pipeline. ``schema`` prints the JSON
schema of params.yaml, which is kept in params.schema.json.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from isocompute.budget.contract import tracking

from .errors import ExperimentError
from .running import stopping
from .settings import Preset, load, schema
from .stages import COMMANDS, SET_STAGES, STAGES

SECONDS = Path("work") / "seconds.jsonl"
"""How long stages took, one line per stage; never a DVC output."""
OF_A_SET = (*SET_STAGES, *COMMANDS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one stage or all; an error a user can act on is one line and exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    parser.add_argument("stage", choices=[*STAGES, *OF_A_SET, "repro", "schema"])
    parser.add_argument("problem_set", nargs="?", help=f"for {', '.join(OF_A_SET)}: the problem set")
    parser.add_argument("--preset", help="preset of params.yaml (default: the one it names)")
    parser.add_argument("--budget", type=_rollouts, help="for anchor: rollouts that its pilots may be trained on")
    arguments = parser.parse_args(argv)
    if (arguments.stage in OF_A_SET) != (arguments.problem_set is not None):
        parser.error(f"{', '.join(OF_A_SET)} take a problem set; the other stages take none")
    if arguments.budget is not None and arguments.stage not in COMMANDS:
        parser.error("--budget is an option of anchor; what a stage spends is in params.yaml")
    if arguments.stage == "schema":
        print(schema.text(), end="")
        return 0
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{Path.cwd() / 'mlflow.db'}")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    stopping.install()
    try:
        if arguments.stage == "repro":
            if arguments.preset:
                raise ExperimentError("repro runs the preset that params.yaml names: set `preset:` there")
            return repro(load())
        options = {} if arguments.budget is None else {"budget": arguments.budget}
        stage(load(preset=arguments.preset), arguments.stage, arguments.problem_set, **options)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except stopping.Stopped as stopped:
        print(f"{stopped}: what was done is kept, and the same command continues", file=sys.stderr)
        return stopped.exit_code
    return 0


def _rollouts(text: str) -> int:
    """A whole number of rollouts."""
    if not text.isascii() or not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no budget; it must be a whole number of rollouts, 1 or more")
    return int(text)


def stage(preset: Preset, name: str, problem_set: str | None, **options: int) -> None:
    """Run one stage, and note how long it took."""
    # Imported here: not every stage needs what another one does.
    run = import_module(f"experiments.stages.{name}").run
    began = time.monotonic()
    if problem_set is None:
        run(preset)
    else:
        preset.sweep_of(problem_set)
        run(preset, problem_set, **options)
    if name != "plan":
        took = {"stage": f"{name}@{problem_set}" if problem_set else name, "seconds": time.monotonic() - began}
        SECONDS.parent.mkdir(exist_ok=True)
        with SECONDS.open("a") as stream:
            stream.write(json.dumps(took) + "\n")


def call(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run a command that runs stages; a signal is passed on to the stage, and this ends after it.

    Returns:
        The exit code.

    Raises:
        Stopped: A signal came, and everything has ended.
    """
    import psutil

    process = psutil.Popen(command, env=variables)
    with stopping.deferred() as signalled:
        while True:
            try:
                return int(process.wait(timeout=0.2))
            except psutil.TimeoutExpired:
                if not signalled():
                    continue
            below = []
            with suppress(psutil.Error):
                below = process.children(recursive=True)
                # While DVC runs a stage it waits for it; between two stages it ends.
                process.send_signal(signal.SIGINT)
            for each in below:
                with suppress(psutil.Error):
                    if any("experiments" in part for part in each.cmdline()):
                        each.send_signal(signal.SIGTERM)
            psutil.wait_procs(below)
            return int(process.wait())


def repro(preset: Preset) -> int:
    """``dvc repro`` on one Ray head whose workers serve all stages."""
    from .running.cluster import shared_cluster
    from .stages import base
    from .stages.shared import OUT

    # Asked first: DVC clears a stage's outputs before it runs.
    tracking.ensure_store()
    before = len(SECONDS.read_text().splitlines()) if SECONDS.exists() else 0
    commands = [["repro"]]
    if (base.FOLDER / "model.json").exists() and base.changed(preset):
        # DVC sees the name of the model in params.yaml, not what is in its folder.
        commands.insert(0, ["repro", "--single-item", "--force", "base"])
    with shared_cluster(preset.resources.processors()) as environment:
        # The stages' `python` is to be this one, in an activated environment or not.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        for command in commands:
            asked = [sys.executable, "-m", "dvc", *command]
            code = call(asked, {**os.environ, **environment, "PATH": path})
            if code:
                return code
    from .closing import closing_summary

    took = [json.loads(line) for line in SECONDS.read_text().splitlines()[before:]] if SECONDS.exists() else []
    print(closing_summary(preset, OUT, took))
    return 0


if __name__ == "__main__":
    sys.exit(main())

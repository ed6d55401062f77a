"""Command line of the pipeline: ``python -m experiments STAGE [SET]``, or ``repro`` for all of it.

``schema`` prints the JSON schema of params.yaml, which is kept in params.schema.json. ``send`` sends to MLflow what
earlier commands could not.
``init NAME`` writes a preset of one's own, complete. ``probe SET`` says what the base model tells about n before any
training.
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
from typing import Any

from isocompute.rollout.contract.files import atomic_write

from .errors import ExperimentError, is_for_the_user
from .running import stopping
from .settings import Preset, load, schema, template
from .settings.reading import find
from .settings.strict import SettingError
from .stages import SET_STAGES, STAGES

SECONDS = Path("work") / "seconds.jsonl"
"""How long stages took, one line per stage; never a DVC output."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one stage or all; an error a user can act on is one line and exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    of_sets = (*SET_STAGES, "probe")
    parser.add_argument("stage", choices=[*STAGES, *of_sets, "repro", "schema", "init", "send"])
    named = f"for {', '.join(of_sets)}: the problem set; for init: the name of the new preset"
    parser.add_argument("name", nargs="?", help=named)
    parser.add_argument("--preset", help="preset of params.yaml (default: the one it names)")
    most = "for probe: rollouts of each base model (default: 1 %% of the sweep's budget, and 8,192 at least)"
    parser.add_argument("--rollouts", type=int, help=most)
    parser.add_argument("--device", help="for plan: the GPU that it is to fit (default: h100)")
    parser.add_argument("--price", type=float, help="for plan: US dollars for a GPU and hour (default: 3)")
    longest = "for plan: mean length of a response (default: the longest that there may be)"
    parser.add_argument("--response-tokens", type=float, help=longest)
    arguments = parser.parse_args(argv)
    if (arguments.stage in (*of_sets, "init")) != (arguments.name is not None):
        parser.error(f"{', '.join(of_sets)} take a problem set and init a name; the other stages take none")
    if arguments.rollouts is not None and arguments.stage != "probe":
        parser.error("--rollouts is for probe alone")
    terms = {name: getattr(arguments, name) for name in ("device", "price", "response_tokens")}
    if arguments.stage != "plan" and any(value is not None for value in terms.values()):
        parser.error("--device, --price and --response-tokens are for plan alone")
    if arguments.stage == "schema":
        print(schema.text(), end="")
        return 0
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{Path.cwd() / 'mlflow.db'}")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    stopping.install()
    try:
        if arguments.stage == "send":
            return send()
        if arguments.stage == "repro" and arguments.preset:
            raise ExperimentError("repro runs the preset that params.yaml names: set `preset:` there")
        preset = load(preset=arguments.preset)
        if arguments.stage == "init":
            init(arguments.name, preset)
            return 0
        if not preset.needs_the_hub():
            # Libraries ask the hub about folders, too, and wait where there is no network.
            os.environ.setdefault("HF_HUB_OFFLINE", "1")
        if arguments.stage == "repro":
            return repro(preset)
        if arguments.stage == "probe":
            probe(preset, arguments.name, arguments.rollouts)
            return 0
        if arguments.stage == "plan":
            plan(preset, **{name: value for name, value in terms.items() if value is not None})
            return 0
        stage(preset, arguments.stage, arguments.name)
    except (ValueError, OSError) as error:
        if not is_for_the_user(error):
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2
    except stopping.Stopped as stopped:
        print(f"{stopped}: what was done is kept, and the same command continues", file=sys.stderr)
        return stopped.exit_code
    return 0


def stage(preset: Preset, name: str, problem_set: str | None) -> None:
    """Run one stage, and note how long it took."""
    # Imported here: not every stage needs what another one does.
    run = import_module(f"experiments.stages.{name}").run
    began = time.monotonic()
    if problem_set is None:
        run(preset)
    else:
        preset.sweep_of(problem_set)
        run(preset, problem_set)
    if name != "inputs":
        send()
        took = {"stage": f"{name}@{problem_set}" if problem_set else name, "seconds": time.monotonic() - began}
        SECONDS.parent.mkdir(exist_ok=True)
        with SECONDS.open("a") as stream:
            stream.write(json.dumps(took) + "\n")


def plan(preset: Preset, **terms: Any) -> None:
    """Print what a preset would run, and what it needs."""
    from isocompute.budget.planning.devices import device

    from .stages.bill import Terms
    from .stages.plan import run

    run(preset, Terms(**terms | ({"device": device(terms["device"])} if "device" in terms else {})))


def probe(preset: Preset, problem_set: str, rollouts: int | None) -> None:
    """Probe every base model of a problem set, and print what it says."""
    from .probe import probe as probe_one
    from .probe import rollouts_of
    from .stages.training import setup_of

    setup = setup_of(preset, problem_set)
    for design in setup.designs:
        origin = design.origin
        model, problems = (setup.models[origin.base], origin.base), setup.problems[origin.problems]
        spent = rollouts_of(design.sweep.rollouts) if rollouts is None else rollouts
        found = probe_one(preset, problem_set, model, problems, rollouts=spent)
        print(f"{problem_set}, base model {origin.base_model}: " + "\n".join(found.lines()), flush=True)


def send() -> int:
    """Send what waits in the outbox; returns 1 where something still does."""
    from .running.sender import Sender

    return int(Sender().report())


def init(name: str, like: Preset) -> None:
    """Write a preset of one's own beside params.yaml, and say how it is run."""
    try:
        text = template.text(name, like, find(preset=like.name)[-1])
    except SettingError as error:
        raise ExperimentError(f"init {error}") from None
    path = Path(f"{name}.yaml")
    with atomic_write(path, replace=False) as stream:
        stream.write(text.encode())
    print(f"{path} has every setting, with the values of {like.name}. To run it, write in params.yaml:")
    print(f"  preset: {name}\n  settings_file: {path}\n  problem_sets: [{', '.join(like.sweep)}]")
    print(f"  tested_sets: [{', '.join(like.prescribe)}]")


def call(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run a command that runs stages; a signal is passed on to the stage, and this ends after it.

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
    from .stages.shared import OUT

    before = len(SECONDS.read_text().splitlines()) if SECONDS.exists() else 0
    with shared_cluster(preset.processors()) as environment:
        # The stages' `python` is to be this one, in an activated environment or not.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        asked = [sys.executable, "-m", "dvc", "repro"]
        code = call(asked, {**os.environ, **environment, "PATH": path})
        if code:
            return code
    from .closing import closing_summary

    send()
    took = [json.loads(line) for line in SECONDS.read_text().splitlines()[before:]] if SECONDS.exists() else []
    print(closing_summary(preset, OUT, took))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Command line of the pipeline: ``python -m experiments STAGE [SET]``, or ``repro`` for all stages.

``schema`` prints the JSON schema of params.yaml, for editors. ``init [NAME]`` writes a preset of one's own,
complete; with ``--preset gpu`` one for a node of GPUs. ``plan`` prints what a preset would run, ``probe SET`` how many
groups of the base model have a signal, by n. ``send`` sends to MLflow what earlier commands could not.
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

from isocompute.rollout.contract.files import atomic_write

from .running import cluster
from .settings import Preset, load
from .settings.reading import document_schema, template_text
from .stages import SET_STAGES, STAGES

SECONDS = Path("work") / "seconds.jsonl"
"""Durations of stages, one line per stage; never a DVC output."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; an error a user can act on is one line and exit code 2."""
    given = _parser().parse_args(argv)
    if given.command == "schema":
        print(json.dumps(document_schema(), indent=1, ensure_ascii=False))
        return 0
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{Path.cwd() / 'mlflow.db'}")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    cluster.install()
    return cluster.exit_code(lambda: _run(given))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    of_preset = argparse.ArgumentParser(add_help=False)
    of_preset.add_argument("--preset", help="preset of params.yaml (default: the one it names)")
    of_set = (*SET_STAGES, "probe")
    added = {name: commands.add_parser(name) for name in ("repro", "schema", "send")}
    added |= {name: commands.add_parser(name, parents=[of_preset]) for name in (*STAGES, *of_set, "init")}
    for name in of_set:
        added[name].add_argument("name", help="the problem set")
    added["init"].add_argument("name", nargs="?", help="the name of the new preset (default: my-PRESET)")
    most = "rollouts of each base model (default: 1 %% of the sweep's budget, and 8,192 at least)"
    added["probe"].add_argument("--rollouts", type=int, help=most)
    added["plan"].add_argument("--device", default="h100", help="the GPU that it is to fit (default: %(default)s)")
    added["plan"].add_argument("--price", type=float, default=3.0, help="US dollars for a GPU and hour (default: 3)")
    longest = "mean length of a response (default: the longest that there may be)"
    added["plan"].add_argument("--response-tokens", type=float, help=longest)
    return parser


def _run(given: argparse.Namespace) -> int:
    if given.command == "send":
        return send()
    preset = load(preset=getattr(given, "preset", None))
    if given.command == "init":
        init(given.name or f"my-{preset.name}", preset)
        return 0
    if not preset.needs_the_hub():
        # Libraries ask the hub about folders, too, and wait where there is no network.
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if given.command == "repro":
        return repro(preset)
    if given.command == "probe":
        from .probe import lines

        for line in lines(preset, given.name, given.rollouts):
            print(line, flush=True)
    elif given.command == "plan":
        # Imported here, as below: not every command needs what another one does.
        from isocompute.budget.planning.compute import device

        from .stages import plan
        from .stages.costs import Terms

        terms = Terms(device=device(given.device), price=given.price, response_tokens=given.response_tokens)
        plan.run(preset, terms)
    else:
        stage(preset, given.command, getattr(given, "name", None))
    return 0


def stage(preset: Preset, name: str, problem_set: str | None) -> None:
    """Run one stage, and note how long it took."""
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


def send() -> int:
    """Send what waits in the outbox; returns 1 where something still does."""
    from .running.tracker import Sender

    return int(Sender().report())


def init(name: str, like: Preset) -> None:
    """Write a preset of one's own beside params.yaml, and say how it is run."""
    text, path = template_text(name, like), Path(f"{name}.yaml")
    with atomic_write(path, replace=False) as stream:
        stream.write(text.encode())
    print(f"{path} has every setting, with the values of {like.name}. To run it, write in params.yaml:")
    print(f"  preset: {name}\n  settings_file: {path}\n  problem_sets: [{', '.join(like.sweep)}]")
    print(f"  tested_sets: [{', '.join(like.prescribe)}]")


def call(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run a command that runs stages; a signal is passed on to the stage, and this ends after it."""
    import psutil

    process = psutil.Popen(command, env=variables)
    with cluster.deferred() as signalled:
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
    from .running.cell_folder import OUT
    from .running.cluster import shared_cluster

    before = len(SECONDS.read_text().splitlines()) if SECONDS.exists() else 0
    with shared_cluster(preset.processors()) as environment:
        # The stages' `python` is to be this one, in an activated environment or not.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        asked = [sys.executable, "-m", "dvc", "repro"]
        code = call(asked, {**os.environ, **environment, "PATH": path})
        if code:
            return code
    from .report import closing_summary

    send()
    took = [json.loads(line) for line in SECONDS.read_text().splitlines()[before:]] if SECONDS.exists() else []
    print(closing_summary(preset, OUT, took))
    return 0


if __name__ == "__main__":
    sys.exit(main())

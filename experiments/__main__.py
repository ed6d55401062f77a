"""Command line of the pipeline: ``python -m experiments STAGE [SET]``, or ``repro`` for all stages."""

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

from isocompute.rollout import LocalSource
from isocompute.rollout.contract.command_line import Parser, amount
from isocompute.rollout.contract.files import atomic_write

from .errors import ExperimentError
from .running import cluster
from .settings import Preset, find, load
from .settings.own import short_text
from .settings.reading import copied_text, document_schema
from .settings.sections import checked_name
from .stages import SET_STAGES, STAGES

PARAMS = Path("params.yaml")
SECONDS = Path("work") / "seconds.jsonl"
"""Durations of stages, one line per stage; never a DVC output."""
COMMANDS = {
    "init": ("write a preset of your own", "mine --problems mine.jsonl --model models/base --verifier math"),
    "plan": (
        "print what a preset would run: cells (one run each), rollouts, memory and money",
        "--preset gpu --price 3",
    ),
    "repro": ("run all stages whose inputs have changed, and print the answer", ""),
    "inputs": ("write down what stages depend on and DVC does not see", ""),
    "prepare": ("make the problem sets: the base model's pass rates", ""),
    "sweep": ("train the cells of a problem set: a run for each n, B_p, rate and seed", "hard"),
    "frontier": ("fit a sweep, and write its answer and report", "hard"),
    "prescribe": ("train at the n that was prescribed for a problem set, and at others", "easy --preset smoke"),
    "figure": ("make a figure of the papers with tiny models: cells, drawing, and what came out", "playbook-13"),
    "send": ("send to MLflow what earlier commands could not", ""),
    "schema": ("print the JSON schema of params.yaml, for editors", ""),
}
"""Each command's purpose, and example arguments."""


NEEDED = (
    ("--problems", "FILE", "your problems: a .jsonl or .parquet file"),
    ("--model", "MODEL", "the base model: a folder, or a name on the hub with its --revision"),
    ("--verifier", "NAME", "what says whether a response is right: exact, math, runs, python:MODULE:FUNCTION, …"),
)
"""What ``init`` needs: the flag, its value, and a description."""

FIGURES = {
    "--all": "every figure that can run here, one after the other",
    "--micro": "two short cells of each kind: whether everything runs",
    "--gallery": "write docs/figures.md from the committed tables",
    "--resolution": "the smallest effects that figures can resolve",
}
"""Further options of ``figure``."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; an error that a user can act on is one line and exit code 2."""
    given = parser().parse_args((sys.argv[1:] if argv is None else argv) or ["--help"])
    if given.command == "schema":
        print(json.dumps(document_schema(), indent=1, ensure_ascii=False))
        return 0
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{Path.cwd() / 'mlflow.db'}")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    cluster.install()
    return cluster.exit_code(lambda: _run(given))


def parser() -> argparse.ArgumentParser:
    """The parser for all commands."""
    parser = Parser(prog="python -m experiments", description="Find the n that a budget is best spent with.")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    added: dict[str, argparse.ArgumentParser] = {}
    for name, (said, example) in COMMANDS.items():
        epilog = f"example: {parser.prog} {name} {example}".rstrip()
        added[name] = commands.add_parser(name, help=said, description=f"{said[0].upper()}{said[1:]}.", epilog=epilog)
    for name in SET_STAGES:
        added[name].add_argument("name", metavar="SET", help="the problem set")
    for name in (*STAGES, *SET_STAGES, "init"):
        added[name].add_argument("--preset", help="preset of params.yaml (default: the one it names)")
    init = added["init"]
    init.add_argument("name", nargs="?", metavar="NAME", help="the name of the new preset (default: my-PRESET)")
    for flag, metavar, said in NEEDED:
        init.add_argument(flag, metavar=metavar, help=said)
    init.add_argument("--revision", default="", metavar="COMMIT", help="commit of a model on the hub")
    for column in ("prompt", "answer"):
        said = f"column of the problems' {column}s (default: {column})"
        init.add_argument(f"--{column}", default=column, metavar="COLUMN", help=said)
    init.add_argument("--set-name", default="all", metavar="SET", help="name of the problem set (default: all)")
    init.add_argument("--copy", action="store_true", help="write a copy of --preset, to be edited")
    added["plan"].add_argument("--device", default="h100", help="the GPU that it is to fit (default: %(default)s)")
    added["plan"].add_argument("--price", type=_number, default=3.0, help="US dollars for a GPU and hour (default: 3)")
    of_figure = added["figure"]
    of_figure.add_argument("name", nargs="?", metavar="FIGURE", help="such as scalerl-7; without one all are listed")
    for flag, said in FIGURES.items():
        of_figure.add_argument(flag, action="store_true", help=said)
    of_figure.add_argument("--preset", choices=["paper"], dest="scale", help="print and write its cells at that scale")
    of_figure.add_argument("--work", type=Path, help="where cells keep their files (default: work/figures)")
    longest = "mean length of a response (default: the longest that there may be)"
    added["plan"].add_argument("--response-tokens", type=_number, help=longest)
    return parser


def _number(text: str) -> float:
    return float(amount(text))


def _run(given: argparse.Namespace) -> int:
    if given.command == "send":
        return send()
    if given.command == "figure":
        # Imported here, like those below: each command needs different modules.
        from .studies.figures import command

        for line in command.lines(given):
            print(line, flush=True)
        return 0
    asked = getattr(given, "preset", None)
    path = file_of(asked)
    preset = load(path, preset=asked)
    if given.command == "init":
        init(given, preset)
        return 0
    if not preset.needs_the_hub():
        # Libraries query the hub even for folders, and wait if there is no network.
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if given.command == "repro":
        return repro(preset)
    if given.command == "plan":
        from isocompute.budget.planning.compute import device

        from .stages import plan
        from .stages.costs import Terms

        terms = Terms(device=device(given.device), price=given.price, response_tokens=given.response_tokens)
        plan.run(preset, terms, path)
    else:
        stage(preset, given.command, getattr(given, "name", None))
    return 0


def file_of(preset: str | None) -> Path:
    """The file of the requested preset: params.yaml, or the file that ``init`` has written beside it."""
    if preset is None or not (own := Path(f"{checked_name(preset)}.yaml")).is_file():
        return PARAMS
    try:
        find(PARAMS, preset)
    except ExperimentError:
        return own
    return PARAMS


def stage(preset: Preset, name: str, problem_set: str | None) -> None:
    """Run one stage, and record its duration."""
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
    """Send what is waiting in the outbox; return 1 if something still is."""
    from .running.tracker import Sender

    return int(Sender().report())


def init(given: argparse.Namespace, like: Preset) -> None:
    """Write the user's own preset beside params.yaml, and say how to run it."""
    name, missing = given.name or f"my-{like.name}", [flag for flag, *_ in NEEDED if not getattr(given, flag[2:])]
    if given.copy:
        text = copied_text(name, like.name, find(file_of(given.preset), given.preset)[1])
        sets, tested = [*like.sweep], [*like.prescribe]
    elif missing:
        raise ExperimentError(
            f"init needs {', '.join(missing)}, or --copy, which writes a copy of the preset {like.name}"
        )
    else:
        source = LocalSource(path=given.problems, prompt=given.prompt, answer=given.answer, verifier=given.verifier)
        text, sets, tested = short_text(name, source, given.model, given.revision, given.set_name), [given.set_name], []
    path = Path(f"{name}.yaml")
    with atomic_write(path, replace=False) as stream:
        stream.write(text.encode())
    print(f"{path} is written, and nothing else. What it would run: python -m experiments plan --preset {name}")
    print(f"For `python -m experiments repro`, which will write dvc.lock anew, write in {PARAMS}:")
    print(f"  preset: {name}\n  settings_file: {path}\n  problem_sets: [{', '.join(sets)}]")
    print(f"  tested_sets: [{', '.join(tested)}]")


def call(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run a command that runs stages; a signal is passed on to the stage, and this call ends after it."""
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
                # DVC waits for a running stage; between two stages it ends.
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

    before = len(SECONDS.read_text().splitlines()) if SECONDS.exists() else 0
    with shared_cluster(preset.processors()) as environment:
        # The stages' `python` must be this one, in an activated environment or not.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        asked = [sys.executable, "-m", "dvc", "repro"]
        code = call(asked, {**os.environ, **environment, "PATH": path})
        if code:
            return code
    from .report import closing_summary

    send()
    took = [json.loads(line) for line in SECONDS.read_text().splitlines()[before:]] if SECONDS.exists() else []
    print(closing_summary(preset, took))
    return 0


if __name__ == "__main__":
    sys.exit(main())

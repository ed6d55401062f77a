"""The panel in the background: frozen code in an environment of its own at one place, started, paused, continued."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import ExperimentError
from . import study as panel
from .prepare import INPUTS

FROZEN = Path(__file__).with_name("frozen.json")
"""The commit whose code trains every cell, in a later commit than that one."""
PLACE = "ISOCOMPUTE_PANEL"
"""Variable that names another place than the usual one."""
VARIABLES = {
    "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "", "DO_NOT_TRACK": "1",
}  # fmt: skip
"""One thread, no telemetry, libraries compiled once."""
ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("results")
FINISHED = "finished.json"
"""The last file of a unit's tables."""


def home() -> Path:
    """Where the panel runs, outside of any checkout."""
    return Path(os.environ.get(PLACE, "~/.isocompute/panel")).expanduser()


def frozen() -> str:
    """The commit that the panel runs at."""
    if not FROZEN.exists():
        raise ExperimentError(f"{FROZEN.name}: there is none, so that the study is not frozen")
    return str(json.loads(FROZEN.read_text())["commit"])


def start() -> None:
    """Start the panel, or what is left of it, niced, from the frozen commit."""
    if process() is not None:
        raise ExperimentError(f"the panel runs already (process {process()}); see `status`")
    command = ["nice", "-n", "19", *_frozen_command("run")]
    take_over()
    with (home() / "log").open("ab") as log:
        begun = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            start_new_session=True, **_place(),
        )  # fmt: skip
    (home() / "pid").write_text(str(begun.pid))
    print(f"the panel runs at {frozen()[:12]} in {home()} (process {begun.pid}); its output is in {home() / 'log'}")


def take_over() -> list[str]:
    """Give the panel's folder the units that are committed whole, which another machine may have trained.

    Returns:
        Their names.
    """
    whole = [path.parent for path in sorted(RESULTS.glob(f"*/{FINISHED}"))]
    new = [folder for folder in whole if not (home() / "units" / folder.name / "results" / FINISHED).exists()]
    for folder in new:
        # The file that says that it is finished comes last.
        target = home() / "units" / folder.name / "results"
        shutil.copytree(folder, target, ignore=shutil.ignore_patterns(FINISHED), dirs_exist_ok=True)
        shutil.copy(folder / FINISHED, target)
    return [folder.name for folder in new]


def in_frozen_code(*arguments: str) -> int:
    """Run a command of the panel at the frozen commit, since any other code trains other cells; its exit code."""
    return subprocess.run(_frozen_command(*arguments), check=False, **_place()).returncode


def _place() -> dict[str, Any]:
    """Folder and variables of a process of the frozen code."""
    return {"cwd": home() / "code", "env": {**os.environ, **VARIABLES, PLACE: str(home())}}


def _frozen_command(*arguments: str) -> list[str]:
    """A command of the frozen code, which is fetched and given its environment where there is none yet."""
    code = home() / "code"
    python = code / ".nox" / "repro" / "bin" / "python"
    if not code.exists():
        aside = code.with_name(".code.writing")
        shutil.rmtree(aside, ignore_errors=True)
        _run("git", "clone", "--quiet", "--no-checkout", str(ROOT), str(aside))
        _run("git", "-C", str(aside), "checkout", "--quiet", "--detach", frozen())
        aside.rename(code)
    at = subprocess.run(
        ["git", "-C", str(code), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if at != frozen():
        raise ExperimentError(f"{code} is at {at}, and the study is frozen at {frozen()}: move that folder away")
    if not python.exists():
        _run(_nox(), "-s", "repro", "--install-only", folder=code)
    return [str(python), "-m", "experiments.playbook", *arguments]


def _nox() -> str:
    """The command that makes environments."""
    command = shutil.which("nox")
    if command is None:
        raise ExperimentError('nox was not found, which makes the environment: `python3 -m pip install "nox[uv]"`')
    return command


def _run(*command: str, folder: Path | None = None) -> None:
    """Run a command that makes code or environment."""
    ended = subprocess.run(command, cwd=folder, check=False)
    if ended.returncode:
        raise ExperimentError(f"`{' '.join(command)}` failed with exit code {ended.returncode}")


def process() -> int | None:
    """Process id of the panel's command, which leads a group of its own; None where it does not run."""
    with suppress(OSError, ValueError):
        number = int((home() / "pid").read_text())
        if "experiments.playbook" in Path(f"/proc/{number}/cmdline").read_text():
            return number
    return None


def send(number: signal.Signals) -> None:
    """Pause (SIGSTOP), continue (SIGCONT) or end (SIGTERM) the panel and all that it has started."""
    running = process()
    if running is None:
        raise ExperimentError("the panel does not run; `start` starts what is left of it")
    if number == signal.SIGTERM:
        os.kill(running, number)
        # What is paused takes no signal.
        os.killpg(running, signal.SIGCONT)
    else:
        os.killpg(running, number)


def collect() -> list[str]:
    """Copy inputs and tables of finished cells into the checkout, to be committed; returns the folders that changed."""
    units = panel.load().units()
    pairs = {RESULTS / unit.name: home() / "units" / unit.name / "results" for unit in units}
    pairs |= {INPUTS / f"{u.task}-{u.base_seed}": home() / "inputs" / f"{u.task}-{u.base_seed}" for u in units}
    return [target.name for target, source in pairs.items() if _copied(source, target)]


def _copied(source: Path, target: Path) -> bool:
    """Copy the files of a folder that differ; returns whether there was one."""
    files = [path for path in source.rglob("*") if path.is_file()]
    new = {path: target / path.relative_to(source) for path in files}
    new = {path: to for path, to in new.items() if not to.exists() or to.read_bytes() != path.read_bytes()}
    for path, to in new.items():
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, to)
    return bool(new)

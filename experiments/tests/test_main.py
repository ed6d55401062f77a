"""The command line: what is one line to its user, what keeps its traceback, and what signals do."""

import errno
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest
import ray
import yaml

from experiments.__main__ import main
from experiments.errors import ExperimentError
from experiments.running import cluster
from experiments.running.schedule import Line
from experiments.stages import plan

from .made import BASE, PACKAGES, PARAMS, environment, params, smoke

OURS = [getattr(import_module(f"isocompute.{p}.errors"), f"{p.capitalize()}Error") for p in PACKAGES]
HUB = {"kind": "hub", "dataset": "o/d", "revision": "0" * 40}
MODEL = {"kind": "model", "model": "o/m", "revision": "0" * 40}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    (tmp_path / "params.yaml").write_text(PARAMS.read_text())


def stops_with(error: Exception, monkeypatch: pytest.MonkeyPatch) -> int:
    def run(*_: object) -> None:
        raise error

    monkeypatch.setattr(plan, "run", run)
    return main(["plan", "--preset", "smoke"])


def test_what_a_user_can_act_on_is_one_line_and_a_bug_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "here")
    for error in (*(kind("what was wrong") for kind in (ExperimentError, *OURS)), full):
        assert stops_with(error, monkeypatch) == 2
        assert capsys.readouterr().err == f"error: {error}\n"
    for bug in (ValueError("invalid literal"), KeyError("a"), FileNotFoundError(2, "No such file")):
        with pytest.raises(type(bug)):
            stops_with(bug, monkeypatch)


@pytest.mark.slow
def test_the_hub_is_closed_where_the_preset_needs_nothing_of_it_and_the_user_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str | None] = []
    monkeypatch.setattr(plan, "run", lambda *_: seen.append(os.environ.get("HF_HUB_OFFLINE")))
    for changes, said, offline in (
        ({"problems": [HUB]}, None, None),
        ({"base": MODEL}, None, None),
        ({}, None, "1"),
        ({}, "0", "0"),
    ):
        monkeypatch.setenv("HF_HUB_OFFLINE", said or "")
        if said is None:
            monkeypatch.delenv("HF_HUB_OFFLINE")
        smoke(tmp_path, changes)
        assert main(["plan", "--preset", "smoke"]) == 0
        assert seen.pop() == offline


def preset(**changes: object) -> None:
    """Make ``smoke``, changed, the preset of this folder."""
    own = {**params()["smoke"], "base": {"kind": "model", "model": str(BASE)}, **changes}
    made = {"preset": "smoke", "problem_sets": ["easy", "hard"], "tested_sets": ["easy"], "smoke": own}
    Path("params.yaml").write_text(yaml.safe_dump(made))


def refused(message: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> None:
    capsys.readouterr()
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert message in said
    assert len(said.strip().splitlines()) == 1


@pytest.mark.slow
def test_what_a_stage_needs_and_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A base model, a data set, what an earlier stage makes, a problem set."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    for model in ("models/nothing", "broken"):
        preset(base={"kind": "model", "model": model, "revision": "0" * 40})
        refused("cannot be loaded", capsys, "prepare")
        assert not (tmp_path / "outputs" / "prepared" / "base").exists()
    preset(problems=[{"kind": "file", "path": "data/nothing.jsonl"}])
    refused("data/nothing.jsonl", capsys, "prepare")
    assert not (tmp_path / "outputs" / "prepared" / "problems.parquet").exists()
    preset()
    refused("run the stage `prep", capsys, "sweep", "easy")
    refused("evals.parquet", capsys, "frontier", "easy")
    refused("outputs/frontier/easy: is not there", capsys, "prescribe", "easy")
    for stage in ("sweep", "prescribe", "frontier"):
        refused("no sweep of 'medium'; it has easy, hard", capsys, stage, "medium")


def test_a_figure_that_cannot_be_made_here_or_at_all_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    refused("scalerl-9 cannot run here: problems whose answers grow", capsys, "figure", "scalerl-9")
    refused("did you mean 'playbook-13'", capsys, "figure", "playbok-13")
    refused("--preset needs the name", capsys, "figure", "--preset", "paper")
    refused("give one of a figure, --all", capsys, "figure", "playbook-13", "--all")
    refused("--micro trains a figure", capsys, "figure", "--micro")
    refused("--work /dev/null: cannot be a folder", capsys, "figure", "playbook-13", "--work", "/dev/null")


STAGE = """
import time
from pathlib import Path
from experiments.running import cluster

cluster.install()
try:
    with cluster.deferred() as signalled:
        Path("up").touch()
        while not signalled():
            time.sleep(0.05)
        time.sleep(1.5)
        Path("saved").touch()
except cluster.Stopped as stopped:
    raise SystemExit(stopped.exit_code)
"""
RUNNER = """
import signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.exit(subprocess.call(f"{sys.executable} stage.py experiments; exit $?", shell=True))
"""
COMMAND = """
import os, sys
from experiments.__main__ import call
from experiments.running import cluster

cluster.install()
try:
    call([sys.executable, "runner.py"], dict(os.environ))
except cluster.Stopped as stopped:
    print(stopped, flush=True)
    raise SystemExit(stopped.exit_code)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "to_all"), [(signal.SIGTERM, False), (signal.SIGINT, True)])
def test_a_signal_reaches_the_stage_once_which_saves_before_the_command_ends(
    tmp_path: Path, number: signal.Signals, to_all: bool
) -> None:
    """Sent to the command alone, as by ``kill``, or to all of its group, as by a terminal or a batch system."""
    for name, text in (("stage.py", STAGE), ("runner.py", RUNNER), ("command.py", COMMAND)):
        (tmp_path / name).write_text(text)
    process = subprocess.Popen(
        [sys.executable, "command.py"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not (tmp_path / "up").exists():
        assert process.poll() is None
        time.sleep(0.05)
    (os.killpg if to_all else os.kill)(process.pid, number)
    said = process.communicate()[0]
    assert process.returncode == 128 + number
    assert said == f"stopped by {number.name}\n"
    assert (tmp_path / "saved").exists()


def twice(seconds: float) -> None:
    """Send this process a signal, and another one later."""
    with cluster.deferred() as signalled:
        os.kill(os.getpid(), signal.SIGTERM)
        assert signalled() == signal.SIGTERM
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGTERM)
        print("saved")


def test_a_second_signal_ends_at_once_unless_it_is_the_first_passed_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for seconds, saved in ((0.0, "saved\n"), (0.3, "")):
        monkeypatch.setattr(cluster, "SAME_SECONDS", 0.2 if seconds else 60.0)
        with pytest.raises(cluster.Stopped, match="stopped by SIGTERM"):
            twice(seconds)
        assert capsys.readouterr().out == saved


@pytest.mark.parametrize(
    ("error", "address", "cure"),
    [
        ("The configured object store size (0.3 GB) exceeds /dev/shm size (0.06 GB).", "", "--shm-size"),
        ("[Errno 28] No space left on device", "", "RAY_TMPDIR"),
        ("AF_UNIX path length cannot exceed 107 bytes: /a/b", "", "RAY_TMPDIR"),
        ("can't start new thread", "", "ulimit -u"),
        ("[Errno 24] Too many open files", "", "ulimit -n"),
        ("[Errno 12] Cannot allocate memory", "", "resources.workers"),
        ("[Errno 98] Address already in use", "", "ray stop"),
        ("The current node timed out during startup. This could happen because some of the raylet", "", "memory"),
        ("Failed to connect to Ray cluster at 10.0.0.1:6379", "10.0.0.1:6379", "unset RAY_ADDRESS"),
        ("Version mismatch: The cluster was started with: Ray: 2.1", "10.0.0.1:6379", "versions of Ray"),
        ("something\nwith lines", "", "logs"),
    ],
)
def test_a_cluster_that_does_not_start_is_one_line_that_says_what_to_do(
    error: str, address: str, cure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = []

    def refuse(**options: object) -> None:
        called.append(options)
        raise ValueError(error)

    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address:
        monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ExperimentError) as refused, cluster.open_cluster(1):
        pass
    said = str(refused.value)
    assert cure in said
    assert address in said
    assert "\n" not in said
    # Not again without the limits, which would start one that is open to others.
    assert len(called) == 1


def test_progress_says_how_long_nothing_came_and_then_how_long_the_rest_takes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("experiments.running.schedule.time.monotonic", lambda: now)
    line = Line("difficulty", total=400, unit="problems", done=100)
    for now, done in ((1000.0, 100), (1030.0, 100), (1060.0, 200), (1061.0, 300), (1090.0, 300), (1120.0, 400)):  # noqa: B007
        line.show(done)
    shown = capsys.readouterr().out.splitlines()
    assert [line.rpartition(", ")[2] for line in shown[:4]] == [
        "0.0 min so far",
        "0.5 min so far",
        "1.0 min so far",
        "about 0.5 min left",
    ]
    assert [line.split()[1] for line in shown] == ["100", "100", "200", "300", "400"]

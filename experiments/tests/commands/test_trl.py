"""Cells that TRL trains: ``nox -s tests-trl``, where TRL is installed."""

import os
import random
import shutil
import sys
import time
from functools import partial
from pathlib import Path

import polars as pl
import pytest
import yaml
from isocompute.budget import History

from experiments.running.cells import CommandCell
from experiments.settings import load

from ..made import BASE, PARAMS, ROOT, params
from ..test_pipeline import clone, run
from ..test_pipeline_kills import continued, end
from .made import cells, home_of, last_step, problems, same, started

SCRIPT = "experiments/trainers/trl_grpo.py"
pytestmark = [
    pytest.mark.slow("runs of TRL"),
    pytest.mark.skipif(
        os.environ.get("ISOCOMPUTE_TRL") != "installed", reason="nox -s tests-trl, where TRL is installed"
    ),
]


def last_cell(folder: Path) -> CommandCell:
    """A cell of the preset, in a folder with its script."""
    (folder / SCRIPT).parent.mkdir(parents=True)
    shutil.copy(ROOT / SCRIPT, folder / SCRIPT)
    return cells(load(PARAMS, "trl"))[0]


def test_a_cell_that_is_killed_twice_ends_as_one_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, homes = str(BASE), []
    for place, deaths in (("alone", ()), ("killed", (3, 7))):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        cell = last_cell(tmp_path / place)
        home = home_of(cell)
        for reached in deaths:
            process = started(cell, problems(), base=base)
            while last_step(home) < reached:
                assert process.poll() is None, (home / "output.log").read_text()[-2000:]
                time.sleep(0.01)
            process.kill()
            process.wait()
        assert started(cell, problems(), base=base).wait() == 0, (home / "output.log").read_text()[-2000:]
        homes.append(home)
    assert same(*homes)
    history = History.read(homes[1] / "run.ledger")
    assert len(history.resumed_from) == 3
    evals = pl.read_parquet(homes[0] / "evals.parquet")
    assert evals["rollouts"].to_list() == list(range(0, 97, 16))


def pipeline(folder: Path) -> Path:
    """What the stages read, with ``trl`` as the preset."""
    clone(folder, {"workers": 2})
    settings = params()
    settings |= {"preset": "trl", "problem_sets": ["easy"], "tested_sets": []}
    (folder / "params.yaml").write_text(yaml.safe_dump(settings))
    return folder


def charged(folder: Path) -> int:
    """How often cells have charged so far."""
    paths = folder.glob("work/cells/*/run.ledger")
    return sum(attempt.charges for path in paths for attempt in History.read(path).attempts)


def test_the_preset_killed_twice_ends_with_the_lock_of_one_left_alone(tmp_path: Path) -> None:
    """Everything is killed at once, at moments that are drawn."""
    alone, killed = pipeline(tmp_path / "alone"), pipeline(tmp_path / "killed")
    said = run(alone, sys.executable, "-m", "experiments", "repro")
    print(said)
    assert "At 96 rollouts" in said
    assert "Report: outputs/frontier/easy/report.html" in said
    assert (alone / "outputs" / "frontier" / "easy" / "report.html").stat().st_size > 10_000
    for _ in range(2):
        end(killed, partial(charged, killed), random.Random().uniform(0.1, 0.45) * charged(alone))
    continued(killed, alone)

"""``nox -s soak``: the preset ``smoke`` ended again and again, and continued, is the one left alone."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import yaml

from experiments.running.cell_folder import Spool

from .test_pipeline import KILLS, clone, environment, finished, modified, run

pytestmark = pytest.mark.slow("the whole pipeline")

__all__ = ["finished"]
SETTLING_SECONDS = 5.0


def written_by_cells(folder: Path) -> int:
    """Records that cells have written so far."""
    return sum(len(Spool(path.parent).records()) for path in folder.glob("work/cells/*/run.sqlite"))


def settled(progress: Callable[[], int]) -> int:
    """The progress once workers whose driver was killed have noticed it and write no more."""
    before = -1
    while before != (now := progress()):
        before = now
        time.sleep(SETTLING_SECONDS)
    return now


def end(folder: Path, progress: Callable[[], int], growth: float, number: signal.Signals = signal.SIGKILL) -> None:
    """Run ``repro`` until there is so much more progress, then end it.

    SIGKILL ends everything at once; SIGTERM goes to the command alone, as from ``kill``.
    """
    before = settled(progress)
    command, quiet = [sys.executable, "-m", "experiments", "repro"], {"stdout": subprocess.DEVNULL}
    process = subprocess.Popen(
        command, cwd=folder, env=environment(folder), start_new_session=True, stderr=subprocess.PIPE, text=True, **quiet
    )
    while progress() < before + growth:
        assert process.poll() is None, "it was finished before it was ended"
        time.sleep(0.05)
    (os.killpg if number == signal.SIGKILL else os.kill)(process.pid, number)
    said = process.communicate()[1]
    print(f"{number.name} after {growth:.0f} more of its progress", flush=True)
    if number == signal.SIGTERM:
        assert process.returncode == 128 + number
        assert said.rstrip().splitlines()[-1].startswith("stopped by SIGTERM: ")
        assert "Traceback" not in said


def continued(folder: Path, whole: Path) -> None:
    """Let it run to its end: what was done stays, and the lock is that of the one left alone."""
    done = modified(folder, "work/cells/*/done.json")
    run(folder, sys.executable, "-m", "experiments", "repro")
    assert done.items() <= modified(folder, "work/cells/*/done.json").items()
    # DVC keeps the order in which stages came into it.
    first, second = (yaml.safe_load((each / "dvc.lock").read_text())["stages"] for each in (whole, folder))
    assert second == first


@pytest.mark.skipif(not KILLS, reason="nox -s soak; a cell that is killed is in test_cell.py")
def test_stopped_or_killed_and_continued_in_another_order_on_one_worker_the_lock_is_the_same(
    finished: tuple[Path, str], tmp_path: Path
) -> None:
    whole = finished[0]
    folder = clone(tmp_path / "second", {"workers": 1, "reverse": True})
    drawn, written = random.Random(), written_by_cells(whole)
    for _ in range(KILLS):
        growth = drawn.uniform(0.1, 1.2) * written / (KILLS + 1)
        end(folder, partial(written_by_cells, folder), growth, drawn.choice((signal.SIGKILL, signal.SIGTERM)))
    continued(folder, whole)

"""``nox -s soak``: the preset ``smoke`` ended again and again, and continued, is the one left alone."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from .test_pipeline import KILLS, clone, environment, finished, modified, run

pytestmark = pytest.mark.slow("the whole pipeline")

__all__ = ["finished"]

SETTLING_SECONDS = 5.0


def progress(folder: Path) -> int:
    """Bytes of what cells have written so far."""
    return sum(path.stat().st_size for path in folder.glob("work/cells/*/metrics.jsonl"))


def settled(folder: Path) -> int:
    """Those bytes, once workers whose driver was killed have noticed it and write no more."""
    before = -1
    while before != (now := progress(folder)):
        before = now
        time.sleep(SETTLING_SECONDS)
    return now


def end(folder: Path, growth: int, number: signal.Signals) -> bool:
    """Run ``repro`` until it has written so much more, then end it; False where it was finished before.

    SIGKILL ends everything at once; SIGTERM goes to the command alone, as from ``kill``.
    """
    before = settled(folder)
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments", "repro"],
        cwd=folder,
        env=environment(),
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while progress(folder) < before + growth and process.poll() is None:
        time.sleep(0.1)
    if process.poll() is not None:
        return False
    (os.killpg if number == signal.SIGKILL else os.kill)(process.pid, number)
    said = process.communicate()[1]
    if number == signal.SIGTERM:
        assert process.returncode == 128 + number
        assert said.rstrip().splitlines()[-1].startswith("stopped by SIGTERM: ")
        assert "Traceback" not in said
    return True


@pytest.mark.skipif(not KILLS, reason="nox -s soak; a cell that is killed is in test_cell.py")
def test_stopped_or_killed_and_continued_in_another_order_on_one_worker_the_lock_is_the_same(
    finished: tuple[Path, str], tmp_path: Path
) -> None:
    whole = finished[0]
    folder = clone(tmp_path / "second", {"workers": 1, "reverse": True})
    drawn = random.Random()
    written = sum(
        (whole / "work" / "cells" / state["run_id"] / "metrics.jsonl").stat().st_size
        for path in whole.glob("outputs/*/*/cells.json")
        for state in json.loads(path.read_text())["cells"]
    )
    ends = 0
    while ends < KILLS:
        growth = int(drawn.uniform(0.1, 1.2) * written / (KILLS + 1))
        number = drawn.choice((signal.SIGKILL, signal.SIGTERM))
        print(f"end {ends + 1}: {number.name} after {growth} more bytes", flush=True)
        assert end(folder, growth, number), "it was finished before it was ended"
        ends += 1
    done = modified(folder, "work/cells/*/done.json")
    run(folder, "-m", "experiments", "repro")
    after = modified(folder, "work/cells/*/done.json")
    assert done.items() <= after.items()
    assert len(after) > len(done)
    # DVC keeps the order in which stages came into it.
    first, second = (yaml.safe_load((each / "dvc.lock").read_text())["stages"] for each in (whole, folder))
    assert second == first

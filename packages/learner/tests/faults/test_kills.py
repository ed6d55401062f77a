"""A process killed at random moments: the finished run equals the undisturbed one, bit for bit, ledger included.

ISOCOMPUTE_LEARNER_FAULTS says how many SIGKILLs, 2 by default: by turns at a moment of its time, and at a call
that writes. A rank that is killed is of ``ranks/test_group.py``.
"""

import json
import multiprocessing
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import killed_run
import polars as pl
import pytest
from sharded_ranks import forking

pytestmark = pytest.mark.slow("processes that train and are killed")

FAULTS = int(os.environ.get("ISOCOMPUTE_LEARNER_FAULTS", "2"))

forks = multiprocessing.get_context("forkserver")


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    with forking("killed_run"):
        yield


def spawn(*arguments: Any) -> BaseProcess:
    process = forks.Process(target=killed_run.run, args=arguments)
    process.start()
    return process


def exit_code(process: BaseProcess) -> int | None:
    process.join()
    return process.exitcode


def kill_later(process: int | None, home: Path, moment: tuple[int, float]) -> None:
    """Kill a process when its sampler has answered so many bytes, and some time (s) after; nothing, if it has ended."""

    def wait() -> None:
        answers = home / "answers"
        while not answers.exists() or answers.stat().st_size < moment[0]:
            time.sleep(0.001)
        time.sleep(moment[1])
        # A process that has ended, and whose number another might have got, has written this.
        if process is not None and not (home / "writes").exists():
            os.kill(process, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def outcome(home: Path) -> tuple[Any, ...]:
    """All that must be the same."""
    checkpoints = sorted(path.name for path in (home / "checkpoints").iterdir())
    newest = home / "checkpoints" / checkpoints[-1]
    stored = [newest / "tensors-00000.safetensors", newest / "state.json", home / "policy" / "model.safetensors"]
    ledger = pl.read_parquet(home / "ledger.parquet")
    return (home / "evals.json").read_text(), ledger.rows(), checkpoints, *(path.read_bytes() for path in stored)


def check_paid(home: Path, whole: Path) -> None:
    """What a kill lost was paid for, too, and nothing twice: whole charges since a checkpoint, and each sync check.

    Args:
        home: The folder of a run that was killed once.
        whole: That of the run left alone.
    """
    batch, evaluation, check = killed_run.RUN.batch_rollouts, 4, 8
    mine, alone = (json.loads((path / "totals.json").read_text()) for path in (home, whole))
    assert mine["used"] == alone["used"] == killed_run.STEPS * batch
    lost, check_alone = (pl.read_parquet(path / "lost.parquet") for path in (home, whole))
    assert check_alone["rollouts"].to_list() == [check]
    assert mine["paid"] - alone["paid"] == lost["rollouts"].sum() - check
    trained = lost.filter(pl.col("cohort") == "trained")
    last = killed_run.EVERY * (int(trained["step"].min() or 1) // killed_run.EVERY)
    assert trained["step"].to_list() == list(range(last + 1, last + 1 + len(trained)))
    assert trained["rollouts"].to_list() == [batch] * len(trained)
    assert len(trained) <= killed_run.EVERY
    others = sorted(lost.filter(pl.col("cohort") == "eval")["rollouts"].to_list())
    # The canaries of both starts, unless the first was killed before, and at most one evaluation.
    assert others in ([check], [check] * 2, [evaluation, check], [evaluation, check, check])
    assert len(trained) + len(others) == len(lost)
    answered, answered_alone = ([int(n) for n in (path / "answers").read_text().split()] for path in (home, whole))
    assert sum(answered_alone) == alone["paid"]
    # A kill between an answer and its charge leaves that one unpaid.
    assert sum(answered) - mine["paid"] in (0, batch, evaluation, check)


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("whole")
    assert exit_code(spawn(home, model)) == 0
    return home


def killed(kind: str, home: Path, model: Path, whole: Path, source: random.Random) -> bool:
    """Start a run and kill it; returns whether it was killed before it had ended."""
    if kind == "write":
        process = spawn(home, model, source.randint(1, int((whole / "writes").read_text())))
    else:
        process = spawn(home, model)
        step = ((whole / "writes").stat().st_mtime - (whole / "training").stat().st_mtime) / killed_run.STEPS
        size = (whole / "answers").stat().st_size
        kill_later(process.pid, home, (round(source.random() * size), source.random() * step))
    code = exit_code(process)
    assert code in (0, -signal.SIGKILL)
    return code != 0


@pytest.mark.parametrize("number", range(FAULTS))
def test_a_run_that_was_killed_and_started_again_is_the_run_left_alone(
    number: int, model: Path, whole: Path, tmp_path: Path
) -> None:
    kind, source = ("write", "time")[number % 2], random.Random(number)
    for attempt in range(9):
        # Where it had ended before the moment came, there is another.
        home = tmp_path / str(attempt)
        home.mkdir()
        if killed(kind, home, model, whole, source):
            break
    else:
        pytest.fail("no process could be killed before it had ended")
    assert exit_code(spawn(home, model)) == 0
    assert outcome(home) == outcome(whole)
    trained = pl.read_parquet(home / "ledger.parquet").filter(pl.col("cohort") == "trained")
    # C_used = Σ B_p · n over the steps taken.
    assert trained["rollouts"].to_list() == [killed_run.RUN.batch_rollouts] * killed_run.STEPS
    check_paid(home, whole)
    shutil.rmtree(tmp_path)

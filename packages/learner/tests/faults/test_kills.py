"""Processes killed at random moments: the finished run equals the undisturbed one, bit for bit, ledger included.

A learner of one rank, at a random moment or in the middle of a write; ISOCOMPUTE_LEARNER_FAULTS says how many in all.
Ranks that die are in ``ranks/test_group.py``, and workers in the tests of ``experiments``.
"""

import itertools
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

KINDS = list(itertools.islice(itertools.cycle(("write", "learner")), FAULTS))

forks = multiprocessing.get_context("forkserver")


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    """A process to fork from."""
    with forking("killed_run"):
        yield


def spawn(home: Path, model: Path, dies_at: int = 0) -> BaseProcess:
    process = forks.Process(target=killed_run.alone, args=(home, model, dies_at))
    process.start()
    return process


def exit_code(process: BaseProcess) -> int | None:
    process.join()
    return process.exitcode


def kill_later(process: int, home: Path, whole: Path, source: random.Random) -> None:
    """Kill a process at a random moment: after so many bytes of what its sampler answered, and within a step after."""
    seconds = (whole / "totals.json").stat().st_mtime - (whole / "training").stat().st_mtime
    size, delay = source.random() * (whole / "answers").stat().st_size, source.random() * seconds / killed_run.STEPS

    def wait() -> None:
        answers = home / "answers"
        while not answers.exists() or answers.stat().st_size < round(size):
            time.sleep(0.001)
        time.sleep(delay)
        # A process that has ended, and whose number another might have got, has written this.
        if not (home / "totals.json").exists():
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
    """A run that was left alone."""
    home = tmp_path_factory.mktemp("one")
    assert exit_code(spawn(home, model)) == 0
    return home


def kill(kind: str, home: Path, model: Path, whole: Path, source: random.Random) -> bool:
    """Start a run and kill it; returns whether it was killed before it had ended."""
    writes = int((whole / "writes").read_text())
    process = spawn(home, model, *([source.randint(1, writes)] if kind == "write" else []))
    if kind == "learner":
        assert process.pid is not None
        kill_later(process.pid, home, whole, source)
    code = exit_code(process)
    assert code in (0, -signal.SIGKILL)
    return code != 0


@pytest.mark.parametrize(("number", "kind"), list(enumerate(KINDS)))
def test_a_run_that_was_killed_and_started_again_is_the_run_left_alone(
    number: int, kind: str, model: Path, whole: Path, tmp_path: Path
) -> None:
    source = random.Random(number)
    for attempt in range(9):
        # Where it had ended before the moment came, there is another.
        home = tmp_path / str(attempt)
        home.mkdir()
        if kill(kind, home, model, whole, source):
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

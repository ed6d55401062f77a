"""Processes killed at random moments: the finished run equals the undisturbed one, bit for bit, ledger included.

Four kinds of SIGKILL, of which two by default; ISOCOMPUTE_LEARNER_FAULTS says how many in all.
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import killed_run
import polars as pl
import pytest
from isocompute.learner.errors import RankError
from isocompute.learner.ranks.group import LearnerGroup
from sharded_ranks import forking

pytestmark = pytest.mark.slow("processes that train and are killed")

FAULTS = int(os.environ.get("ISOCOMPUTE_LEARNER_FAULTS", "2"))

# The first two need no cluster.
ONE_OF_EACH = ("write", "learner", "rank", "driver")

# In a long campaign those that need new processes of Ray, which take seconds to start, come less often.
OFTEN = (*("learner", "write") * 6, "rank", "driver")
KINDS = list(itertools.islice(itertools.chain(ONE_OF_EACH, itertools.cycle(OFTEN)), FAULTS))

forks = multiprocessing.get_context("forkserver")


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    """A process to fork from."""
    with forking("killed_run"):
        yield


@dataclass
class Undisturbed:
    """A run that was left alone, and how long it took from the sync check to the end (s)."""

    home: Path
    seconds: float

    def moment(self, source: random.Random) -> tuple[int, float]:
        """A random moment: so many bytes of what its sampler answered, and some time (s) within a random step after."""
        size = (self.home / "answers").stat().st_size
        return round(source.random() * size), source.random() * self.seconds / killed_run.STEPS


def spawn(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    process = forks.Process(target=target, args=arguments)
    process.start()
    return process


def exit_code(process: BaseProcess) -> int | None:
    process.join()
    return process.exitcode


def kill_later(process: int | None, home: Path, moment: tuple[int, float]) -> None:
    """Kill a process at some moment; nothing, where it has ended before."""

    def wait() -> None:
        answers = home / "answers"
        while not answers.exists() or answers.stat().st_size < moment[0]:
            time.sleep(0.001)
        time.sleep(moment[1])
        # A process that has ended, and whose number another might have got, has written this.
        if process is not None and not (home / "totals.json").exists():
            os.kill(process, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def outcome(home: Path) -> tuple[Any, ...]:
    """All that must be the same."""
    checkpoints = sorted(path.name for path in (home / "checkpoints").iterdir())
    newest = home / "checkpoints" / checkpoints[-1]
    stored = [newest / "tensors-00000.safetensors", newest / "state.json", home / "policy" / "model.safetensors"]
    ledger = pl.read_parquet(home / "ledger.parquet")
    return (home / "evals.json").read_text(), ledger.rows(), checkpoints, *(path.read_bytes() for path in stored)


def check_paid(home: Path, whole: Path, *, intervals: int) -> None:
    """What a kill lost was paid for, too, and nothing twice: whole charges since a checkpoint, and each sync check.

    Args:
        home: The folder of a run that was killed once.
        whole: That of the run left alone.
        intervals: Intervals between checkpoints whose steps a kill may lose: several ranks write one during the next.
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
    assert len(trained) <= intervals * killed_run.EVERY
    others = sorted(lost.filter(pl.col("cohort") == "eval")["rollouts"].to_list())
    # The canaries of both starts, unless the first was killed before, and at most one evaluation.
    assert others in ([check], [check] * 2, [evaluation, check], [evaluation, check, check])
    assert len(trained) + len(others) == len(lost)
    answered, answered_alone = ([int(n) for n in (path / "answers").read_text().split()] for path in (home, whole))
    assert sum(answered_alone) == alone["paid"]
    # A kill between an answer and its charge leaves that one unpaid.
    assert sum(answered) - mine["paid"] in (0, batch, evaluation, check)


def undisturbed(home: Path) -> Undisturbed:
    seconds = (home / "totals.json").stat().st_mtime - (home / "training").stat().st_mtime
    return Undisturbed(home, seconds)


@pytest.fixture(scope="module")
def one_rank(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    home = tmp_path_factory.mktemp("one")
    assert exit_code(spawn(killed_run.alone, home, model)) == 0
    return undisturbed(home)


@pytest.fixture(scope="module")
def group(model: Path, cluster: None) -> Iterator[LearnerGroup]:
    ranks = LearnerGroup(model, killed_run.CONFIG, world_size=2, grace=1)
    yield ranks
    ranks.close()


@pytest.fixture(scope="module")
def two_ranks(group: LearnerGroup, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    home = tmp_path_factory.mktemp("two")
    killed_run.run(home, model, group, killed_run.Replay(model))
    return undisturbed(home)


def killed_process(target: Callable[..., None], home: Path, moment: tuple[int, float], *arguments: Any) -> bool:
    process = spawn(target, home, *arguments)
    kill_later(process.pid, home, moment)
    code = exit_code(process)
    assert code in (0, -signal.SIGKILL)
    return code != 0


def killed_rank(home: Path, model: Path, moment: tuple[int, float], group: LearnerGroup, rank: int) -> bool:
    """The driver outlives its ranks: it starts new ones, and goes on in the same process."""
    import ray

    group.reset(killed_run.CONFIG)
    process = group._ranks[rank].__ray_call__.remote(lambda actor: os.getpid())
    kill_later(int(ray.get(process)), home, moment)
    try:
        killed_run.run(home, model, group, killed_run.Replay(model))
    except RankError:
        group.reset(killed_run.CONFIG)
        killed_run.run(home, model, group, killed_run.Replay(model))
        return True
    return False


def of_cluster() -> tuple[str, dict[str, str]]:
    """What another process must know to join the cluster."""
    import ray

    variables = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
    return str(ray.get_runtime_context().gcs_address), variables


def kill(kind: str, home: Path, model: Path, whole: Undisturbed, source: random.Random, group: Any) -> bool:
    """Start a run and kill one of its processes; returns whether it was killed before it had ended."""
    moment = whole.moment(source)
    if kind == "rank":
        return killed_rank(home, model, moment, group, source.randrange(2))
    if kind == "driver":
        # Its ranks have the processors.
        group.close()
        return killed_process(killed_run.drive, home, moment, model, *of_cluster())
    if kind == "learner":
        return killed_process(killed_run.alone, home, moment, model)
    writes = int((whole.home / "writes").read_text())
    return exit_code(spawn(killed_run.alone, home, model, source.randint(1, writes))) == -signal.SIGKILL


@pytest.mark.parametrize(("number", "kind"), list(enumerate(KINDS)))
def test_a_run_that_was_killed_and_started_again_is_the_run_left_alone(
    number: int, kind: str, model: Path, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source = random.Random(number)
    needed = {"rank": "two_ranks", "driver": "two_ranks"}
    whole: Undisturbed = request.getfixturevalue(needed.get(kind, "one_rank"))
    group = request.getfixturevalue("group") if kind in needed else None
    for attempt in range(9):
        # Where it had ended before the moment came, there is another.
        home = tmp_path / str(attempt)
        home.mkdir()
        if kill(kind, home, model, whole, source, group):
            break
    else:
        pytest.fail("no process could be killed before it had ended")
    if kind != "rank":
        again, more = (killed_run.drive, of_cluster()) if kind == "driver" else (killed_run.alone, ())
        assert exit_code(spawn(again, home, model, *more)) == 0
    assert outcome(home) == outcome(whole.home)
    trained = pl.read_parquet(home / "ledger.parquet").filter(pl.col("cohort") == "trained")
    # C_used = Σ B_p · n over the steps taken.
    assert trained["rollouts"].to_list() == [killed_run.RUN.batch_rollouts] * killed_run.STEPS
    check_paid(home, whole.home, intervals=2 if kind in needed else 1)
    shutil.rmtree(tmp_path)

"""A sweep of which all is real but its workers: they have no engine and no learner, and a file names their faults."""

from __future__ import annotations

import fcntl
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from isocompute.learner import LearnerConfig

from experiments.running import cell_folder, cluster, schedule
from experiments.running.cell_folder import Spool
from experiments.running.cells import Cell, WorkerConfig
from experiments.running.cluster import WorkerActor
from experiments.settings import load

from ..made import PARAMS, cell, ended, evaluation_record, first_evaluation, keep, kept_checkpoint, step_record, took

BATCH = 8
"""Rollouts of a step, whatever a cell's settings."""


class StubActor:
    """Takes the place of ``WorkerActor``."""

    place = WorkerActor.place

    def open(self, config: WorkerConfig) -> tuple[str, int]:
        self._policies = config.resources.keep_policies
        return "stub", os.getpid()

    def call(self, method: str, *arguments: Any) -> Any:
        return getattr(self, method)(*arguments)

    def sample(self, problems: pl.DataFrame, samples: int, seed: int, phase: str) -> pl.DataFrame:
        """Every response is right."""
        ids = [[1]] * samples
        answers = pl.DataFrame({"sample": range(len(ids)), "prompt_ids": ids, "response_ids": ids})
        answered = problems.select("problem_id").join(answers, how="cross")
        return answered.with_columns(reward=1.0, finish_reason=pl.lit("stop"))

    def check(self, configs: Sequence[LearnerConfig], problems: pl.DataFrame) -> None:
        """Agree with every learner, up to the last bits."""
        for config in configs:
            if (config.tolerances.tolerance or 1.0) < 1e-9:
                raise ValueError("the sampler does not agree with the learner")

    def evaluate_baseline(self, cell: Cell, problems: pl.DataFrame, home: Path) -> None:
        os.chdir(home.parents[2])
        if random.random() < json.loads(Path("faults.json").read_text())["deaths"]:
            os.kill(os.getpid(), signal.SIGKILL)
        cell_folder.write_baseline(home, first_evaluation({"avg_at_4": 0.25}, 8))
        note(f"start {cell.baseline_id}")

    def train(self, cell: Cell, problems: pl.DataFrame, folder: Path, start: Path) -> None:
        """Take steps, a checkpoint after each fourth, and die or fail as the file says."""
        os.chdir(folder.parents[2])
        folder.mkdir(parents=True, exist_ok=True)
        faults = json.loads(Path("faults.json").read_text())
        with (folder / "lock").open("w") as lock:
            # A second worker on one cell would be an error of the code.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # As a worker does: its node may be lost after the cell was finished, before the driver hears of it.
            if not cell_folder.finished(cell, folder):
                self._train(cell, folder, faults)
            if cell_folder.lacks_policy(cell, folder, self._policies):
                cell_folder.policy_of(folder).mkdir()
                cell_folder.set_policy(folder, cell.rollouts // BATCH)

    def _train(self, cell: Cell, folder: Path, faults: dict[str, Any]) -> None:
        note(f"begun {cell.run_id}")
        if cell.name in faults["fails"]:
            raise ValueError("this cell cannot be trained")
        spool = Spool(folder)
        at = int(cell_folder.newest_checkpoint(folder).rpartition("-")[2] or 0)
        spool.rewind(BATCH * at)
        steps = cell.rollouts // BATCH
        dies_at = random.randint(1, steps) if random.random() < faults["deaths"] else 0
        while at < steps:
            at += 1
            time.sleep(faults["step_seconds"])
            if at == dies_at or cell.name in faults["kills"]:
                os.kill(os.getpid(), signal.SIGKILL)
            spool.write(step_record(at))
            stopped = cell_folder.stop_requested(folder)
            if at % 4 == 0 or stopped:
                spool.write(evaluation_record(at, 0.25))
                self._save(folder, at)
            if stopped:
                note(f"stopped {cell.run_id}")
                return
        ended(cell, budget=cell.rollouts)
        keep(folder, "timings", took(cell))
        note(f"finished {cell.run_id}")

    def _save(self, folder: Path, at: int) -> None:
        """Write a checkpoint; to a disk that is full while the file ``full`` is there."""
        if Path("full").exists():
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        try:
            kept_checkpoint(folder, step=at)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def note(line: str) -> None:
    """Append to what the campaign reads afterwards; one write, so that lines of several workers stay whole."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    handle = os.open("work/attempts", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{line} {node}\n".encode())
    os.close(handle)


def main(cells: int, at_once: int, first_backoff: float) -> int:
    """Run cells, and say what processor time this process took."""
    cluster.install()
    schedule.BACKOFF_SECONDS = first_backoff
    schedule.PRUNE_SECONDS = 5.0
    # A stub loads nothing that could be compared.
    schedule.check = lambda loaded, **expected: None
    schedule.WorkerActor = StubActor
    preset = load(PARAMS, "smoke")
    resources = {"workers": at_once, "sampler": "transformers", "stall_seconds": 30.0, "start_seconds": 300.0}
    preset = preset.model_copy(update={"resources": preset.resources.model_copy(update=resources)})
    # One first evaluation serves several cells.
    swept = [cell(seed=seed, rollouts_per_problem=n) for seed in range(cells // 4) for n in (2, 4, 8, 16)]
    problems = pl.DataFrame({"problem_id": ["p"], "prompt": ["1"], "answer": ["1"]})
    try:
        with schedule.workers(preset, {"base": "model"}) as pool:
            schedule.Schedule(swept, {swept[0].origin.problems: problems}, pool, "soak", title="soak").finish()
    except cluster.Stopped as stopped:
        print(f"{stopped}: the same command continues", file=sys.stderr)
        return stopped.exit_code
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        used = resource.getrusage(resource.RUSAGE_SELF)
        print(f"driver: {used.ru_utime + used.ru_stime:.1f} s of processor time", flush=True)
    return 0

"""Cells that sample ahead of their updates: on the virtual clock, a constant number of steps, and beside an engine."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from isocompute.learner import StepRecord
from isocompute.learner.config import PipelineConfig
from ray.util.placement_group import remove_placement_group

from experiments.running import cell_folder
from experiments.running.cell_folder import Spool
from experiments.running.cells import Cell, WorkerConfig
from experiments.running.worker import Worker
from experiments.settings import CheckpointsConfig, ResourcesConfig

from .made import BASE, GENERATION, cell, lost, sums

pytestmark = [pytest.mark.slow("cells that train, and Ray"), pytest.mark.xdist_group("cluster")]


def worker_of(**resources: Any) -> Worker:
    base = cell_folder.content_hash(BASE)
    checkpoints = CheckpointsConfig(every_evaluations=None, every_steps=3)
    own = ResourcesConfig(sampler="transformers", checkpoints=checkpoints, keep_policies="all", **resources)
    return Worker(WorkerConfig(models={base: str(BASE)}, generation=GENERATION, resources=own))


@pytest.fixture(scope="module")
def worker() -> Worker:
    return worker_of()


@pytest.fixture(scope="module")
def problems() -> pl.DataFrame:
    return sums(12, 8)


def lagged(mode: Any, lag: int = 3, **changes: Any) -> Cell:
    one = cell(base=cell_folder.content_hash(BASE), **changes)
    pipeline = PipelineConfig(lag=lag, mode=mode, update_time=3.5 if mode == "virtual" else None)
    return replace(one, learner=replace(one.learner, pipeline=pipeline))


def steps_of(home: Path) -> list[StepRecord]:
    return [record for record in Spool(home).records() if isinstance(record, StepRecord)]


def check_account(home: Path, *, budget: int = 96) -> None:
    """The whole budget is spent, step by step, and nothing was learnt from that was too old."""
    ledger = pl.read_parquet(home / "ledger.parquet")
    counted = ledger.filter(pl.col("cohort") != "eval")
    assert counted.group_by("step").agg(pl.col("rollouts").sum()).sort("step")["rollouts"].to_list() == [8] * (
        budget // 8
    )
    lags = [record.lag for record in steps_of(home)]
    assert len(lags) == budget // 8
    assert max(lag.lag_max for lag in lags if lag) <= 3
    evals = pl.read_parquet(home / "evals.parquet")
    assert evals["rollouts"].to_list() == list(range(0, budget + 1, 32))


@pytest.mark.parametrize("mode", ["virtual", "constant"])
def test_a_cell_with_a_lag_that_was_cut_off_and_extended_is_the_cell_left_alone(
    mode: str, worker: Worker, problems: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, start = lagged(mode), tmp_path / "start"
    worker.train(one, problems, tmp_path / "alone", start)
    check_account(tmp_path / "alone")
    seen, write = [0], Spool.write

    def cut_off(self: Spool, record: Any) -> None:
        write(self, record)
        seen[0] += 1
        if seen[0] in (5, 9):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Spool, "write", cut_off)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                worker.train(one, problems, tmp_path / "cut", start)
        worker.train(one, problems, tmp_path / "cut", start)
    for table in ("evals", "ledger", "pass_rates"):
        alone, cut = (pl.read_parquet(tmp_path / name / f"{table}.parquet") for name in ("alone", "cut"))
        assert cut.equals(alone), table
    # What was in flight was paid for, and is in no table.
    assert lost(tmp_path / "cut") > 0
    assert cell_folder.has_policy(tmp_path / "cut")
    longer = replace(one, rollouts=160)
    worker.train(longer, problems, tmp_path / "cut", start)
    worker.train(longer, problems, tmp_path / "once", start)
    for table in ("evals", "ledger", "pass_rates"):
        once, extended = (pl.read_parquet(tmp_path / name / f"{table}.parquet") for name in ("once", "cut"))
        assert extended.equals(once), table


def test_a_stop_between_two_steps_leaves_a_cell_to_go_on_from(
    worker: Worker, problems: pl.DataFrame, tmp_path: Path
) -> None:
    one = lagged("virtual")
    worker.train(replace(one, rollouts=32), problems, tmp_path / "home", tmp_path / "start")
    cell_folder.request_stop(tmp_path / "home")
    worker.train(one, problems, tmp_path / "home", tmp_path / "start")
    assert not cell_folder.finished(one, tmp_path / "home")
    cell_folder.clear_stop(tmp_path / "home")
    worker.train(one, problems, tmp_path / "home", tmp_path / "start")
    check_account(tmp_path / "home")


def test_an_engine_of_its_own_samples_while_the_learner_learns(
    cluster: None, problems: pl.DataFrame, tmp_path: Path
) -> None:
    worker = worker_of(placement="separate")
    try:
        worker.train(lagged("in_flight"), problems, tmp_path / "home", tmp_path / "start")
    finally:
        worker._sampler.close()
        remove_placement_group(worker._group)
    check_account(tmp_path / "home")
    found = [record.lag for record in steps_of(tmp_path / "home") if record.lag is not None]
    assert any(lag.lag_mean > 0 for lag in found)
    assert all(lag.engines_idle_share is not None and 0 <= lag.engines_idle_share <= 1 for lag in found)

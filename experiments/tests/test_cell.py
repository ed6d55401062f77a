"""GRPO in one cell: killed and continued (on vLLM, too), extended, stopped, diverged, and with its parts apart."""

import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest
import torch
from isocompute.budget import History, Ledger
from isocompute.budget.ledger.ledger import under_way
from isocompute.learner import Checkpoints, LearnerConfig, StepRecord, SyncConfig, SyncError
from isocompute.learner.config import AdapterConfig, OptimizerConfig, PipelineConfig
from isocompute.learner.saving.export import save_policy
from ray.cluster_utils import Cluster
from safetensors.torch import load_file
from transformers import AutoTokenizer, LlamaForCausalLM

from experiments.errors import ExperimentError
from experiments.running import cell_folder
from experiments.running import worker as running
from experiments.running.cell_folder import Spool
from experiments.running.cells import WorkerConfig
from experiments.running.worker import Worker
from experiments.settings import ResourcesConfig

from .made import BASE, GENERATION, cell, lost, sums

pytestmark = pytest.mark.slow("vLLM and Ray")

forks = multiprocessing.get_context("forkserver")
RANK, ENGINE = "ray::RankActor", "ray::Replica"
"""Names of the processes of a learner's rank and of an engine, as Ray gives them."""


@pytest.fixture(scope="module")
def server() -> Iterator[None]:
    """A process to fork from, where another file of tests may have left one that has imported something else."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    forks.set_forkserver_preload(["experiments.tests.run_cell"])
    with pytest.MonkeyPatch.context() as patch:
        # Python 3.11 does not hand the path on, and says nothing of a module that it does not find.
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        forkserver.ensure_running()
    yield
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def home(server: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with problems."""
    folder = tmp_path_factory.mktemp("cells")
    sums(12, 8).write_parquet(folder / "problems.parquet")
    return folder


def start(*folders: Path, **settings: object) -> BaseProcess:
    """Run a cell in a process of its own, forked from one that has imported vLLM (which takes half a minute)."""
    process = forks.Process(target=_run, args=(folders, settings))
    process.start()
    return process


def _run(folders: Sequence[Path], settings: dict[str, Any]) -> None:
    from .run_cell import main

    main(folders, **settings)


def exit_code(process: BaseProcess) -> int | None:
    process.join()
    return process.exitcode


def wait(folder: Path, lines: int, process: BaseProcess) -> None:
    """Wait until a cell that runs has so many lines in its spool."""
    while process.is_alive() and len(Spool(folder).records()) < lines:
        time.sleep(0.02)
    assert process.is_alive()


def kill_after(folder: Path, lines: int, process: BaseProcess) -> None:
    """Kill a cell's process once its spool has so many lines."""
    wait(folder, lines, process)
    process.kill()
    assert exit_code(process) == -signal.SIGKILL


def kill_one(folder: Path, lines: int, cell: BaseProcess, name: str) -> None:
    """Kill the last of a cell's processes of a name once its spool has so many lines."""
    wait(folder, lines, cell)
    every = [each for each in psutil.Process(cell.pid).children(recursive=True) if each.name().startswith(name)]
    assert len(every) == (2 if name == RANK else 1)
    every[-1].kill()


def tables_of(folder: Path, steps: int) -> list[pl.DataFrame]:
    """What a cell has found in so many steps."""
    found = [pl.read_parquet(folder / f"{name}.parquet") for name in ("evals", "ledger", "pass_rates")]
    return [table.filter(pl.col("step") <= steps) for table in found]


def same(one: Path, other: Path, steps: int = 12) -> bool:
    """Whether two cells found the same in so many steps."""
    return all(a.equals(b) for a, b in zip(tables_of(one, steps), tables_of(other, steps), strict=True))


@pytest.fixture(scope="module")
def alone(home: Path) -> Path:
    """The cell, run to 192 rollouts at once and left alone; when checkpoints are saved changes no result."""
    assert exit_code(start(home / "alone", rollouts=192, every_evaluations=3, every_steps=5, keep=2)) == 0
    return home / "alone"


def test_a_killed_run_and_then_a_longer_one_equal_the_one_left_alone(home: Path, alone: Path) -> None:
    evals, ledger, _ = tables_of(alone, 12)
    assert evals["rollouts"].to_list() == [0, 32, 64, 96]
    # C_used = Σ B_p · n over the steps taken.
    assert ledger.filter(pl.col("cohort") == "trained")["rollouts"].to_list() == [8] * 12
    # The evaluation before the first update is shared, and charged where it was made.
    assert ledger.filter(pl.col("cohort") == "eval")["step"].to_list() == [4, 8, 12]
    assert pl.read_parquet(home / "alone-start" / "ledger.parquet")["rollouts"].to_list() == [8 * 4]
    killed = home / "killed"
    for lines in (3, 11):
        kill_after(killed, lines, start(killed))
    # What a kill inside the writing of pass rates leaves behind is no table, and no obstacle.
    (killed / "pass_rates" / ".4.parquet.x1y2").write_bytes(b"PAR1")
    assert exit_code(start(killed)) == 0
    assert same(killed, alone)
    assert tables_of(killed, 24)[0].equals(evals)
    with Ledger.open(killed / "run.ledger", run_id=ledger["run_id"][0], resumed_from=12) as reopened:
        assert reopened.totals.paid.rollouts > ledger["rollouts"].sum()
    before = lost(killed)
    assert before > 0
    # And extended, which trains only the rest.
    assert exit_code(start(killed, rollouts=192)) == 0
    assert same(killed, alone, 24)
    kept = [sorted((folder / "checkpoints").glob("step-*")) for folder in (alone, killed)]
    assert [[int(step.name.removeprefix("step-")) for step in steps] for steps in kept] == [[20, 24]] * 2
    weights = [(steps[-1] / "tensors-00000.safetensors").read_bytes() for steps in kept]
    assert weights[0] == weights[1]
    records = Spool(killed).records()
    assert [record.step for record in records if isinstance(record, StepRecord)] == list(range(1, 25))
    assert cell_folder.done(killed) == cell_folder.Done(rollouts=192, step=24, diverged_at=None)
    assert lost(killed) == before


def test_on_vllm_a_killed_run_equals_the_one_before_it_on_the_same_engine(home: Path) -> None:
    alone, killed = home / "alone-on-vllm", home / "killed-on-vllm"
    kill_after(killed, 8, start(alone, killed, sampler="vllm"))
    assert cell_folder.done(alone) is not None
    assert exit_code(start(killed, sampler="vllm")) == 0
    assert same(killed, alone)
    assert lost(killed) > 0


def test_engines_and_ranks_of_their_own_spend_the_same_and_go_on_where_a_rank_dies(home: Path, alone: Path) -> None:
    apart = home / "apart"
    cell = start(apart, placement="separate", ranks=2)
    kill_one(apart, 7, cell, RANK)
    assert exit_code(cell) == 0
    # As it was alone, each point and what was charged until then; a rank's sums round in another order.
    (ours, spent, _), (theirs, known, _) = tables_of(apart, 12), tables_of(alone, 12)
    assert ours[0].equals(theirs[0])
    assert ours["rollouts"].equals(theirs["rollouts"])
    assert spent["cohort", "step", "rollouts"].equals(known["cohort", "step", "rollouts"])
    timings = pl.read_parquet(apart / "timings.parquet")
    # The worker, two ranks and the engine.
    assert timings["device_seconds"].sum() == pytest.approx(4 * timings["seconds"].sum())
    assert cell_folder.done(apart) == cell_folder.Done(rollouts=96, step=12, diverged_at=None)
    assert lost(apart) > 0


def test_a_run_in_flight_whose_rank_and_then_engine_die_learns_from_every_batch_once(home: Path) -> None:
    flying = home / "flying"
    cell = start(flying, placement="separate", ranks=2, lag=3)
    kill_one(flying, 5, cell, RANK)
    # Of one engine none is left, where it dies: a schedule starts the worker again, as is done here.
    kill_one(flying, 10, cell, ENGINE)
    assert exit_code(cell) == 1
    assert exit_code(start(flying, placement="separate", ranks=2, lag=3)) == 0
    check_once(flying)
    # The engine sampled while the learner learnt.
    lags = [each for record in Spool(flying).records() if isinstance(record, StepRecord) and (each := record.lag)]
    assert any(lag.lag_mean > 0 for lag in lags)
    assert all(lag.engines_idle_share is not None and 0 <= lag.engines_idle_share <= 1 for lag in lags)


def check_once(folder: Path) -> None:
    """A cell that was cut off has learnt from every batch once, within its budget, and all it made is charged."""
    ledger = pl.read_parquet(folder / "ledger.parquet").filter(pl.col("cohort") != "eval")
    assert ledger.group_by("step").agg(pl.col("rollouts").sum()).sort("step")["rollouts"].to_list() == [8] * 12
    assert pl.read_parquet(folder / "evals.parquet")["rollouts"].to_list() == [0, 32, 64, 96]
    assert cell_folder.done(folder) == cell_folder.Done(rollouts=96, step=12, diverged_at=None)
    records = Spool(folder).records()
    assert [record.step for record in records if isinstance(record, StepRecord)] == list(range(1, 13))
    assert lost(folder) > 0
    assert not under_way(folder / "run.ledger", History.read(folder / "run.ledger").totals().paid_training)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster whose head has room for no rank and no engine."""
    # Sockets have short paths, and other clusters of this machine are not joined.
    with tempfile.TemporaryDirectory(prefix="nodes", dir="/tmp", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        head = {"num_cpus": 0, "object_store_memory": 80 * 2**20, "include_dashboard": False}
        made = Cluster(initialize_head=True, head_node_args=head)
        yield made
        made.shutdown()


def test_a_run_in_flight_whose_node_dies_with_ranks_learns_from_every_batch_once(home: Path, nodes: Cluster) -> None:
    """Of two ranks and an engine at least one rank is on the larger node."""
    larger, _ = [nodes.add_node(num_cpus=size, object_store_memory=80 * 2**20) for size in (2, 1)]
    folder, settings = home / "node", {"placement": "separate", "ranks": 2, "lag": 3}
    cell = start(folder, address=nodes.address, **settings)
    wait(folder, 5, cell)
    nodes.remove_node(larger, allow_graceful=False)
    nodes.add_node(num_cpus=2, object_store_memory=80 * 2**20)
    # It goes on with new ranks by itself; where its only engine was there, too, a schedule would start it again.
    if exit_code(cell):
        assert exit_code(start(folder, address=nodes.address, **settings)) == 0
    check_once(folder)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved policy, whose weights are not the base model's any more."""
    model = LlamaForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    with torch.no_grad():
        model.lm_head.weight.mul_(1.5)
    folder: Path = save_policy(model.named_parameters(), BASE, tmp_path_factory.mktemp("policy") / "saved")
    saved = LlamaForCausalLM.from_pretrained(folder).state_dict()
    assert all(torch.equal(tensor, saved[name]) for name, tensor in model.state_dict().items())
    return folder


@pytest.fixture(scope="module")
def worker(policy: Path) -> Worker:
    """A worker in this process, whose base model is such a policy."""
    resources = ResourcesConfig(sampler="transformers", keep_policies="last")
    models = {cell_folder.content_hash(policy): str(policy)}
    return Worker(WorkerConfig(models=models, generation=GENERATION, resources=resources, beside_vllm=True))


@pytest.fixture
def make(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes cells of that worker, which is not to ask vLLM again."""
    (base,) = worker.config.models
    monkeypatch.setattr(worker, "_compared", {base})
    return partial(cell, base=base)


def test_a_saved_policy_is_a_base_model_on_which_vllm_agrees_which_is_asked_once_before_its_first_evaluation(
    server: None, worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems, (base,) = sums(1, 8), worker.config.models

    def refuse(*given: object) -> None:
        raise ExperimentError("they differ")

    with monkeypatch.context() as patch:
        patch.setattr(running, "compare_with_vllm", refuse)
        with pytest.raises(ExperimentError, match="they differ"):
            worker.evaluate_baseline(cell(base=base), problems, tmp_path / "refused")
    assert not cell_folder.has_baseline(tmp_path / "refused")
    # Forked, where it would import vLLM anew.
    monkeypatch.setattr(running, "get_context", lambda method: forks)
    for seed in (7, 8):
        worker.evaluate_baseline(cell(base=base, seed=seed), problems, tmp_path / str(seed))
    found = cell_folder.beside_vllm(tmp_path / "7")
    assert set(found) == {"maximum", "mean", "k3", "quantile"}
    assert 0 < found["mean"] <= found["maximum"] < 1e-4
    assert cell_folder.has_baseline(tmp_path / "8")
    assert not cell_folder.beside_vllm(tmp_path / "8")


def test_a_cell_that_is_asked_to_stop_goes_on_from_there_and_its_policy_is_saved_from_its_checkpoint(
    worker: Worker, make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, problems, home, begun = make(purpose="prescribe"), sums(12, 8), tmp_path / "home", tmp_path / "start"
    write = Spool.write

    def stopping(spool: Spool, record: Any) -> None:
        write(spool, record)
        if record.step == 6:
            cell_folder.request_stop(home)

    with monkeypatch.context() as patch:
        patch.setattr(Spool, "write", stopping)
        worker.train(one, problems, home, begun)
    assert cell_folder.done(home) is None
    assert cell_folder.newest_checkpoint(home).endswith("6")
    cell_folder.clear_stop(home)
    worker.train(one, problems, home, begun)
    assert pl.read_parquet(home / "evals.parquet")["rollouts"].to_list() == [0, 32, 64, 96]
    # Nothing was paid for twice.
    assert lost(home) == 0
    saved = load_file(max((home / "checkpoints").glob("step-*/tensors-00000.safetensors")))
    trained = {name.removeprefix("policy."): t for name, t in saved.items() if name.startswith("policy.")}
    assert trained
    before = (home / "ledger.parquet").read_bytes()
    for _ in range(2):
        # Without it the cell is not trained again.
        assert cell_folder.has_policy(home)
        loaded = LlamaForCausalLM.from_pretrained(cell_folder.policy_of(home)).state_dict()
        assert all(torch.equal(tensor, loaded[name]) for name, tensor in trained.items())
        assert len(AutoTokenizer.from_pretrained(cell_folder.policy_of(home))) > 0
        shutil.rmtree(cell_folder.policy_of(home))
        worker.train(one, problems, home, begun)
    assert (home / "ledger.parquet").read_bytes() == before


@pytest.mark.parametrize("mode", ["virtual", "constant"])
def test_a_cell_with_a_lag_that_was_cut_off_and_extended_is_the_cell_left_alone(
    mode: Any, worker: Worker, make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, problems, start = make(purpose="prescribe"), sums(12, 8), tmp_path / "start"
    pipeline = PipelineConfig(lag=3, mode=mode, update_time=3.5 if mode == "virtual" else None)
    one = replace(plain, learner=replace(plain.learner, pipeline=pipeline))
    write, seen = Spool.write, [0]

    def cut_off(spool: Spool, record: Any) -> None:
        write(spool, record)
        seen[0] += 1
        if seen[0] in (5, 9):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Spool, "write", cut_off)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                worker.train(one, problems, tmp_path / "cut", start)
        worker.train(one, problems, tmp_path / "cut", start)
    check_once(tmp_path / "cut")
    assert cell_folder.has_policy(tmp_path / "cut")
    lags = [record.lag for record in Spool(tmp_path / "cut").records() if isinstance(record, StepRecord)]
    assert 0 < max(lag.lag_max for lag in lags if lag) <= 3
    worker.train(one, problems, tmp_path / "alone", start)
    # With what was begun for the steps that the budget does not admit.
    assert same(tmp_path / "cut", tmp_path / "alone", 16)
    for home in ("cut", "once"):
        worker.train(replace(one, rollouts=160), problems, tmp_path / home, start)
    assert same(tmp_path / "cut", tmp_path / "once", 24)


def test_a_cell_that_diverges_is_a_result_and_the_next_one_begins_anew(
    worker: Worker, make: Any, tmp_path: Path
) -> None:
    plain = make().learner
    wild = make(learner=replace(plain, learning_rate=1e30, optimizer=OptimizerConfig(warmup_steps=0)))
    worker.train(wild, sums(12, 8), tmp_path / "wild", tmp_path / "start")
    done = cell_folder.done(tmp_path / "wild")
    assert done is not None
    assert done.diverged_at is not None
    evals, ledger, _ = tables_of(tmp_path / "wild", 12)
    assert evals["rollouts"].to_list() == [0]
    # What was generated for the step that could not be taken is paid for.
    assert ledger.filter(pl.col("cohort") == "trained")["rollouts"].sum() > 0
    adapted = replace(plain, learning_rate=1e-2, adapter=AdapterConfig(rank=8))
    worker.train(make(learner=adapted), sums(12, 8), tmp_path / "adapted", tmp_path / "start")
    records = [record for record in Spool(tmp_path / "adapted").records() if isinstance(record, StepRecord)]
    updates = [record.update for record in records if record.update is not None]
    assert len(updates) == 12
    # The engine holds the base model with its adapter after every sync.
    assert all(update.sync_error < 1e-4 for update in updates)
    # The KL to the base model beneath the adapter, from which the policy has moved.
    assert updates[0].objective["kl"].value == 0
    assert updates[-1].objective["kl"].value > 1e-4
    saved = Checkpoints(tmp_path / "adapted" / "checkpoints").newest()
    assert saved is not None
    assert all(".lora_" in name for name in saved.tensors)


def test_a_worker_whose_engine_and_learner_do_not_agree_is_told(worker: Worker) -> None:
    config = LearnerConfig(learning_rate=1.0)
    worker.check([config], sums(4, 1))
    with pytest.raises(SyncError, match=r"tolerance = 1e-12"):
        worker.check([config, replace(config, sync=SyncConfig(tolerance=1e-12))], sums(4, 1))

"""GRPO in one cell: killed and continued (on vLLM, too), extended, and with its parts in processes of their own."""

import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest
import torch
from isocompute.budget import Ledger
from isocompute.learner import Checkpoints, StepRecord
from isocompute.learner.saving.export import save_policy
from isocompute.rollout import open_sampler
from transformers import LlamaForCausalLM

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
RANK = "ray::RankActor"
"""Name of the process of a learner's rank, as Ray gives it."""


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


def start(folder: Path, **settings: object) -> BaseProcess:
    """Run a cell in a process of its own, forked from one that has imported vLLM (which takes half a minute)."""
    process = forks.Process(target=_run, args=(folder, settings))
    process.start()
    return process


def _run(folder: Path, settings: dict[str, Any]) -> None:
    from .run_cell import main

    main(folder, **settings)


def exit_code(process: BaseProcess) -> int | None:
    process.join()
    return process.exitcode


def kill_after(folder: Path, lines: int, sampler: str) -> None:
    """Start the cell and kill it once its spool has so many lines."""
    process = start(folder, sampler=sampler)
    while process.is_alive() and len(Spool(folder).records()) < lines:
        time.sleep(0.02)
    assert process.is_alive()
    process.kill()
    assert exit_code(process) == -signal.SIGKILL


@pytest.fixture(scope="module")
def alone(home: Path) -> Path:
    """The cell, run to 96 rollouts and left alone."""
    assert exit_code(start(home / "alone")) == 0
    return home / "alone"


@pytest.mark.parametrize(("sampler", "kills"), [("transformers", (3, 8, 13)), ("vllm", (8,))])
def test_a_killed_run_equals_the_run_left_alone(sampler: str, kills: tuple[int, ...], home: Path, alone: Path) -> None:
    killed = home / f"killed-{sampler}"
    if sampler == "vllm":
        alone = home / "alone-on-vllm"
        assert exit_code(start(alone, sampler=sampler)) == 0
    evals = pl.read_parquet(alone / "evals.parquet")
    assert evals["rollouts"].to_list() == [0, 32, 64, 96]
    ledger = pl.read_parquet(alone / "ledger.parquet")
    trained = ledger.filter(pl.col("cohort") == "trained")
    # C_used = Σ B_p · n over the steps taken.
    assert trained["rollouts"].to_list() == [8] * 12
    # The evaluation before the first update is shared, and charged where it was made.
    assert ledger.filter(pl.col("cohort") == "eval")["step"].to_list() == [4, 8, 12]
    assert pl.read_parquet(home / f"{alone.name}-start" / "ledger.parquet")["rollouts"].to_list() == [8 * 4]
    for lines in kills:
        kill_after(killed, lines, sampler)
    # What a kill inside the writing of pass rates leaves behind is no table, and no obstacle.
    (killed / "pass_rates" / ".4.parquet.x1y2").write_bytes(b"PAR1")
    assert exit_code(start(killed, sampler=sampler)) == 0
    assert pl.read_parquet(killed / "evals.parquet").equals(evals)
    assert pl.read_parquet(killed / "ledger.parquet").equals(ledger)
    assert pl.read_parquet(killed / "pass_rates.parquet").equals(pl.read_parquet(alone / "pass_rates.parquet"))
    assert cell_folder.done(killed) is not None
    assert lost(killed) > 0
    run_id = ledger["run_id"][0]
    with Ledger.open(killed / "run.ledger", run_id=run_id, resumed_from=12) as reopened:
        assert reopened.totals.paid.rollouts > ledger["rollouts"].sum()


def test_a_cell_extended_equals_the_cell_run_at_once_and_trains_only_the_rest(home: Path, alone: Path) -> None:
    shutil.copytree(alone, home / "extended")
    shutil.copytree(home / "alone-start", home / "extended-start")
    short = pl.read_parquet(home / "extended" / "evals.parquet")
    assert exit_code(start(home / "extended", rollouts=192)) == 0
    # When checkpoints are saved, and how many are kept, changes no result.
    assert exit_code(start(home / "once", rollouts=192, every_evaluations=3, every_steps=5, keep=2)) == 0
    kept = {name: sorted((home / name / "checkpoints").glob("step-*")) for name in ("extended", "once")}
    assert [int(folder.name.removeprefix("step-")) for folder in kept["once"]] == [20, 24]
    assert [int(folder.name.removeprefix("step-")) for folder in kept["extended"]] == [20, 24]
    for table in ("evals", "ledger", "pass_rates"):
        one, other = (pl.read_parquet(home / name / f"{table}.parquet") for name in ("extended", "once"))
        assert one.equals(other), table
    weights = [folders[-1] / "tensors-00000.safetensors" for folders in kept.values()]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    evals = pl.read_parquet(home / "extended" / "evals.parquet")
    assert evals["rollouts"].to_list() == [0, 32, 64, 96, 128, 160, 192]
    # The run is the same run, which the shorter one began.
    assert evals.head(4).equals(short)
    records = Spool(home / "extended").records()
    steps = [record.step for record in records if isinstance(record, StepRecord)]
    assert steps == list(range(1, 25))
    done = cell_folder.done(home / "extended")
    assert done is not None
    assert (done.rollouts, done.step, lost(home / "extended")) == (192, 24, 0)


def test_engines_and_ranks_of_their_own_spend_the_same_and_go_on_where_a_rank_dies(home: Path, alone: Path) -> None:
    apart = home / "apart"
    cell = start(apart, placement="separate", ranks=2)
    while cell.is_alive() and len(Spool(apart).records()) < 7:
        time.sleep(0.02)
    every = [process for process in psutil.Process(cell.pid).children(recursive=True) if process.name() == RANK]
    assert len(every) == 2
    every[1].kill()
    assert exit_code(cell) == 0
    # As it was alone, each point and what was charged until then; a rank's sums round in another order.
    ours, theirs = (pl.read_parquet(folder / "evals.parquet") for folder in (apart, alone))
    assert ours[0].equals(theirs[0])
    assert ours["rollouts"].equals(theirs["rollouts"])
    ledgers = [pl.read_parquet(folder / "ledger.parquet")["cohort", "step", "rollouts"] for folder in (apart, alone)]
    assert ledgers[0].equals(ledgers[1])
    timings = pl.read_parquet(apart / "timings.parquet")
    # The worker, two ranks and the engine.
    assert timings["device_seconds"].sum() == pytest.approx(4 * timings["seconds"].sum())
    done = cell_folder.done(apart)
    assert done is not None
    assert done.rollouts == 96
    assert lost(apart) > 0


def test_an_engine_holds_the_base_model_with_its_adapter_after_every_sync(home: Path) -> None:
    folder = home / "adapted"
    assert exit_code(start(folder, with_adapter=True)) == 0
    records = [record for record in Spool(folder).records() if isinstance(record, StepRecord)]
    assert len(records) == 12
    updates = [record.update for record in records if record.update is not None]
    assert all(update.sync_error < 1e-4 for update in updates)
    # The KL to the base model beneath the adapter, from which the policy has moved.
    assert updates[0].objective["kl"].value == 0
    assert updates[-1].objective["kl"].value > 1e-4
    saved = Checkpoints(folder / "checkpoints").newest()
    assert saved is not None
    assert all(".lora_" in name for name in saved.tensors)


def test_a_base_model_is_compared_with_vllm_once_before_its_first_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, problems = cell_folder.content_hash(BASE), sums(1, 8)
    worker = Worker(
        WorkerConfig(
            models={base: str(BASE)},
            generation=GENERATION,
            resources=ResourcesConfig(sampler="transformers"),
            beside_vllm=True,
        )
    )

    def refuse(*given: object) -> None:
        raise ExperimentError("they differ")

    with monkeypatch.context() as patch:
        patch.setattr(running, "compare_with_vllm", refuse)
        with pytest.raises(ExperimentError, match="they differ"):
            worker.evaluate_baseline(cell(base=base), problems, tmp_path / "refused")
    assert not cell_folder.has_baseline(tmp_path / "refused")
    for seed in (7, 8):
        worker.evaluate_baseline(cell(base=base, seed=seed), problems, tmp_path / str(seed))
    found = cell_folder.beside_vllm(tmp_path / "7")
    assert set(found) == {"maximum", "mean", "k3", "quantile"}
    assert 0 < found["mean"] <= found["maximum"] < 1e-4
    assert cell_folder.has_baseline(tmp_path / "8")
    assert not cell_folder.beside_vllm(tmp_path / "8")


def test_a_saved_policy_answers_on_vllm_with_its_own_log_probabilities(home: Path) -> None:
    policy = LlamaForCausalLM.from_pretrained(BASE, dtype=torch.float32).eval()
    with torch.no_grad():
        # Not the base model's any more.
        policy.lm_head.weight.mul_(1.5)
    save_policy(policy.named_parameters(), BASE, home / "policy")
    process = forks.Process(target=_answer, args=(home / "policy", home / "answers.parquet"))
    process.start()
    assert exit_code(process) == 0
    answers = pl.read_parquet(home / "answers.parquet")
    assert len(answers) == 16
    for prompt, response, logprobs in answers["prompt_ids", "response_ids", "logprobs"].iter_rows():
        with torch.no_grad():
            scores = torch.log_softmax(policy(torch.tensor([prompt + response])).logits[0], -1)
        expected = [float(scores[len(prompt) + k - 1, token]) for k, token in enumerate(response)]
        assert logprobs == pytest.approx(expected, abs=1e-4)


def _answer(folder: Path, out: Path) -> None:
    problems = sums(4, 1).head(4).with_columns(verifier=pl.lit("exact"))
    with closing(open_sampler("vllm", str(folder), GENERATION.sampling)) as sampler:
        sampler.sample(problems, samples=4, seed=0, step=0).write_parquet(out)

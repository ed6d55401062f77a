"""GRPO on a real vLLM engine, killed and continued."""

import json
import multiprocessing
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import polars as pl
import pytest
from isocompute.budget import Ledger
from isocompute.rollout import load_problems, source_from

from experiments import tiny_model
from experiments.spool import Spool

forks = multiprocessing.get_context("forkserver")
forks.set_forkserver_preload(["experiments.tests.run_cell"])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a base model of a few steps, and problems."""
    folder = tmp_path_factory.mktemp("cells")
    config = tiny_model.TinyModelConfig(hidden=32, layers=1, steps=60, batch=64, max_terms=3)
    tiny_model.train(config, folder / "model", progress=lambda step, loss: None)
    settings = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    source = {"kind": "reasoning_gym", "task": "chain_sum", "digits": "12345", "settings": settings}
    table = load_problems(source_from({**source, "train": 12, "validation": 8}))
    table.write_parquet(folder / "problems.parquet")
    (folder / "inputs.json").write_text(json.dumps([str(folder / "model"), str(folder / "problems.parquet")]))
    return folder


def start(folder: Path, placement: str = "colocated", ranks: int = 1) -> BaseProcess:
    """Run the cell in a process of its own, forked from one that has imported vLLM (which takes half a minute)."""
    process = forks.Process(target=_run, args=(folder, placement, ranks))
    process.start()
    return process


def _run(folder: Path, placement: str, ranks: int) -> None:
    from .run_cell import main

    main(folder, placement, ranks)


def exit_code(process: BaseProcess) -> int | None:
    process.join()
    return process.exitcode


def kill_after(folder: Path, lines: int) -> None:
    """Start the cell and kill it once its spool has so many lines."""
    process = start(folder)
    while process.is_alive() and len(list(Spool(folder / "metrics.jsonl").lines())) < lines:
        time.sleep(0.002)
    assert process.is_alive()
    process.kill()
    assert exit_code(process) == -signal.SIGKILL


def test_a_run_killed_three_times_equals_the_run_left_alone(home: Path) -> None:
    alone, killed = home / "alone", home / "killed"
    assert exit_code(start(alone)) == 0
    evals = pl.read_parquet(alone / "evals.parquet")
    assert evals["rollouts"].to_list() == [0, 32, 64, 96]
    ledger = pl.read_parquet(alone / "ledger.parquet")
    trained = ledger.filter(pl.col("cohort") == "trained")
    # C_used = Σ B_p · n over the steps taken.
    assert trained["rollouts"].to_list() == [8] * 12
    for lines in (3, 8, 13):
        kill_after(killed, lines)
    assert exit_code(start(killed)) == 0
    assert pl.read_parquet(killed / "evals.parquet").equals(evals)
    assert pl.read_parquet(killed / "ledger.parquet").equals(ledger)
    summary = json.loads((killed / "done.json").read_text())
    assert summary["lost"]["rollouts"] > 0
    run_id = ledger["run_id"][0]
    with Ledger.open(killed / "ledger.bin", run_id=run_id, resumed_from=12) as reopened:
        assert reopened.totals.paid.rollouts > ledger["rollouts"].sum()


def test_a_finished_cell_is_not_run_again(home: Path) -> None:
    done = home / "alone" / "done.json"
    before = done.stat().st_mtime_ns
    assert exit_code(start(home / "alone")) == 0
    assert done.stat().st_mtime_ns == before


def test_an_engine_and_ranks_of_their_own_spend_the_same_and_start_from_the_same(home: Path) -> None:
    assert exit_code(start(home / "apart", "separate", 2)) == 0
    apart, alone = (pl.read_parquet(home / cell / "evals.parquet") for cell in ("apart", "alone"))
    assert apart[0].equals(alone[0])
    assert apart["rollouts"].equals(alone["rollouts"])
    timings = pl.read_parquet(home / "apart" / "timings.parquet")
    # The worker, two ranks and the engine.
    assert timings["device_seconds"].sum() == pytest.approx(4 * timings["seconds"].sum())

"""One small cell with a real engine; imported, it has loaded all that a process forked from it needs."""

import gc
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Literal

# The second as the sampler has it while vLLM's modules are imported with the first engine.
os.environ |= {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}

import polars as pl
import vllm.entrypoints.llm
import vllm.v1.worker.cpu_worker  # noqa: F401
from isocompute.learner.config import PipelineConfig

from experiments.running import cell_folder
from experiments.running.cells import WorkerConfig
from experiments.running.cluster import open_cluster
from experiments.running.worker import Worker
from experiments.settings import CheckpointsConfig, ResourcesConfig

from .made import BASE, GENERATION, cell

# What is imported stays: no process forked from this one need look through it for garbage.
gc.freeze()


def main(
    homes: Sequence[Path],
    placement: Literal["colocated", "separate"] = "colocated",
    ranks: int = 1,
    rollouts: int = 96,
    sampler: Literal["vllm", "transformers"] = "transformers",
    lag: int = 0,
    address: str = "",
    **checkpoints: int,
) -> None:
    """Run it, or what is left of it, in one folder after another; the problems are in the folder above.

    Args:
        address: Of a Ray cluster to join.
    """
    if address:
        os.environ["RAY_ADDRESS"] = address
    base = cell_folder.content_hash(BASE)
    resources = ResourcesConfig(
        sampler=sampler,
        placement=placement,
        learner_ranks=ranks,
        checkpoints=CheckpointsConfig(**checkpoints),
        keep_policies="none",
    )
    with open_cluster(1 + ranks) if placement == "separate" else nullcontext():
        worker = Worker(WorkerConfig(models={base: str(BASE)}, generation=GENERATION, resources=resources))
        for home in homes:
            problems = pl.read_parquet(home.parent / "problems.parquet")
            one = cell(rollouts=rollouts, base=base)
            if lag:
                clock = {"mode": "virtual", "update_time": 3.5} if placement == "colocated" else {"mode": "in_flight"}
                behind = PipelineConfig(lag=lag, **clock)
                one = replace(one, learner=replace(one.learner, pipeline=behind))
            worker.train(one, problems, home, home.parent / f"{home.name}-start")

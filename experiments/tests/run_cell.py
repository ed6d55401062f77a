"""One small cell with a real engine; imported, it has loaded all that a process forked from it needs."""

import gc
import os
from pathlib import Path
from typing import Literal

# The second as the sampler has it while vLLM's modules are imported with the first engine.
os.environ |= {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}

import polars as pl
import vllm.entrypoints.llm
import vllm.v1.worker.cpu_worker  # noqa: F401

from experiments.running import cell_folder
from experiments.running.cells import WorkerConfig
from experiments.running.worker import Worker
from experiments.settings import CheckpointsConfig, ResourcesConfig

from .made import BASE, GENERATION, adapted, cell

# What is imported stays: no process forked from this one need look through it for garbage.
gc.freeze()


def main(
    home: Path,
    placement: Literal["colocated", "separate"] = "colocated",
    ranks: int = 1,
    rollouts: int = 96,
    sampler: Literal["vllm", "transformers"] = "transformers",
    with_adapter: bool = False,
    **checkpoints: int,
) -> None:
    """Run it, or what is left of it; the problems are in the folder above."""
    if placement == "separate":
        import ray

        ray.init(num_cpus=1 + ranks, include_dashboard=False, object_store_memory=2**28, log_to_driver=False)
    base = cell_folder.content_hash(BASE)
    resources = ResourcesConfig(
        sampler=sampler,
        placement=placement,
        learner_ranks=ranks,
        checkpoints=CheckpointsConfig(**checkpoints),
        keep_policies="none",
    )
    worker = Worker(WorkerConfig(models={base: str(BASE)}, generation=GENERATION, resources=resources))
    one = cell(rollouts=rollouts, base=base)
    problems = pl.read_parquet(home.parent / "problems.parquet")
    worker.train(adapted(one) if with_adapter else one, problems, home, home.parent / f"{home.name}-start")

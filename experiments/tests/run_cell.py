"""One small cell with a real engine; imported, it has loaded all that a process forked from it needs."""

import gc
import json
import os
from pathlib import Path
from typing import Literal

# The second as the sampler has it while vLLM's modules are imported with the first engine.
os.environ |= {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}

import polars as pl
import vllm.entrypoints.llm
import vllm.v1.worker.cpu_worker  # noqa: F401
from isocompute.rollout import load_problems, source_from

from experiments.running import work
from experiments.running.worker import Worker, WorkerConfig
from experiments.settings.model import CheckpointsConfig, ResourcesConfig

from .made import BASE, SAMPLING, adapted, cell

# What is imported stays: no process forked from this one need look through it for garbage.
gc.freeze()


def inputs(folder: Path) -> tuple[str, pl.DataFrame]:
    """A base model, and problems; made once."""
    settings = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    source = {"kind": "reasoning_gym", "task": "chain_sum", "digits": "12345", "settings": settings}
    table = load_problems(source_from({**source, "train": 12, "validation": 8}))
    table.write_parquet(folder / "problems.parquet")
    (folder / "inputs.json").write_text(json.dumps([str(BASE), str(folder / "problems.parquet")]))
    return str(BASE), table


def main(
    home: Path,
    placement: Literal["colocated", "separate"],
    ranks: int,
    rollouts: int,
    checkpoints: dict[str, int],
    with_adapter: bool = False,
    sampler: Literal["vllm", "transformers"] = "transformers",
) -> None:
    """Run it, or what is left of it; the model and the problems are named by the folder above."""
    if placement == "separate":
        import ray

        ray.init(num_cpus=1 + ranks, include_dashboard=False, object_store_memory=2**28, log_to_driver=False)
    model, problems = json.loads((home.parent / "inputs.json").read_text())
    base = work.content_hash(Path(model))
    config = WorkerConfig(
        models={base: model},
        generation={"sampling": SAMPLING},
        resources=ResourcesConfig(
            sampler=sampler,
            placement=placement,
            learner_ranks=ranks,
            checkpoints=CheckpointsConfig(**checkpoints),
            keep_policies="none",
        ),
    )
    worker = Worker(config)
    one = cell(rollouts=rollouts, base=base)
    if with_adapter:
        one = adapted(one)
    worker.train(one, pl.read_parquet(problems), home, home.parent / f"{home.name}-start")

"""One small cell with a real vLLM engine; imported, it has loaded all that a process forked from it needs."""

import json
import os
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import polars as pl
import vllm.entrypoints.llm  # noqa: F401
from isocompute.learner import LearnerConfig

from experiments.cells import Cell
from experiments.worker import Worker

SAMPLING = {"temperature": 1.0, "max_new_tokens": 8, "max_prompt_tokens": 8}


def cell() -> Cell:
    """Twelve steps of 2 × 4, evaluated every four."""
    return Cell(
        purpose="sweep", problem_set="easy", rollouts_per_problem=4, problems_per_batch=2, seed=7,
        rollouts=96, evaluate_every=32, base="b", problems="p", sampling=SAMPLING, sampler="vllm",
        learner=LearnerConfig(learning_rate=3e-3, kl_coefficient=0.01, entropy_coefficient=0.01),
    )  # fmt: skip


def main(home: Path, placement: str, ranks: int) -> None:
    """Run it, or what is left of it; the model and the problems are named by the folder above."""
    if placement == "separate":
        import ray

        ray.init(num_cpus=1 + ranks, include_dashboard=False, object_store_memory=2**28, log_to_driver=False)
    model, problems = json.loads((home.parent / "inputs.json").read_text())
    worker = Worker(model, SAMPLING, "vllm", placement=placement, learner_ranks=ranks)
    worker.train(cell(), pl.read_parquet(problems), str(home))

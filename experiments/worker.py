"""What runs a cell: an engine and a learner in one process. A plain class; Ray only wraps it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl
from isocompute.budget import Counts, Ledger, Limits, Meter
from isocompute.learner import loop
from isocompute.learner.checkpoint import Checkpoints
from isocompute.learner.group import LearnerGroup
from isocompute.learner.learner import Learner
from isocompute.learner.timings import timings_table
from isocompute.rollout import EvaluationResult, Sampling, evaluate, open_sampler, tables

from .base_model import located
from .cells import Cell
from .spool import Spool


def count(rollouts: pl.DataFrame) -> Counts:
    """What a ``rollouts`` table cost."""
    return Counts(
        rollouts=len(rollouts),
        prompt_tokens=int(rollouts["prompt_ids"].list.len().sum()),
        response_tokens=int(rollouts["response_ids"].list.len().sum()),
    )


class Evaluated:
    """An evaluation as the loop wants it: a row of ``evals``, and the responses behind it."""

    def __init__(self, cell: Cell, result: EvaluationResult, *, step: int, rollouts: int, tokens: int) -> None:
        self.rollouts_table = result.rollouts
        self.row: Mapping[str, Any] = {
            "run_id": cell.run_id,
            "step": step,
            "rollouts": rollouts,
            "tokens": tokens,
            "rollouts_per_problem": cell.rollouts_per_problem,
            "problems_per_batch": cell.problems_per_batch,
            "seed": cell.seed,
            "problem_set": cell.problem_set,
            "split": "validation",
            "questions": result.questions,
            "samples": result.samples,
            **result.metrics,
        }


class Worker:
    """Runs cells one after another; the engine outlives a cell, its weights are reset.

    Args:
        model: The base model's folder or name.
        sampling: Sampling settings.
        sampler: Kind of sampler.
        device: Torch device of the learner.
        placement: Whether vLLM is in this process (``colocated``) or in a Ray actor of its own (``separate``).
        learner_ranks: Learner ranks; one is in this process, several are Ray actors.
    """

    def __init__(
        self,
        model: str,
        sampling: Mapping[str, Any],
        sampler: str,
        device: str = "cpu",
        placement: str = "colocated",
        learner_ranks: int = 1,
    ) -> None:
        import torch

        if device == "cpu":
            # Parallelism comes from processes: a second thread slows both.
            torch.set_num_threads(1)
        model = located(model)
        options = {} if device == "cpu" or sampler != "vllm" else {"dtype": "bfloat16"}
        kind = "vllm-remote" if placement == "separate" else sampler
        self._sampler = open_sampler(kind, model, Sampling(**sampling), **options)
        self._model, self._device, self._learner_ranks = model, device, learner_ranks
        self._devices = 1 + (learner_ranks if learner_ranks > 1 else 0) + (placement == "separate")
        self._learner: Learner | LearnerGroup | None = None

    def ready(self) -> int:
        """Return the process id once the engine is up."""
        return os.getpid()

    def sample(self, problems: pl.DataFrame, *, samples: int, seed: int) -> pl.DataFrame:
        """Answer problems with the base model, as for measuring difficulty."""
        if self._sampler.weights_version:
            self._sampler.sync(self._fresh_learner(None).weights(), 0)
        answered: pl.DataFrame = self._sampler.sample(
            problems, samples=samples, seed=seed, step=0, phase="eval", run_id="base"
        )
        return answered

    def train(self, cell: Cell, problems: pl.DataFrame, folder: str) -> None:
        """Run a cell, or what is left of it, in its folder; does nothing when it is finished.

        Raises:
            SyncError: The engine does not hold the learner's weights.
            CheckpointError, LedgerError: The folder cannot be written to, or what is in it is damaged.
        """
        home = Path(folder)
        if (home / "done.json").exists():
            return
        home.mkdir(parents=True, exist_ok=True)
        training = problems.filter(pl.col("split") == "train")
        validation = problems.filter(pl.col("split") == "validation")
        learner = self._fresh_learner(cell)
        checkpoints = Checkpoints(home / "checkpoints")
        progress = loop.restore(learner, checkpoints)
        spool = Spool(home / "metrics.jsonl")
        spool.rewind(progress.rollouts)
        # What the canary generates is paid for, but by construction lost: it is charged to an attempt that
        # the training attempt replaces, so that the canonical ledger does not depend on restarts.
        tried = loop.canary(learner, self._sampler, validation, run_id=cell.run_id)
        with Ledger.open(home / "ledger.bin", run_id=cell.run_id, resumed_from=progress.step) as ledger:
            ledger.charge(progress.step + 1, {"eval": count(tried)})
        with Ledger.open(home / "ledger.bin", run_id=cell.run_id, resumed_from=progress.step) as ledger:
            meter = Meter(ledger, Limits(rollouts=cell.rollouts))

            def evaluator(*, step: int, rollouts: int, tokens: int) -> Evaluated:
                result = evaluate(
                    self._sampler, validation, samples=cell.evaluation_samples, seed=cell.seed,
                    at=rollouts, run_id=cell.run_id,
                )  # fmt: skip
                rates = result.pass_rates.with_columns(run_id=pl.lit(cell.run_id), step=pl.lit(step, dtype=pl.Int64))
                # One file an evaluation: repeated after a crash, it is written again with the same content.
                tables.write(rates, "pass_rates", home / "pass_rates" / f"{step}.parquet")
                return Evaluated(cell, result, step=step, rollouts=rollouts, tokens=tokens)

            run = loop.RunConfig(
                run_id=cell.run_id,
                rollouts_per_problem=cell.rollouts_per_problem,
                problems_per_batch=cell.problems_per_batch,
                seed=cell.seed,
                evaluate_every=cell.evaluate_every,
            )
            done = loop.train(
                run,
                training,
                self._sampler,
                learner,
                evaluator,
                meter,
                count,
                checkpoints,
                progress,
                spool.write,
            )
            tables.write(pl.DataFrame(done.evals), "evals", home / "evals.parquet")
            tables.write(ledger.table(), "ledger", home / "ledger.parquet")
            rates = [tables.read(path, "pass_rates") for path in (home / "pass_rates").iterdir()]
            tables.write(tables.concat(rates, "pass_rates"), "pass_rates", home / "pass_rates.parquet")
            timings = timings_table(spool.lines(), cell.run_id, devices=self._devices)
            tables.write(timings, "timings", home / "timings.parquet")
            totals = ledger.totals
        summary = {
            "cell": asdict(cell),
            "paid": asdict(totals.paid),
            "lost": asdict(totals.lost_training),
        }
        aside = home / "done.json.writing"
        aside.write_text(json.dumps(summary, sort_keys=True, indent=1))
        aside.rename(home / "done.json")

    def _fresh_learner(self, cell: Cell | None) -> Learner | LearnerGroup:
        """The base model's weights and a fresh optimizer."""
        from isocompute.learner import LearnerConfig

        config = cell.learner if cell else LearnerConfig(learning_rate=1.0)
        if self._learner is not None:
            self._learner.reset(config)
        elif self._learner_ranks == 1:
            self._learner = Learner(self._model, config, device=self._device)
        else:
            self._learner = LearnerGroup(self._model, config, world_size=self._learner_ranks, device=self._device)
        return self._learner

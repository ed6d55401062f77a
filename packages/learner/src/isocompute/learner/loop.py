"""The hot loop of one run, from problems to sync. Everything it does to the policy is on this page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any, Protocol

import polars as pl

from .advantages import with_advantages
from .checkpoint import Checkpoint, Checkpoints
from .errors import LearnerError
from .order import ProblemOrder
from .protocols import Evaluator, Meter, Sampler
from .sync import check_sync


class Updater(Protocol):
    """A learner, whether one rank in this process or a group of ranks."""

    config: Any
    version: int

    def weights(self) -> Any: ...  # noqa: D102
    def reset(self, config: Any) -> None: ...  # noqa: D102
    def update(self, rollouts: pl.DataFrame) -> Any: ...  # noqa: D102
    def sync_error(self, rollouts: pl.DataFrame) -> float: ...  # noqa: D102
    def state(self) -> tuple[dict[str, Any], dict[str, Any]]: ...  # noqa: D102
    def load_state(self, tensors: dict[str, Any], values: dict[str, Any]) -> None: ...  # noqa: D102


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """One cell of a sweep: ``problems_per_batch`` × ``rollouts_per_problem``, one seed.

    Attributes:
        run_id: Hash of the run's configuration.
        rollouts_per_problem: n, at least 2.
        problems_per_batch: B_p.
        seed: Fixes the order of problems and every response's seed.
        evaluate_every: Cumulative rollouts between evaluations, a multiple of B_p · n.

    Raises:
        LearnerError: n is 1 (a group baseline needs two), there is no problem in a batch, or the grid is no
            multiple of the batch.
    """

    run_id: str
    rollouts_per_problem: int
    problems_per_batch: int
    seed: int
    evaluate_every: int

    def __post_init__(self) -> None:
        if self.rollouts_per_problem < 2:
            raise LearnerError(f"rollouts_per_problem is {self.rollouts_per_problem}: a group baseline needs 2 or more")
        if self.problems_per_batch < 1:
            raise LearnerError(f"problems_per_batch is {self.problems_per_batch}: a batch needs 1 or more")
        if self.evaluate_every < 1 or self.evaluate_every % self.batch_rollouts:
            raise LearnerError(
                f"evaluate_every is {self.evaluate_every} rollouts, no multiple of the batch of "
                f"{self.batch_rollouts}: evaluations would not fall on a common grid"
            )

    @property
    def batch_rollouts(self) -> int:
        """B = B_p · n."""
        return self.problems_per_batch * self.rollouts_per_problem


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far a run is: cumulative training counts and the evaluations so far."""

    step: int
    rollouts: int
    tokens: int
    evals: list[dict[str, Any]]


def restore(learner: Updater, checkpoints: Checkpoints) -> Progress:
    """Continue from the newest checkpoint, or start at step 0."""
    saved = checkpoints.newest()
    if saved is None:
        return Progress(step=0, rollouts=0, tokens=0, evals=[])
    learner.load_state(saved.tensors, saved.values)
    return Progress(step=saved.step, **saved.progress)


def canary(learner: Updater, sampler: Sampler, problems: pl.DataFrame, *, run_id: str) -> pl.DataFrame:
    """Sync, answer a few problems and compare log-probabilities; returns the responses, which were paid for.

    Raises:
        SyncError: The sampler does not hold the learner's weights.
    """
    sampler.sync(learner.weights(), learner.version)
    rollouts = sampler.sample(problems.head(4), samples=2, seed=0, step=learner.version, phase="eval", run_id=run_id)
    check_sync(learner.sync_error(rollouts), learner.config.sync_tolerance, step=learner.version + 1)
    return rollouts


def train(
    run: RunConfig,
    problems: pl.DataFrame,
    sampler: Sampler,
    learner: Updater,
    evaluator: Evaluator,
    meter: Meter,
    count: Callable[[pl.DataFrame], Any],
    checkpoints: Checkpoints,
    progress: Progress,
    watch: Callable[[int, int, Mapping[str, float]], None],
) -> Progress:
    """Train until the meter admits no further step.

    Args:
        run: The cell.
        problems: Training problems.
        sampler: Answers them; holds the learner's weights already (see ``canary``).
        learner: Learns.
        evaluator: Called at step 0 and on the grid of cumulative rollouts.
        meter: The budget.
        count: Makes the meter's counts from a ``rollouts`` table.
        checkpoints: Where to save, after every evaluation.
        progress: From ``restore``.
        watch: Told (step, cumulative rollouts, metrics) after each step and evaluation.

    Returns:
        The progress at the end, its evaluations included.
    """
    order = ProblemOrder(problems, problems_per_batch=run.problems_per_batch, seed=run.seed)

    def evaluate() -> None:
        metrics: dict[str, float] = {}
        with _timed(metrics, "evaluate_seconds"):
            result = evaluator(step=progress.step, rollouts=progress.rollouts, tokens=progress.tokens)
        meter.charge(progress.step, {"eval": count(result.rollouts_table)})
        progress.evals.append(dict(result.row))
        scores = {k: v for k, v in result.row.items() if "_at_" in k}
        watch(progress.step, progress.rollouts, {**scores, **metrics})
        tensors, values = learner.state()
        kept = {k: v for k, v in asdict(progress).items() if k != "step"}
        checkpoints.save(Checkpoint(step=progress.step, tensors=tensors, values=values, progress=kept))

    if progress.step == 0 and not progress.evals:
        evaluate()
    while meter.admit(progress.step + 1, run.batch_rollouts):
        metrics: dict[str, float] = {}
        step = progress.step + 1
        with _timed(metrics, "sample_seconds"):
            rollouts = sampler.sample(
                order.batch(step),
                samples=run.rollouts_per_problem,
                seed=run.seed,
                step=step,
                phase="train",
                run_id=run.run_id,
            )
        batch = with_advantages(rollouts, filter_zero_variance=learner.config.filter_zero_variance)
        cohorts = batch.partition_by("cohort", as_dict=True)
        meter.charge(step, {str(cohort): count(rows) for (cohort,), rows in cohorts.items()})
        with _timed(metrics, "update_seconds"):
            trained = batch.filter(pl.col("cohort") == "trained")
            # A batch of filtered groups only is paid for and teaches nothing.
            report = asdict(learner.update(trained)) if len(trained) else {}
        with _timed(metrics, "sync_seconds"):
            sampler.sync(learner.weights(), learner.version)
        progress.step = step
        progress.rollouts += len(rollouts)
        progress.tokens += int(rollouts["response_ids"].list.len().sum())
        completed = batch.filter(pl.col("cohort") != "failed")
        if len(completed):
            metrics["reward"] = float(completed["reward"].to_numpy().mean())
            metrics["zero_variance_share"] = float(completed["zero_variance"].to_numpy().mean())
        watch(step, progress.rollouts, {**report, **metrics})
        if step * run.batch_rollouts % run.evaluate_every == 0:
            evaluate()
    return progress


@contextmanager
def _timed(metrics: dict[str, float], name: str) -> Iterator[None]:
    began = perf_counter()
    yield
    metrics[name] = perf_counter() - began

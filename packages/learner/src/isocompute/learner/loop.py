"""The hot loop of one run, from problems to sync. Everything it does to the policy is on this page."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any, Protocol

import polars as pl

from .advantages import with_advantages, with_cohorts
from .checkpoint import Checkpoint, Checkpoints
from .errors import DivergenceError, LearnerError
from .order import ProblemOrder
from .protocols import Evaluator, Meter, Sampler
from .sync import check_sync

logger = logging.getLogger(__name__)


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
        evaluate_every: Nominal rollouts (step · B) between evaluations, a multiple of B = B_p · n.

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
    """How far a run is.

    Attributes:
        step: Updates taken.
        rollouts: Rollouts generated for training so far, whatever became of them.
        tokens: Their response tokens.
        evals: Rows of the ``evals`` table so far.
        diverged_at: The step whose gradient was not finite twice, which ended the run; None otherwise. Its
            rollouts are counted, its update was not made. Never saved: the run would find it again.
    """

    step: int
    rollouts: int
    tokens: int
    evals: list[dict[str, Any]]
    diverged_at: int | None = None


def restore(learner: Updater, checkpoints: Checkpoints) -> Progress:
    """Continue from the newest checkpoint, or start at step 0."""
    saved = checkpoints.newest()
    if saved is None:
        return Progress(step=0, rollouts=0, tokens=0, evals=[])
    learner.load_state(saved.tensors, saved.values)
    return Progress(step=saved.step, **saved.progress)


def canary(learner: Updater, sampler: Sampler, problems: pl.DataFrame, *, run_id: str) -> pl.DataFrame:
    """Sync, answer a few problems and compare log-probabilities; returns the responses, which were paid for.

    Where the learner continues with a policy that has diverged there is nothing to compare with; ``train`` finds
    the same, and ends the run as it did the first time.

    Raises:
        SyncError: The sampler does not hold the learner's weights.
        DivergenceError: The log-probabilities of the base model itself are not finite.
    """
    sampler.sync(learner.weights(), learner.version)
    rollouts = sampler.sample(problems.head(4), samples=2, seed=0, step=learner.version, phase="canary", run_id=run_id)
    try:
        check_sync(learner.sync_error(rollouts), learner.config.sync_tolerance, step=learner.version + 1)
    except DivergenceError:
        if learner.version == 0:
            raise
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
    """Train until the meter admits no further step, or the policy has diverged.

    A longer run begins as a shorter one: nothing but ``meter`` knows where it ends.

    Args:
        run: The cell.
        problems: Training problems.
        sampler: Answers them; holds the learner's weights already (see ``canary``).
        learner: Learns.
        evaluator: Called at step 0 and on the grid of nominal rollouts, step · B.
        meter: The budget.
        count: Makes the meter's counts from a ``rollouts`` table.
        checkpoints: Where to save, after every evaluation.
        progress: From ``restore``.
        watch: Told (step, cumulative rollouts, metrics) after each step and evaluation. ``gradient_retries`` is
            among the metrics of a step whose gradient was not finite at first.

    Returns:
        The progress at the end, its evaluations included.

    Raises:
        LearnerError: No advantages or no update can be made of what was sampled; that was charged before.
    """
    order = ProblemOrder(problems, problems_per_batch=run.problems_per_batch, seed=run.seed)
    cell = _Cell(run, order, sampler, learner, evaluator, meter, count, checkpoints, progress, watch)
    if progress.step == 0 and not progress.evals:
        cell.evaluate()
    while meter.admit(progress.step + 1, run.batch_rollouts):
        if not cell.take(progress.step + 1):
            break
        # On steps, not on what was counted: a failed rollout shifts no evaluation.
        if progress.step * run.batch_rollouts % run.evaluate_every == 0:
            cell.evaluate()
    return progress


@dataclass(frozen=True, slots=True)
class _Cell:
    """What ``train`` was given; its fields are described there."""

    run: RunConfig
    order: ProblemOrder
    sampler: Sampler
    learner: Updater
    evaluator: Evaluator
    meter: Meter
    count: Callable[[pl.DataFrame], Any]
    checkpoints: Checkpoints
    progress: Progress
    watch: Callable[[int, int, Mapping[str, float]], None]

    def take(self, step: int) -> bool:
        """Take a step: sample, charge, update, sync. False when the policy has diverged and no update was made."""
        run, progress, config = self.run, self.progress, self.learner.config
        metrics: dict[str, float] = {}
        with _timed(metrics, "sample_seconds"):
            rollouts = self.sampler.sample(
                self.order.batch(step),
                samples=run.rollouts_per_problem,
                seed=run.seed,
                step=step,
                phase="train",
                run_id=run.run_id,
            )
        # Before anything is asked of the rollouts: they were paid for, whatever is wrong with them.
        self.charge(step, with_cohorts(rollouts, filter_zero_variance=config.filter_zero_variance))
        batch = with_advantages(
            rollouts, filter_zero_variance=config.filter_zero_variance, advantage_std=config.advantage_std
        )
        with _timed(metrics, "update_seconds"):
            metrics |= self.learn(step, batch.filter(pl.col("cohort") == "trained"))
        if progress.diverged_at is None:
            with _timed(metrics, "sync_seconds"):
                self.sampler.sync(self.learner.weights(), self.learner.version)
            progress.step = step
        completed = batch.filter(pl.col("cohort") != "failed")
        if len(completed):
            metrics["reward"] = float(completed["reward"].to_numpy().mean())
            metrics["zero_variance_share"] = float(completed["zero_variance"].to_numpy().mean())
        self.watch(step, progress.rollouts, metrics)
        return progress.diverged_at is None

    def charge(self, step: int, rollouts: pl.DataFrame) -> None:
        """Charge what a step generated, by cohort, and count it."""
        cohorts = rollouts.partition_by("cohort", as_dict=True)
        self.meter.charge(step, {str(cohort): self.count(rows) for (cohort,), rows in cohorts.items()})
        self.progress.rollouts += len(rollouts)
        self.progress.tokens += int(rollouts["response_ids"].list.len().sum())

    def learn(self, step: int, trained: pl.DataFrame) -> dict[str, float]:
        """Update, and say what it did; a batch of filtered groups only is paid for and teaches nothing.

        A gradient that is not finite is tried once more on the same batch, since a device may err once. A policy
        that has diverged errs again: the run then ends at this step, with the policy as it was.
        """
        if not len(trained):
            return {}
        for again in ({}, {"gradient_retries": 1.0}):
            try:
                return asdict(self.learner.update(trained)) | again
            except DivergenceError as error:
                logger.warning("run %s: %s", self.run.run_id, error)
        self.progress.diverged_at = step
        return {"gradient_retries": 1.0}

    def evaluate(self) -> None:
        """Evaluate, charge it, and save a checkpoint that continues after it."""
        progress, metrics = self.progress, dict[str, float]()
        with _timed(metrics, "evaluate_seconds"):
            result = self.evaluator(
                step=progress.step,
                at=progress.step * self.run.batch_rollouts,
                rollouts=progress.rollouts,
                tokens=progress.tokens,
            )
        if result.rollouts_table is not None:
            self.meter.charge(progress.step, {"eval": self.count(result.rollouts_table)})
        progress.evals.append(dict(result.row))
        scores = {k: v for k, v in result.row.items() if "_at_" in k}
        self.watch(progress.step, progress.rollouts, {**scores, **metrics})
        tensors, values = self.learner.state()
        kept = {k: v for k, v in asdict(progress).items() if k not in ("step", "diverged_at")}
        # A checkpoint that outlives its charges in a power cut could not be continued.
        self.meter.sync()
        self.checkpoints.save(Checkpoint(step=progress.step, tensors=tensors, values=values, progress=kept))


@contextmanager
def _timed(metrics: dict[str, float], name: str) -> Iterator[None]:
    began = perf_counter()
    yield
    metrics[name] = perf_counter() - began

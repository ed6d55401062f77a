"""The hot loop of one run, from problems to sync. Everything it does to the policy is on this page."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import polars as pl

from ..batch.table import check_sampled
from ..errors import DivergenceError, LearnerError
from ..objective.cohorts import with_cohorts
from ..protocols import Evaluator, Meter, Sampler, Updater, Watch
from ..records.statistics import response_statistics
from ..records.steps import EvaluationRecord, StepRecord
from ..saving.checkpoint import Checkpoint, Checkpoints
from ..updates.sync import check_sync
from .defaults import one_pass, print_record
from .learning import learn
from .order import ProblemOrder
from .run import Progress, RunConfig, settings_of
from .starting import restore

__all__ = ["Progress", "RunConfig", "canary", "train"]


def canary(*, learner: Updater, sampler: Sampler, problems: pl.DataFrame, run_id: str) -> pl.DataFrame:
    """Sync, answer a few problems and compare log-probabilities.

    Where the learner continues with a policy that has diverged there is nothing to compare with; ``train`` finds
    the same, and ends the run as it did the first time.

    Args:
        sampler: Takes them, and answers two times each of the first four problems.

    Returns:
        The responses, which were paid for, as a ``rollouts`` table.

    Raises:
        SyncError: The sampler does not hold the learner's weights.
        DivergenceError: The log-probabilities of the base model itself are not finite.
    """
    sampler.sync(learner.weights(), learner.version)
    few = problems.head(4)
    rollouts = sampler.sample(few, samples=2, seed=0, step=learner.version, phase="canary", run_id=run_id)
    check_sampled(rollouts, few, source=_answer_of(sampler))
    try:
        check_sync(learner.agreement(rollouts), learner.config, step=learner.version + 1)
    except DivergenceError:
        if learner.version == 0:
            raise
    return rollouts


def train(
    *,
    run: RunConfig,
    problems: pl.DataFrame,
    sampler: Sampler,
    learner: Updater,
    evaluator: Evaluator | None = None,
    meter: Meter | None = None,
    checkpoints: Checkpoints | None = None,
    progress: Progress | None = None,
    watch: Watch = print_record,
) -> Progress:
    """Train until the meter admits no further step or the policy has diverged, and return the progress then.

    Args:
        sampler: Answers problems; where ``progress`` is given it holds the learner's weights already (see ``canary``).
        evaluator: Called at step 0 and on the grid of nominal rollouts, step · B; None for no evaluation.
        meter: The budget, which alone knows where the run ends; None for one pass over the problems, unrecorded.
        checkpoints: Where to save, and when, and at the end unless the policy has diverged; None to save nothing.
        progress: From ``restore`` or ``branch``; None to continue from the newest checkpoint, after a ``canary``.
        watch: Called with a ``StepRecord`` after each step and an ``EvaluationRecord`` after each evaluation.

    Raises:
        LearnerError: Settings contradict each other, or nothing can be learnt from what was sampled, and charged.
        SyncError: The sampler does not hold the learner's weights.
    """
    run.check(learner.config)
    if evaluator is not None and run.evaluate_every is None:
        raise LearnerError("an evaluator was given and evaluate_every is None: it must be a multiple of the batch")
    drop_above = learner.config.batch.drop_above
    order = ProblemOrder(problems, problems_per_batch=run.problems_per_batch, seed=run.seed, drop_above=drop_above)
    meter = meter or one_pass(len(problems), run.problems_per_batch)
    if progress is None:
        progress = _begun(
            run=run, problems=problems, sampler=sampler, learner=learner, checkpoints=checkpoints, meter=meter
        )
    cell = _Cell(
        run=run, order=order, sampler=sampler, learner=learner, evaluator=evaluator, meter=meter,
        checkpoints=checkpoints, progress=progress, watch=watch,
        settings=settings_of(run, learner.config, problems),
    )  # fmt: skip
    saved_at = progress.step
    if progress.step == 0 and not progress.evals:
        cell.evaluate()
        saved_at = cell.save_if_due(saved_at, evaluated=True)
    while meter.admit(step=progress.step + 1, rollouts=run.batch_rollouts):
        if not cell.take(progress.step + 1):
            return progress
        # On steps, not on what was counted: a failed rollout shifts no evaluation.
        evaluated = run.evaluated_at(progress.step * run.batch_rollouts)
        if evaluated:
            cell.evaluate()
        # After the evaluation: a run that continues from here would not make it.
        saved_at = cell.save_if_due(saved_at, evaluated=evaluated)
    if saved_at != progress.step:
        cell.save()
    # A kill may have come between the last checkpoint and the deletion of those before.
    if checkpoints is not None:
        checkpoints.prune()
    return progress


def _begun(
    *, run: RunConfig, problems: pl.DataFrame, sampler: Sampler, learner: Updater, checkpoints: Checkpoints | None,
    meter: Meter,
) -> Progress:  # fmt: skip
    """How far a run is, with the sampler at the learner's weights."""
    progress = Progress(step=0, rollouts=0, tokens=0, evals=[])
    if checkpoints is not None:
        progress = restore(learner=learner, checkpoints=checkpoints, run=run, problems=problems)
    answered = canary(learner=learner, sampler=sampler, problems=problems, run_id=run.run_id)
    meter.charge(progress.step, answered.with_columns(cohort=pl.lit("eval")))
    return progress


def _answer_of(sampler: Sampler) -> str:
    return f"what {type(sampler).__name__}.sample returned"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """What ``train`` was given; its fields are described there. ``settings`` are those of ``settings_of``."""

    run: RunConfig
    order: ProblemOrder
    sampler: Sampler
    learner: Updater
    evaluator: Evaluator | None
    meter: Meter
    checkpoints: Checkpoints | None
    progress: Progress
    watch: Watch
    settings: dict[str, Any]

    def take(self, step: int) -> bool:
        """Take a step: sample, charge, learn, sync. False when the policy has diverged, which ends the run."""
        progress, version = self.progress, self.learner.version
        began = perf_counter()
        rollouts = self.sample(step)
        sampled = perf_counter()
        rollouts = with_cohorts(rollouts, self.learner.config.batch)
        # Charged before the rollouts are checked: they were paid for, whatever is wrong with them.
        tokens = self.charge(step, rollouts)
        ready = perf_counter()
        learnt = learn(learner=self.learner, run=self.run, step=step, rollouts=rollouts)
        learned, sync_seconds = perf_counter(), None
        dropped = len(progress.place.dropped)
        if learnt.diverged:
            progress.diverged_at = step
        else:
            if self.learner.version != version:
                self.sampler.sync(self.learner.weights(), self.learner.version)
                sync_seconds = perf_counter() - learned
            progress.place = self.order.after(progress.place, rollouts)
            progress.step = step
        self.watch(
            StepRecord(
                step=step,
                rollouts=progress.rollouts,
                sample_seconds=sampled - began,
                update_seconds=learned - ready,
                measure_seconds=learnt.measure_seconds,
                sync_seconds=sync_seconds,
                responses=response_statistics(rollouts),
                advantages=learnt.advantages,
                update=learnt.update,
                gradient_retries=learnt.retries,
                sampled_tokens=tokens,
                dropped_problems=dropped,
            )
        )
        return not learnt.diverged

    def sample(self, step: int) -> pl.DataFrame:
        """Sample n responses to each problem of a step's batch."""
        problems = self.order.batch(self.progress.place)
        rollouts = self.sampler.sample(
            problems,
            samples=self.run.rollouts_per_problem,
            seed=self.run.seed,
            step=step,
            phase="train",
            run_id=self.run.run_id,
        )
        check_sampled(rollouts, problems, source=_answer_of(self.sampler))
        return rollouts

    def charge(self, step: int, rollouts: pl.DataFrame) -> int:
        """Charge what a step generated, by cohort, and count it; returns its response tokens."""
        self.meter.charge(step, rollouts)
        tokens = int(rollouts["response_ids"].list.len().sum())
        self.progress.rollouts += len(rollouts)
        self.progress.tokens += tokens
        return tokens

    def evaluate(self) -> None:
        """Evaluate, if that is wanted, and charge it."""
        if self.evaluator is None:
            return
        progress, began = self.progress, perf_counter()
        result = self.evaluator(
            step=progress.step,
            at=progress.step * self.run.batch_rollouts,
            rollouts=progress.rollouts,
            tokens=progress.tokens,
        )
        seconds = perf_counter() - began
        if result.rollouts_table is not None:
            self.meter.charge(progress.step, result.rollouts_table.with_columns(cohort=pl.lit("eval")))
        progress.evals.append(dict(result.row))
        self.watch(
            EvaluationRecord(
                step=progress.step, rollouts=progress.rollouts, scores=dict(result.scores), evaluate_seconds=seconds
            )
        )

    def save_if_due(self, saved_at: int, *, evaluated: bool) -> int:
        """Save a checkpoint where one is due; returns the step of the newest one."""
        progress = self.progress
        if self.checkpoints is None or not self.checkpoints.due(
            step=progress.step, evaluations=len(progress.evals) if evaluated else None
        ):
            return saved_at
        self.save()
        return progress.step

    def save(self) -> None:
        """Save a checkpoint of the run as it is, where it has any."""
        if self.checkpoints is None:
            return
        tensors, values = self.learner.state()
        # A checkpoint that outlives its charges in a power cut could not be continued.
        self.meter.sync()
        self.checkpoints.save(
            Checkpoint(
                step=self.progress.step,
                tensors=tensors,
                values=values,
                progress=self.progress.saved(),
                settings=self.settings,
            )
        )

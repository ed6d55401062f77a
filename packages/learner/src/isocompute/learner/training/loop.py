"""The training loop of one run, from problems to sync: everything it does to the policy.

A run starts at step 0, at its newest checkpoint (``restore``), or at a checkpoint of another run (``branch``).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from io import BytesIO
from time import perf_counter
from typing import Any, TypeVar

import polars as pl
import torch

from ..batch.responses import check_answers, check_finite, check_sampled
from ..config import RunConfig
from ..errors import DivergenceError, LearnerError, SyncError
from ..objective.advantages import with_cohorts
from ..objective.prepare import estimated, minibatches, prepare
from ..protocols import Evaluator, Meter, Pipe, Sampler, Updater, Watch
from ..records.steps import (
    AdvantageStatistics,
    Agreement,
    EvaluationRecord,
    Record,
    StepRecord,
    UpdateReport,
    advantage_statistics,
    lag_statistics,
    of_batch,
    response_statistics,
)
from ..saving.checkpoint import Checkpoint, Checkpoints
from ..updates.sync import BROKEN, check_sync
from .run import ProblemOrder, Progress, restore, settings_of

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
PROBED, PROBE_TOKENS = 4, 16
"""Number of problems in a probe of the sampler's weights, and most tokens per response."""


def print_record(record: Record) -> None:
    """Print one line for a step or an evaluation to stderr."""
    metrics = record.metrics()
    if isinstance(record, EvaluationRecord):
        what, words = "evaluation after step", [f"{name} {score:.3f}" for name, score in record.scores.items()]
    else:
        named = {"reward": "train/reward", "gradient norm": "health/gradient_norm"}
        what, words = "step", [f"{word} {metrics[name]:.3g}" for word, name in named.items() if name in metrics]
    line = ", ".join([f"{record.rollouts:,} rollouts", *words, f"{sum(record.seconds().values()):.1f} s"])
    print(f"{what} {record.step}: {line}", file=sys.stderr, flush=True)


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
    pipe: Pipe | None = None,
    watch: Watch = print_record,
) -> Progress:
    """Train until the meter admits no further step or the policy has diverged, and return the final progress.

    Batches are begun as far ahead as ``pipeline.lag`` allows. Once the meter admits no further batch, those already
    begun are still learnt from.

    Args:
        sampler: Answers problems. If ``progress`` is given, it must hold the learner's weights (``sync_and_check``).
        evaluator: Called at step 0 and on the grid of nominal rollouts, step · B; None: no evaluation.
        meter: The budget, which alone decides when the run ends; None: one pass over the problems, not recorded.
        checkpoints: Where and when to save; also saves at the end unless the policy has diverged. None: nothing is
            saved.
        progress: From ``restore`` or ``branch``; None: continue from the newest checkpoint, after a ``sync_and_check``.
            With a lag, the caller must first charge the rollouts that a killed process had in flight, and take back
            those that it had charged and that are restored (``Ledger.charge_lost`` and ``take_back`` of
            ``isocompute.budget``, with ``Progress.restored``).
        pipe: Generates during updates, with the same engines as the sampler. None if sampling and updates alternate,
            and for ``pipeline.mode`` ``constant``; both need only the sampler.
        watch: Called with a ``StepRecord`` after each step and an ``EvaluationRecord`` after each evaluation.

    Raises:
        LearnerError: Settings contradict each other, or nothing can be learnt from the samples, which were charged.
        SyncError: The sampler does not hold the learner's weights.
        CheckpointError: Another run saves its checkpoints in the same folder.
    """
    run.check(learner.config)
    pipeline = learner.config.pipeline
    if evaluator is not None and run.evaluate_every is None:
        raise LearnerError("an evaluator was given and evaluate_every is None: it must be a multiple of the batch")
    if pipe is None and pipeline.lag and pipeline.mode != "constant":
        raise LearnerError(f"pipeline.mode is {pipeline.mode!r}, and no pipe was given: it must be one of that mode")
    if pipeline.lag and checkpoints is not None and checkpoints.keep < 2:
        raise LearnerError(
            f"checkpoints.keep is {checkpoints.keep}; with a lag it must be 2 or more: a run that ends keeps the "
            "checkpoint before its last batches, from which a longer one goes on"
        )
    if progress is not None and progress.drained is not None:
        raise LearnerError(
            f"the progress is that of a run which began no batch after step {progress.drained}, and has ended: it goes "
            "on with what restore returns"
        )
    if pipe is not None and progress is None:
        raise LearnerError(
            "a pipe was given and no progress: restore and sync_and_check come before it is opened, since engines in "
            "flight take weights from their pipe alone"
        )
    drop_above = learner.config.batch.drop_above
    order = ProblemOrder(problems, problems_per_batch=run.problems_per_batch, seed=run.seed, drop_above=drop_above)
    # Enough steps to use each problem once.
    meter = meter or UpdateSteps(limit=max(1, len(problems) // run.problems_per_batch))
    pipe = pipe or Ahead(sampler)
    with nullcontext() if checkpoints is None else checkpoints.held():
        if progress is None:
            progress = Progress()
            if checkpoints is not None:
                progress = restore(learner=learner, checkpoints=checkpoints, run=run, problems=problems)
            answered = sync_and_check(learner=learner, sampler=sampler, problems=problems, run_id=run.run_id)
            meter.charge(progress.step, answered.with_columns(cohort=pl.lit("eval")))
        if progress.begun:
            if pipeline.lag:
                # The unfinished ones of these batches begin again.
                meter.reserve(len(progress.begun) * run.batch_rollouts)
            pipe.load_state(*progress.pipe)
            progress.pipe = ({}, {})
        loop = _Loop(
            run=run,
            order=order,
            sampler=sampler,
            pipe=pipe,
            learner=learner,
            evaluator=evaluator,
            meter=meter,
            checkpoints=checkpoints,
            progress=progress,
            watch=watch,
            settings=settings_of(run, learner.config, problems),
        )
        try:
            loop.run_on()
        except BaseException:
            # Report the original error, and not its consequences. The next attempt charges rollouts in flight, as after
            # a kill: it knows which ones its checkpoint restores.
            with suppress(Exception):
                pipe.abandon()
            raise
        loop.abandon()
        # A kill may have come between the last save and the deletion of older checkpoints.
        if checkpoints is not None:
            checkpoints.prune()
        return progress


def _answer_of(sampler: Sampler) -> str:
    return f"what {type(sampler).__name__}.sample returned"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loop:
    """The arguments of ``train``; ``settings`` are those of ``settings_of``."""

    run: RunConfig
    order: ProblemOrder
    sampler: Sampler
    pipe: Pipe
    learner: Updater
    evaluator: Evaluator | None
    meter: Meter
    checkpoints: Checkpoints | None
    progress: Progress
    watch: Watch
    settings: dict[str, Any]

    def run_on(self) -> None:
        """Take steps until none is admitted or the policy has diverged."""
        progress, lag = self.progress, self.learner.config.pipeline.lag
        saved_at = progress.step
        if progress.step == 0 and not progress.evals:
            self.evaluate()
            saved_at = self.save_if_due(saved_at, evaluated=True)
        while True:
            sampling = self.begin()
            if len(progress.begun) <= lag and progress.drained is None:
                # The meter admits no further batch; a longer run would begin one here.
                if saved_at != progress.step or progress.begun:
                    self.save()
                saved_at = progress.step
                progress.drained = progress.step if lag else None
            # The meter may refuse a batch that was begun, for example because of its tokens.
            if not progress.begun or (lag and not self.admitted(ahead=0)):
                break
            if not self.step(progress.step + 1, sampling=sampling):
                return
            # Based on steps and not on counted rollouts, so that failed rollouts shift no evaluation.
            evaluated = self.run.evaluated_at(progress.step * self.run.batch_rollouts)
            if evaluated:
                self.evaluate()
            # After the evaluation, since a run resumed from here would not repeat it.
            if progress.drained is None:
                saved_at = self.save_if_due(saved_at, evaluated=evaluated)
        if saved_at != progress.step:
            self.save()

    def admitted(self, *, ahead: int) -> bool:
        """Return whether the meter admits the batch after ``ahead`` begun ones, if these are charged first."""
        step = self.progress.step + ahead + 1
        return bool(self.meter.admit(step=step, rollouts=(ahead + 1) * self.run.batch_rollouts))

    def begin(self) -> float:
        """Begin all batches whose tokens cannot exceed the lag; return the seconds taken."""
        progress, began = self.progress, perf_counter()
        while (
            progress.drained is None
            and len(progress.begun) <= self.learner.config.pipeline.lag
            and self.admitted(ahead=len(progress.begun))
        ):
            if progress.begun:
                progress.cursor = self.order.after(progress.cursor)
            problems = self.order.batch(progress.cursor)
            progress.begun.append(problems["problem_id"].to_list())
            if self.learner.config.pipeline.lag:
                self.meter.reserve(len(progress.begun) * self.run.batch_rollouts)
            self.pipe.begin(
                problems,
                samples=self.run.rollouts_per_problem,
                seed=self.run.seed,
                step=progress.step + len(progress.begun),
                run_id=self.run.run_id,
            )
        return perf_counter() - began

    def step(self, step: int, *, sampling: float) -> bool:
        """Take a step: take samples, charge, learn, push. Return False if the policy has diverged and the run ends."""
        progress, version, config = self.progress, self.learner.version, self.learner.config
        lag = config.pipeline.lag
        problems = self.order.problems.filter(pl.col("problem_id").is_in(progress.begun[0]))
        began = perf_counter()
        taken = self.pipe.take(step)
        check_sampled(taken, problems, source=_answer_of(self.sampler))
        sampling += perf_counter() - began
        batch = self.run.batch_rollouts
        if lag and len(taken) != batch:
            # Attempts that were lost with an engine were generated, too.
            self.meter.reserve(len(taken) + (len(progress.begun) - 1) * batch)
        rollouts, stale = without_stale(taken, version=version, lag=lag) if lag else (taken, taken.clear())
        rollouts = with_cohorts(rollouts, config.batch, baseline=config.objective.resolved.baseline)
        # Charge rollouts before checking them: they were paid for, even if faulty.
        tokens = self.charge(step, rollouts, stale)
        check_answers(taken, problems, samples=self.run.rollouts_per_problem, source=_answer_of(self.sampler))
        ready = perf_counter()
        learnt = learn(learner=self.learner, run=self.run, step=step, rollouts=rollouts)
        learned, sync_seconds = perf_counter(), None
        dropped = len(progress.cursor.dropped)
        if learnt.diverged:
            progress.diverged_at = step
        else:
            if self.learner.version != version:
                self.pipe.push(self.learner.weights(), self.learner.version)
                if lag and learnt.update is not None:
                    learnt = replace(learnt, update=learnt.update.probed(self.verify(step)))
                sync_seconds = perf_counter() - learned
            del progress.begun[0]
            progress.cursor = self.order.learnt(progress.cursor, taken)
            if not progress.begun:
                progress.cursor = self.order.after(progress.cursor)
            progress.step = step
        used = rollouts.filter(pl.col("cohort") != "failed")
        self.watch(
            StepRecord(
                step=step,
                rollouts=progress.rollouts,
                sample_seconds=sampling,
                update_seconds=learned - ready,
                measure_seconds=learnt.measure_seconds,
                sync_seconds=sync_seconds,
                responses=response_statistics(rollouts),
                advantages=learnt.advantages,
                update=learnt.update,
                lag=lag_statistics(used, stale, version=version, idle=self.pipe.idle()) if lag else None,
                gradient_retries=learnt.retries,
                sampled_tokens=tokens,
                dropped_problems=dropped,
                rounding_changes=len(progress.changes),
            )
        )
        return not learnt.diverged

    def verify(self, step: int) -> Agreement:
        """Probe the pushed weights before learning from anything that they sample, and charge the probe."""
        answered, found = check_weights(
            learner=self.learner,
            sampler=self.sampler,
            problems=self.order.problems.head(PROBED),
            samples=1,
            run_id=self.run.run_id,
            # Whole responses would take as long as a batch, and the learner would wait for them.
            max_new_tokens=PROBE_TOKENS,
        )
        self.meter.charge(step, answered.with_columns(cohort=pl.lit("eval")))
        return found

    def abandon(self) -> None:
        """Charge generated rollouts that will not be learnt from to the step that would have come next."""
        unused = self.pipe.abandon()
        if unused is not None and len(unused):
            self.meter.charge(self.progress.step + 1, unused.with_columns(cohort=pl.lit("unused")))

    def charge(self, step: int, rollouts: pl.DataFrame, stale: pl.DataFrame) -> int:
        """Charge and count the rollouts of a step, by cohort; return their response tokens."""
        if len(stale):
            dropped = stale.with_columns(cohort=pl.lit("stale"), zero_variance=pl.lit(value=False))
            rollouts = pl.concat([rollouts, dropped], how="diagonal_relaxed")
        self.meter.charge(step, rollouts)
        tokens = int(rollouts["response_ids"].list.len().sum())
        self.progress.rollouts += len(rollouts)
        self.progress.tokens += tokens
        return tokens

    def evaluate(self) -> None:
        """Evaluate and charge the evaluation, if there is an evaluator."""
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
        row = dict(result.row)
        if self.learner.config.pipeline.lag:
            row["begun_rollouts"] = progress.rollouts + len(progress.begun) * self.run.batch_rollouts
        progress.evals.append(row)
        self.watch(
            EvaluationRecord(
                step=progress.step, rollouts=progress.rollouts, scores=dict(result.scores), evaluate_seconds=seconds
            )
        )

    def save_if_due(self, saved_at: int, *, evaluated: bool) -> int:
        """Save a checkpoint if one is due; return the step of the newest one."""
        step, evaluations = self.progress.step, len(self.progress.evals) if evaluated else None
        if self.checkpoints is None or not self.checkpoints.due(step=step, evaluations=evaluations):
            return saved_at
        self.save()
        return step

    def save(self) -> None:
        """Save a checkpoint of the current state, if checkpoints are used."""
        if self.checkpoints is None:
            return
        tensors, values = self.learner.state()
        pipe, of_pipe = self.pipe.state()
        self.checkpoints.save(
            Checkpoint(
                step=self.progress.step,
                tensors=tensors,
                values=values,
                progress={**self.progress.saved(), "pipe": of_pipe},
                settings=self.settings,
                pipe=pipe,
            )
        )


def sync_and_check(*, learner: Updater, sampler: Sampler, problems: pl.DataFrame, run_id: str) -> pl.DataFrame:
    """Sync, answer four problems twice and compare log-probabilities; return the responses, which must be charged.

    A diverged policy cannot be compared; ``train`` then detects the divergence and ends the run as before.

    Raises:
        LearnerError: The sampler reports weights of another type (``dtype``) than the tolerances are for.
        SyncError, DivergenceError: See ``check_weights``.
    """
    told, dtype = learner.config.sampler_dtype, getattr(sampler, "dtype", None)
    if dtype not in (None, told) and not learner.config.sync.given:
        raise LearnerError(f"sampler_dtype is {told!r}, and the sampler's weights are in {dtype}: it must be {dtype!r}")
    sampler.sync(learner.weights(), learner.version)
    few = problems.head(PROBED)
    return check_weights(learner=learner, sampler=sampler, problems=few, samples=2, run_id=run_id)[0]


def check_weights(
    *, learner: Updater, sampler: Sampler, problems: pl.DataFrame, samples: int, run_id: str, **limit: int
) -> tuple[pl.DataFrame, Agreement]:
    """Answer problems with the sampler's weights, and compare its log-probabilities with the learner's.

    Returns the responses, which must be charged, and their agreement: infinite distances if the learner has diverged.
    For the base model, divergence is an error (``DivergenceError``). ``limit`` is ``max_new_tokens`` or nothing.
    """
    rollouts = sampler.sample(
        problems, samples=samples, seed=0, step=learner.version, phase="canary", run_id=run_id, **limit
    )
    check_sampled(rollouts, problems, source=_answer_of(sampler))
    check_answers(rollouts, problems, samples=samples, source=_answer_of(sampler))
    found = BROKEN
    try:
        with _broken_logprobs_named(rollouts):
            found = learner.agreement(rollouts)
            check_sync(found, learner.config, step=learner.version + 1)
    except DivergenceError:
        if learner.version == 0:
            raise
    stamped = set(rollouts["weights_version"])
    if stamped != {learner.version}:
        raise SyncError(
            f"the sampler answered with weights of version {sorted(stamped)}, and the learner is at {learner.version}"
        )
    return rollouts, found


@contextmanager
def _broken_logprobs_named(rollouts: pl.DataFrame) -> Iterator[None]:
    """Name the response whose log-probability is not a number, while the learner's are: nothing was learnt from it."""
    try:
        yield
    except SyncError:
        check_finite(rollouts.filter(pl.col("finish_reason") != "aborted"))
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """The outcome of learning from a step's responses.

    Attributes:
        update: Outcome of the optimizer steps; None if there was nothing to learn from or the policy diverged.
        measure_seconds: Wall time of measuring the batch, which is left out of comparisons.
        diverged: Whether the policy has diverged. Optimizer steps of this batch before the failed one were taken; the
            version of the weights was not incremented.
    """

    update: UpdateReport | None = None
    advantages: AdvantageStatistics | None = None
    measure_seconds: float = field(default=0.0, compare=False)
    retries: int = 0
    diverged: bool = False


def learn(*, learner: Updater, run: RunConfig, step: int, rollouts: pl.DataFrame) -> Learnt:
    """Learn from a step's responses.

    A batch with filtered groups only leaves the learner unchanged. An optimizer step with numbers that are not finite
    is retried once on the same responses, since a device may err once; a policy that has diverged fails again.

    Args:
        rollouts: All of the step's responses, with the columns of ``with_cohorts``.

    Raises:
        SyncError: Weights other than the learner's sampled the responses.
        LearnerError: No advantages or no update can be computed from the responses.
    """
    if rollouts.filter(pl.col("cohort") == "trained").is_empty():
        return Learnt()
    config, retries = learner.config, 0

    def tried(call: Callable[[], Result]) -> Result | None:
        """Make a call, and retry it once if the policy has diverged; return None if it fails twice."""
        nonlocal retries
        for again in (True, False):
            try:
                with _broken_logprobs_named(rollouts):
                    return call()
            except DivergenceError as error:
                logger.warning("run %s: %s", run.run_id, error)
                retries += again
        return None

    began = perf_counter()
    # Measure only responses that are needed: advantages that depend on measurements need all responses behind them,
    # other advantages only those that are learnt from.
    if config.measures_for_advantages:
        measured = tried(partial(learner.measure, estimated(rollouts, config)))
        batch = None if measured is None else prepare(measured, config)
    else:
        batch = prepare(rollouts, config)
        batch = tried(partial(learner.measure, batch)) if config.measures_first else batch
    taken = perf_counter() - began if config.measures_first else 0.0
    if batch is None:
        return Learnt(measure_seconds=taken, retries=retries, diverged=True)
    advantages = advantage_statistics(batch)
    parts = list(minibatches(batch, config, seed=run.seed, step=step))
    reports = []
    for number, part in enumerate(parts, start=1):
        report = tried(partial(learner.update, part, advance=number == len(parts)))
        if report is None:
            return Learnt(advantages=advantages, measure_seconds=taken, retries=retries, diverged=True)
        reports.append(report)
    return Learnt(update=of_batch(reports), advantages=advantages, measure_seconds=taken, retries=retries)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSteps:
    """A meter without records that admits a number of steps in the whole run, including those before a checkpoint."""

    limit: int

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise LearnerError(f"limit is {self.limit}; a run must have 1 step or more")

    def admit(self, *, step: int, rollouts: int) -> bool:
        """Return whether a step, counted from 1, may be taken."""
        return step <= self.limit

    def reserve(self, rollouts: int, /) -> None:
        """Do nothing."""

    def charge(self, step: int, rollouts: pl.DataFrame, /) -> None:
        """Do nothing."""


class Ahead:
    """A pipe of whole batches: each is sampled when it is begun, with the weights of that time.

    With a lag of 0 sampling and updates alternate; with a lag of k, batch t is sampled with version t − 1 − k.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._batches: dict[int, pl.DataFrame] = {}

    def begin(self, problems: pl.DataFrame, *, samples: int, seed: int, step: int, run_id: str) -> None:
        """Sample a step's batch; see ``Pipe.begin``."""
        self._batches[step] = self._sampler.sample(
            problems, samples=samples, seed=seed, step=step, phase="train", run_id=run_id
        )

    def take(self, step: int) -> pl.DataFrame:
        """Return a step's batch; see ``Pipe.take``."""
        return self._batches.pop(step)

    def push(self, weights: Iterable[tuple[str, torch.Tensor]], version: int, /) -> None:
        """Sync; see ``Pipe.push``."""
        self._sampler.sync(weights, version)

    def abandon(self) -> pl.DataFrame | None:
        """Return the batches that were not taken; see ``Pipe.abandon``."""
        batches = [self._batches.pop(step) for step in sorted(self._batches)]
        return pl.concat(batches, how="diagonal_relaxed") if batches else None

    def idle(self) -> Mapping[str, float]:
        """Return nothing: sampler and learner always wait for each other."""
        return {}

    def state(self) -> tuple[Mapping[str, torch.Tensor], dict[str, Any]]:
        """Return the batches that were not taken, as bytes in Arrow's IPC format; see ``Pipe.state``."""
        found = {}
        for step, batch in self._batches.items():
            batch.write_ipc(stream := BytesIO())
            found[f"batch.{step}"] = torch.frombuffer(bytearray(stream.getvalue()), dtype=torch.uint8)
        return found, {}

    def load_state(self, tensors: Mapping[str, torch.Tensor], values: dict[str, Any]) -> None:
        """Restore the batches of a state; see ``Pipe.load_state``."""
        for name in tensors:
            stored = BytesIO(tensors[name].numpy().tobytes())
            self._batches[int(name.removeprefix("batch."))] = pl.read_ipc(stored, use_pyarrow=False)


def without_stale(rollouts: pl.DataFrame, *, version: int, lag: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Split a batch into groups that a version of the weights may learn from, and groups with a stale response."""
    late = (pl.col("weights_version") < version - lag) & (pl.col("finish_reason") != "aborted")
    old = rollouts.filter(late)["problem_id"].unique()
    is_old = pl.col("problem_id").is_in(old.implode())
    return rollouts.filter(~is_old), rollouts.filter(is_old)

"""One run: the order of its problems, the settings it depends on, its progress, and how it resumes."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl

from ..config import ROUNDING, LearnerConfig, RunConfig
from ..errors import CheckpointError, LearnerError, RankError
from ..protocols import Updater
from ..saving.checkpoint import Checkpoint, Checkpoints

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A position in the order of the problems, from which a run can resume.

    Attributes:
        number: The pass, counted from 0.
        taken: Batches of it that were taken.
        dropped: Problems that are left out of this pass and all later ones.
        answers: For each answered problem the numbers of right answers and of all answers, if problems may be dropped.
    """

    number: int = 0
    taken: int = 0
    dropped: tuple[str, ...] = ()
    answers: Mapping[str, tuple[int, int]] = field(default_factory=dict)


class ProblemOrder:
    """Shuffled passes over the problems, cut into batches of ``problems_per_batch``.

    The shuffle of a pass depends only on the seed and the ``problem_id``. Runs whose batch sizes divide the number of
    problems therefore meet the same problems in the same order; otherwise each pass leaves out those that do not fill a
    batch.

    With ``drop_above``, a problem whose pass rate over all its answers is at least this is left out of all later passes
    (no-positive resampling, ScaleRL, arXiv 2510.13786); the others keep their order within the shuffle. If fewer than
    B_p would remain, the B_p problems with the lowest pass rates stay and no more are dropped. Ties go to the first
    ``problem_id``, and a problem without answers counts as 0.
    """

    def __init__(
        self, problems: pl.DataFrame, *, problems_per_batch: int, seed: int, drop_above: float | None = None
    ) -> None:
        if problems_per_batch > len(problems):
            raise LearnerError(
                f"problems_per_batch is {problems_per_batch}, and there are {len(problems)} training problems: "
                "a problem cannot be twice in one batch"
            )
        repeated = problems["problem_id"].is_duplicated()
        if repeated.any():
            raise LearnerError(f"problem {problems['problem_id'].filter(repeated)[0]} occurs twice among the problems")
        self.problems = problems.sort("problem_id")
        self._problems_per_batch, self._seed, self._drop_above = problems_per_batch, seed, drop_above

    def batch(self, cursor: Cursor) -> pl.DataFrame:
        """Problems of the batch at a cursor, sorted by ``problem_id``, without repeats."""
        shuffled = np.random.default_rng([self._seed, cursor.number]).permutation(len(self.problems))
        if cursor.dropped:
            gone = self.problems["problem_id"].is_in(cursor.dropped).to_numpy()
            shuffled = shuffled[~gone[shuffled]]
        # Batches never span two passes, so that no problem occurs twice in a batch.
        first = cursor.taken * self._problems_per_batch
        return self.problems[np.sort(shuffled[first : first + self._problems_per_batch])]

    def learnt(self, cursor: Cursor, rollouts: pl.DataFrame) -> Cursor:
        """Return a cursor with a batch's answers counted: right if the reward is 1 or more, and not if aborted."""
        if self._drop_above is None:
            return cursor
        answers = dict(cursor.answers)
        right = (pl.col("reward") >= 1).cast(pl.Int64).sum()
        completed = rollouts.filter(pl.col("finish_reason") != "aborted")
        found = completed.group_by("problem_id").agg(right, pl.len().cast(pl.Int64)).sort("problem_id")
        for problem_id, correct, count in found.iter_rows():
            before = answers.get(problem_id, (0, 0))
            answers[problem_id] = (before[0] + correct, before[1] + count)
        return replace(cursor, answers=answers)

    def after(self, cursor: Cursor) -> Cursor:
        """Return the cursor of the next batch. The answers so far decide what a new pass leaves out."""
        left = len(self.problems) - len(cursor.dropped)
        if cursor.taken + 1 < left // self._problems_per_batch:
            return replace(cursor, taken=cursor.taken + 1)
        return Cursor(number=cursor.number + 1, dropped=self._dropped(cursor), answers=cursor.answers)

    def _dropped(self, cursor: Cursor) -> tuple[str, ...]:
        """Problems to leave out of the next pass."""
        if self._drop_above is None:
            return ()
        rates = {name: right / count for name, (right, count) in cursor.answers.items()}
        gone = set(cursor.dropped)
        left = [name for name in self.problems["problem_id"] if name not in gone]
        left.sort(key=lambda name: (rates.get(name, 0.0), name))
        unsolved = sum(rates.get(name, 0.0) < self._drop_above for name in left)
        return tuple(sorted((*cursor.dropped, *left[max(unsolved, self._problems_per_batch) :])))


CHANGES_NO_RESULT = ("sync.", "sampler_dtype", "entropy.measured")
"""Settings that may change when a run resumes: they decide when it stops and what it reports. Settings that change the
order of sums (``config.ROUNDING``), such as the micro-batch size, change the last digits and must be named in
``Checkpoints``."""
NOT_TRAINED_ON = ("pass_rate", "pass_rate_samples")
"""Columns of problems with their measured difficulty."""


def settings_of(run: RunConfig, config: LearnerConfig, problems: pl.DataFrame) -> dict[str, Any]:
    """Return the settings that a run depends on, as plain values by names such as ``optimizer.beta1``; no budget."""
    found = asdict(run)
    for name, value in asdict(config).items():
        found |= {f"{name}.{key}": each for key, each in value.items()} if isinstance(value, dict) else {name: value}
    read = problems.select(sorted(set(problems.columns) - set(NOT_TRAINED_ON))).sort("problem_id")
    found["problems"] = f"{len(read)} with hash {sha256(read.write_ndjson().encode()).hexdigest()[:12]}"
    return {name: value for name, value in found.items() if not name.startswith(CHANGES_NO_RESULT)}


@dataclass(slots=True, kw_only=True)
class Progress:
    """The progress of a run.

    Attributes:
        rollouts: Rollouts generated for training so far, whatever became of them.
        tokens: Their response tokens.
        cursor: Position of the next batch in the problems, or of the last begun batch if there are any.
        begun: The problems (``problem_id``) of each batch that was begun and not learnt from, in order.
        drained: The step at which the budget admitted no further batch; batches begun by then are still learnt from. A
            longer run continues from the checkpoint of that step. None before.
        pipe: The pipe's contents in a checkpoint: its tensors and plain values.
        changes: Settings that changed when the run resumed, each as ``[before, after]``, with the ``step``: from there
            on the run is the same only up to rounding.
        diverged_at: The step whose gradient was not finite twice, which ended the run; None otherwise. Its rollouts are
            counted, its update was not made. It is never saved, since the run would find it again.
    """

    step: int = 0
    rollouts: int = 0
    tokens: int = 0
    evals: list[dict[str, Any]] = field(default_factory=list)
    cursor: Cursor = field(default_factory=Cursor)
    begun: list[list[str]] = field(default_factory=list)
    drained: int | None = None
    pipe: tuple[Mapping[str, Any], dict[str, Any]] = field(default_factory=lambda: ({}, {}))
    changes: list[dict[str, Any]] = field(default_factory=list)
    diverged_at: int | None = None

    def saved(self) -> dict[str, Any]:
        """Return a checkpoint's progress except for its step, as plain values."""
        names = [each.name for each in fields(self) if each.name not in ("step", "pipe", "diverged_at")]
        # Copy, since a checkpoint may be written while the run continues.
        return deepcopy({name: getattr(self, name) for name in names} | {"cursor": asdict(self.cursor)})

    def restored(self, run: RunConfig) -> int:
        """Return how many rollouts of begun batches a checkpoint restores: those of ``complete`` groups."""
        return int(self.pipe[1].get("complete", len(self.begun) * run.batch_rollouts))

    @classmethod
    def read(cls, step: int, saved: Mapping[str, Any], *, pipe: Mapping[str, Any] | None = None) -> Progress:
        """Restore the progress from the values of ``saved``, read from JSON, with the pipe's values and tensors."""
        cursor = saved["cursor"]
        answers = {name: (right, count) for name, (right, count) in cursor["answers"].items()}
        cursor = Cursor(**cursor | {"dropped": tuple(cursor["dropped"]), "answers": answers})
        return cls(**{**saved, "step": step, "cursor": cursor, "pipe": (pipe or {}, saved.get("pipe", {}))})


OF_A_BRANCH = ("run_id", "optimizer.decay", "optimizer.decay_after", "optimizer.decay_steps")
"""Settings in which a branch may differ from its trunk."""


def restore(
    *, learner: Updater, checkpoints: Checkpoints, run: RunConfig, problems: pl.DataFrame, ended: bool = False
) -> Progress:
    """Continue from the newest intact checkpoint, or start at step 0.

    A run with a lag that has ended resumes from before its last batches, after which it began no others: a longer run
    would have begun more.

    Args:
        learner: Loads the checkpoint's state; unchanged if there is none.
        ended: Whether to load the policy from the end of such a run, from which the run cannot continue.

    Raises:
        CheckpointError: All checkpoints are damaged, or the newest is of another version, another base model, other
            settings or other problems.
    """
    saved = checkpoints.newest()
    if saved is None:
        return Progress()
    if (drained := saved.progress.get("drained")) is not None and not ended:
        saved = checkpoints.read(drained)
    changed = _changed(saved, run, learner.config, problems)
    if refused := changed.keys() - checkpoints.may_change:
        hint = ""
        if refused <= set(ROUNDING):
            hint = f", or, as that changes rounding only, with Checkpoints(may_change={sorted(refused)})"
        raise CheckpointError(
            f"{checkpoints.folder}: the checkpoint of step {saved.step} is of a run with other settings "
            f"({_said(changed)}): continue with those{hint}, or start the run in another folder"
        )
    progress = _continued(learner, saved, checkpoints.folder)
    if changed:
        logger.warning(
            "run %s goes on from step %d with other settings (%s): it is the same to rounding, and not bit for bit",
            run.run_id,
            saved.step,
            _said(changed),
        )
        progress.changes.append({"step": saved.step, **changed})
    return progress


def branch(*, learner: Updater, trunk: Checkpoints, run: RunConfig, problems: pl.DataFrame) -> Progress:
    """Start a run with a decaying learning rate from a checkpoint of a run with a constant one, its trunk.

    The branch equals, bit for bit, a run with these settings from the beginning, but does not repeat the steps up to
    ``optimizer.decay_after``, which the trunk has taken and paid for. Later it resumes with ``restore``. A schedule
    counts only batches that were learnt from, so a decay begins later if the trunk has met others.

    Args:
        trunk: Checkpoints of the trunk, with this step in ``keep_steps``; they are not changed.
        run: The branch: the same as the trunk except for its ``run_id``.

    Raises:
        CheckpointError: The settings name no such step; the checkpoint is missing, damaged or of another version; its
            learning rate was not constant; or problems, base model or settings other than the decay's differ.
    """
    schedule = learner.config.optimizer
    if not schedule.decay_after:
        raise CheckpointError(
            f"a branch needs the step at which it leaves its trunk, and optimizer.decay_after is 0 (decay is "
            f"{schedule.decay}): it must be the step of a checkpoint of {trunk.folder}"
        )
    saved = trunk.read(schedule.decay_after)
    if (drained := saved.progress.get("drained")) is not None:
        raise CheckpointError(
            f"{trunk.folder}: the trunk began no batch after step {drained}, so that no branch leaves it at step "
            f"{saved.step}: the trunk must be longer by more than pipeline.lag batches"
        )
    if (decay := saved.settings.get("optimizer.decay")) != "constant":
        raise CheckpointError(
            f"{trunk.folder}: the checkpoint of step {saved.step} is of a run whose decay is {decay}: a branch begins "
            "from one whose decay is constant"
        )
    if changed := _changed(saved, run, learner.config, problems, but=OF_A_BRANCH):
        raise CheckpointError(
            f"{trunk.folder}: the checkpoint of step {saved.step} is of a run with other settings ({_said(changed)}): "
            f"a branch may differ from its trunk in {', '.join(OF_A_BRANCH)} only"
        )
    return replace(_continued(learner, saved, trunk.folder), evals=[])


def _changed(
    saved: Checkpoint, run: RunConfig, config: LearnerConfig, problems: pl.DataFrame, *, but: Collection[str] = ()
) -> dict[str, list[Any]]:
    """Settings in which a checkpoint differs from a run, except for those in ``but``: old and new values."""
    # Through JSON, like the saved settings.
    was, now = saved.settings, json.loads(json.dumps(settings_of(run, config, problems)))
    names = sorted((now.keys() | was.keys()) - set(but))
    return {name: [was.get(name), now.get(name)] for name in names if was.get(name) != now.get(name)}


def _said(changed: Mapping[str, list[Any]]) -> str:
    return ", ".join(f"{name} was {before!r} and is {after!r}" for name, (before, after) in changed.items())


def _continued(learner: Updater, saved: Checkpoint, folder: Path) -> Progress:
    """Load a checkpoint into the learner and return its progress."""
    try:
        progress = Progress.read(saved.step, saved.progress, pipe=saved.pipe)
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{folder}: the progress in the checkpoint of step {saved.step} cannot be read "
            f"({type(error).__name__}: {error}), as where another version wrote it; delete the folder to start the run "
            "again"
        ) from None
    try:
        learner.load_state(saved.tensors, saved.values)
    except RankError:
        raise
    except LearnerError as error:
        raise CheckpointError(f"{folder}: the checkpoint of step {saved.step} does not fit: {error}") from None
    return progress


def through_deaths(attempt: Callable[[], Result], *, checkpoints: Checkpoints, tries: int = 3) -> Result:
    """Run, and resume from the newest checkpoint if a rank has died, as long as the run makes progress.

    Args:
        attempt: Everything from ``learner.reset``, which starts new ranks, to ``train``, with a meter that continues.
        tries: How often an attempt may fail at the same checkpoint.
    """
    failed, step = 0, checkpoints.newest_step()
    while True:
        try:
            return attempt()
        except RankError as error:
            reached = checkpoints.newest_step()
            failed, step = 1 if reached != step else failed + 1, reached
            if failed >= tries:
                raise
            logger.warning("%s; the run goes on from step %d with new ranks", error, reached or 0)

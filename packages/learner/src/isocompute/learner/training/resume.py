"""How a run goes on: from its newest checkpoint, from a trunk's, and through the deaths of ranks."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from ..config import ROUNDING, LearnerConfig, RunConfig
from ..errors import CheckpointError, LearnerError, RankError
from ..protocols import Updater
from ..saving.checkpoint import Checkpoint, Checkpoints
from .run import Progress, settings_of

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
OF_A_BRANCH = ("run_id", "optimizer.decay", "optimizer.decay_after", "optimizer.decay_steps")
"""Settings in which a branch may differ from its trunk."""


def restore(
    *, learner: Updater, checkpoints: Checkpoints, run: RunConfig, problems: pl.DataFrame, ended: bool = False
) -> Progress:
    """Continue from the newest checkpoint that is whole, or start at step 0.

    A run with a lag that has ended goes on from before its last batches, which no others followed: a longer one does
    not begin with these.

    Args:
        learner: Takes over the state of the checkpoint; left as it is where there is none.
        run: The cell, as ``train`` is given it; so are the problems.
        ended: Whether to take over the policy at the end of such a run, with which it cannot go on.

    Raises:
        CheckpointError: All checkpoints are damaged, or the newest is one of another version, another base model,
            other settings or other problems.
    """
    saved = checkpoints.newest()
    if saved is None:
        return Progress(step=0, rollouts=0, tokens=0, evals=[])
    drained = saved.progress.get("drained")
    if drained is not None and not ended:
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
    """Start a run whose rate decays from a checkpoint of one whose rate is constant, its trunk.

    It is, bit for bit, what a run with these settings would be from its beginning, without the steps up to
    ``optimizer.decay_after``, which the trunk has taken and paid for. A branch that was started continues with
    ``restore`` from a folder of its own.

    Args:
        learner: Takes over the state of the trunk after step ``optimizer.decay_after`` of its settings. As a schedule
            counts only batches that were learnt from, a decay begins later than the branch where the trunk has met
            others.
        trunk: Checkpoints of the trunk, with this step in ``keep_steps``; nothing is changed there.
        run: The branch, as ``train`` is given it: as the trunk but for its ``run_id``.

    Returns:
        How far the trunk was after that step, without its evaluations.

    Raises:
        CheckpointError: The settings name no such step; the checkpoint is missing, damaged or one of another version;
            its rate was not constant; or settings beside those of the decay, problems or the base model are others.
    """
    schedule = learner.config.optimizer
    if not schedule.decay_after:
        raise CheckpointError(
            f"a branch needs the step at which it leaves its trunk, and optimizer.decay_after is 0 (decay is "
            f"{schedule.decay}): it must be the step of a checkpoint of {trunk.folder}"
        )
    saved = trunk.read(schedule.decay_after)
    drained = saved.progress.get("drained")
    if drained is not None:
        raise CheckpointError(
            f"{trunk.folder}: the trunk began no batch after step {drained}, so that no branch leaves it at step "
            f"{saved.step}: the trunk must be longer by more than pipeline.lag batches"
        )
    decay = saved.settings.get("optimizer.decay")
    if decay != "constant":
        raise CheckpointError(
            f"{trunk.folder}: the checkpoint of step {saved.step} is of a run whose decay is {decay}: a branch begins "
            "from one whose decay is constant"
        )
    changed = _changed(saved, run, learner.config, problems, but=OF_A_BRANCH)
    if changed:
        raise CheckpointError(
            f"{trunk.folder}: the checkpoint of step {saved.step} is of a run with other settings ({_said(changed)}): "
            f"a branch may differ from its trunk in {', '.join(OF_A_BRANCH)} only"
        )
    return replace(_continued(learner, saved, trunk.folder), evals=[])


def _changed(
    saved: Checkpoint, run: RunConfig, config: LearnerConfig, problems: pl.DataFrame, *, but: Collection[str] = ()
) -> dict[str, list[Any]]:
    """Settings of a checkpoint, but for some, that are not those of a run: what each was and is."""
    # Through JSON, as the others were.
    now = json.loads(json.dumps(settings_of(run, config, problems)))
    names = sorted((now.keys() | saved.settings.keys()) - set(but))
    pairs = {name: [saved.settings.get(name), now.get(name)] for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _said(changed: Mapping[str, list[Any]]) -> str:
    return ", ".join(f"{name} was {before!r} and is {after!r}" for name, (before, after) in changed.items())


def _continued(learner: Updater, saved: Checkpoint, folder: Path) -> Progress:
    """Let the learner take over a checkpoint, and return how far its run was."""
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
    """Run, and run again from the newest checkpoint where a rank has died, as long as the run gets on.

    Args:
        attempt: Everything from ``learner.reset``, which starts new ranks, over ``restore`` and ``sync_and_check`` to
            ``train``; a meter that continues is part of it, too.
        tries: How often it may end from one and the same checkpoint.
    """
    failed, step = 0, checkpoints.newest_step()
    while True:
        try:
            return attempt()
        except RankError as error:
            reached = checkpoints.newest_step()
            failed = 1 if reached != step else failed + 1
            step = reached
            if failed >= tries:
                raise
            logger.warning("%s; the run goes on from step %d with new ranks", error, reached or 0)

"""Where a run starts: at step 0, at its newest checkpoint, or as a branch at a checkpoint of another run."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import polars as pl

from ..config import LearnerConfig
from ..errors import CheckpointError
from ..protocols import Updater
from ..saving.checkpoint import Checkpoint, Checkpoints
from .run import Progress, RunConfig, settings_of

OF_A_BRANCH = ("run_id", "optimizer.decay", "optimizer.decay_after", "optimizer.decay_steps")
"""Settings in which a branch may differ from its trunk."""


def restore(*, learner: Updater, checkpoints: Checkpoints, run: RunConfig, problems: pl.DataFrame) -> Progress:
    """Continue from the newest checkpoint that is whole, or start at step 0.

    Args:
        learner: Takes over the state of the checkpoint; left as it is where there is none.
        run: The cell, as ``train`` is given it.
        problems: Training problems, as ``train`` is given them.

    Returns:
        How far the run is.

    Raises:
        CheckpointError: All checkpoints are damaged, or the newest is one of another version, other settings or other
            problems.
        LearnerError: It is one of another model.
    """
    saved = checkpoints.newest()
    if saved is None:
        return Progress(step=0, rollouts=0, tokens=0, evals=[])
    changed = _changed(saved, run, learner.config, problems)
    if changed:
        raise CheckpointError(
            f"{checkpoints.folder}: the checkpoint of step {saved.step} is of a run with other settings ({changed}): "
            "continue with those, or start the run in another folder"
        )
    return _continued(learner, saved, checkpoints.folder)


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
        problems: Training problems, as ``train`` is given them.

    Returns:
        How far the trunk was after that step, without its evaluations.

    Raises:
        CheckpointError: The settings name no such step; the checkpoint is missing, damaged or one of another version;
            its rate was not constant, or settings other than those of the decay, or problems, are others.
        LearnerError: It is one of another model.
    """
    schedule = learner.config.optimizer
    if not schedule.decay_after:
        raise CheckpointError(
            f"a branch needs the step at which it leaves its trunk, and optimizer.decay_after is 0 (decay is "
            f"{schedule.decay}): it must be the step of a checkpoint of {trunk.folder}"
        )
    saved = trunk.read(schedule.decay_after)
    decay = saved.settings.get("optimizer.decay")
    if decay != "constant":
        raise CheckpointError(
            f"{trunk.folder}: the checkpoint of step {saved.step} is of a run whose decay is {decay}: a branch begins "
            "from one whose decay is constant"
        )
    changed = _changed(saved, run, learner.config, problems, but=OF_A_BRANCH)
    if changed:
        raise CheckpointError(
            f"{trunk.folder}: the checkpoint of step {saved.step} is of a run with other settings ({changed}): a "
            f"branch may differ from its trunk in {', '.join(OF_A_BRANCH)} only"
        )
    return replace(_continued(learner, saved, trunk.folder), evals=[])


def _changed(
    saved: Checkpoint, run: RunConfig, config: LearnerConfig, problems: pl.DataFrame, *, but: Collection[str] = ()
) -> str:
    """Say which settings of a checkpoint, but for some, are not those of a run; empty where all are."""
    # Through JSON, as the others were.
    now = json.loads(json.dumps(settings_of(run, config, problems)))
    names = sorted((now.keys() | saved.settings.keys()) - set(but))
    changed = [name for name in names if now.get(name) != saved.settings.get(name)]
    return ", ".join(f"{name} was {saved.settings.get(name)!r} and is {now.get(name)!r}" for name in changed)


def _continued(learner: Updater, saved: Checkpoint, folder: Path) -> Progress:
    """Let the learner take over a checkpoint, and return how far its run was."""
    try:
        progress = Progress.restored(saved.step, saved.progress)
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{folder}: the progress in the checkpoint of step {saved.step} cannot be read "
            f"({type(error).__name__}: {error}), as where another version wrote it; delete the folder to start the run "
            "again"
        ) from None
    learner.load_state(saved.tensors, saved.values)
    return progress

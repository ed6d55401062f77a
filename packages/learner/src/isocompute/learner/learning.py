"""Learning from the responses of one step: in one optimizer step, or in several."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import polars as pl

from .errors import DivergenceError
from .objective.minibatches import minibatches
from .objective.prepare import prepare
from .protocols import Updater
from .records import AdvantageStatistics, UpdateReport
from .reports import of_batch
from .run import RunConfig
from .statistics import advantage_statistics

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """What became of a step's responses.

    Attributes:
        update: What the optimizer steps did; None where nothing was to be learnt from, or the policy diverged.
        advantages: The advantages learnt from; None where there is none.
        retries: How often an optimizer step was tried again.
        diverged: Whether the policy has diverged. The optimizer steps of this batch before the one that failed were
            made; the version of the weights was not counted up.
    """

    update: UpdateReport | None = None
    advantages: AdvantageStatistics | None = None
    retries: int = 0
    diverged: bool = False


def learn(*, learner: Updater, run: RunConfig, step: int, rollouts: pl.DataFrame) -> Learnt:
    """Learn from a step's responses.

    A batch of filtered groups only teaches nothing, and leaves the learner as it is. An optimizer step whose numbers
    are not finite is tried once more on the same responses, since a device may err once; a policy that has diverged
    errs again.

    Args:
        learner: Learns; its version is counted up by the last optimizer step of the batch.
        run: The cell.
        step: The step.
        rollouts: All of its responses, with the columns of ``with_cohorts``.

    Raises:
        SyncError: Other weights than the learner's sampled the responses.
        LearnerError: No advantages or no update can be made of them.
    """
    config, tries = learner.config, _Tries(run.run_id)
    # Those that failed have no reward; those that are filtered may be a part of their group's baseline.
    rollouts = rollouts.filter(pl.col("cohort") != "failed")
    if rollouts.filter(pl.col("cohort") == "trained").is_empty():
        return Learnt()
    if config.measures_first:
        measured = tries.attempt(partial(learner.measure, rollouts))
        if measured is None:
            return Learnt(retries=tries.retries, diverged=True)
        rollouts = measured
    batch = prepare(rollouts, config)
    advantages = advantage_statistics(batch)
    parts = list(minibatches(batch, config, seed=run.seed, step=step))
    reports = []
    for number, part in enumerate(parts, start=1):
        report = tries.attempt(partial(learner.update, part, advance=number == len(parts)))
        if report is None:
            return Learnt(advantages=advantages, retries=tries.retries, diverged=True)
        reports.append(report)
    return Learnt(update=of_batch(reports), advantages=advantages, retries=tries.retries)


class _Tries:
    """Tries a call twice, and counts how often the second one was needed."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self.retries = 0

    def attempt(self, call: Callable[[], Result]) -> Result | None:
        """Return the result of a call, or None when it found twice that the policy has diverged."""
        for again in (True, False):
            try:
                return call()
            except DivergenceError as error:
                logger.warning("run %s: %s", self._run_id, error)
                self.retries += again
        return None

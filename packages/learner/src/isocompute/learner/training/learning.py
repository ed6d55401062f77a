"""Learning from the responses of one step: in one optimizer step, or in several."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TypeVar

import polars as pl

from ..errors import DivergenceError
from ..objective.minibatches import minibatches
from ..objective.prepare import estimated, prepare
from ..protocols import Updater
from ..records.statistics import advantage_statistics
from ..records.steps import AdvantageStatistics, UpdateReport
from ..records.updates import of_batch
from .run import RunConfig

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """What became of a step's responses.

    Attributes:
        update: What the optimizer steps did; None where nothing was to be learnt from, or the policy diverged.
        advantages: The advantages learnt from; None where there is none.
        measure_seconds: Wall time of measuring the batch; 0 where that was not needed. Two that differ in it alone are
            equal.
        retries: How often an optimizer step was tried again.
        diverged: Whether the policy has diverged. The optimizer steps of this batch before the one that failed were
            made; the version of the weights was not counted up.
    """

    update: UpdateReport | None = None
    advantages: AdvantageStatistics | None = None
    measure_seconds: float = field(default=0.0, compare=False)
    retries: int = 0
    diverged: bool = False


def learn(*, learner: Updater, run: RunConfig, step: int, rollouts: pl.DataFrame) -> Learnt:
    """Learn from a step's responses.

    A batch of filtered groups only teaches nothing, and leaves the learner as it is. An optimizer step whose numbers
    are not finite is tried once more on the same responses, since a device may err once; a policy that has diverged
    errs again.

    Args:
        learner: Learns; its version is counted up by the last optimizer step of the batch.
        rollouts: All of its responses, with the columns of ``with_cohorts``.

    Raises:
        SyncError: Other weights than the learner's sampled the responses.
        LearnerError: No advantages or no update can be made of them.
    """
    config, tries = learner.config, _Tries(run.run_id)
    if rollouts.filter(pl.col("cohort") == "trained").is_empty():
        return Learnt()
    began = perf_counter()
    batch = _prepared(learner, rollouts, tries)
    taken = perf_counter() - began if config.measures_first else 0.0
    if batch is None:
        return Learnt(measure_seconds=taken, retries=tries.retries, diverged=True)
    advantages = advantage_statistics(batch)
    parts = list(minibatches(batch, config, seed=run.seed, step=step))
    reports = []
    for number, part in enumerate(parts, start=1):
        report = tries.attempt(partial(learner.update, part, advance=number == len(parts)))
        if report is None:
            return Learnt(advantages=advantages, measure_seconds=taken, retries=tries.retries, diverged=True)
        reports.append(report)
    return Learnt(update=of_batch(reports), advantages=advantages, measure_seconds=taken, retries=tries.retries)


def _prepared(learner: Updater, rollouts: pl.DataFrame, tries: _Tries) -> pl.DataFrame | None:
    """The batch, with what was measured of it where that is needed; None when the policy has diverged.

    No response passes through the model for it that nothing needs: advantages that depend on what is measured need
    the responses that they are computed from, others only those that are learnt from.
    """
    config = learner.config
    if config.measures_for_advantages:
        measured = tries.attempt(partial(learner.measure, estimated(rollouts, config)))
        return None if measured is None else prepare(measured, config)
    batch = prepare(rollouts, config)
    return tries.attempt(partial(learner.measure, batch)) if config.measures_first else batch


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

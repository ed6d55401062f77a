"""From the settings of a sweep to its cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isocompute.budget import Allocation
from isocompute.learner import LearnerConfig

from ..settings.model import Preset, SweepConfig
from .cells import Cell, Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """A learning rate that works at some batch; others are scaled from it by √B (IsoCompute Playbook, Factor 3).

    Attributes:
        learning_rate: The learning rate.
        batch_rollouts: Its batch, B (rollouts).
    """

    learning_rate: float
    batch_rollouts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """What the cells of one problem set are made from.

    Attributes:
        preset: The preset.
        sweep: The sweep of the problem set.
        origin: What its cells share.
    """

    preset: Preset
    sweep: SweepConfig
    origin: Origin

    def pilot(self) -> list[Cell]:
        """One cell for each learning rate, at the pilot's batch."""
        pilot = self.sweep.pilot
        n, problems_per_batch = pilot.rollouts_per_problem, pilot.problems_per_batch
        return [
            self.cell(
                "pilot", n=n, problems_per_batch=problems_per_batch, seed=pilot.seed, rollouts=pilot.rollouts,
                evaluate_every=pilot.evaluate_every,
                anchor=Anchor(learning_rate=rate, batch_rollouts=n * problems_per_batch),
            )
            for rate in pilot.learning_rates
        ]  # fmt: skip

    def cells(self, anchor: Anchor) -> list[Cell]:
        """Every (n, B_p) and seed of the sweep."""
        return [
            self.cell(
                "sweep", n=n, problems_per_batch=problems_per_batch, seed=seed, rollouts=self.sweep.rollouts,
                evaluate_every=self.sweep.evaluate_every, anchor=anchor,
            )
            for n, problems_per_batch in self.sweep.grid()
            for seed in self.sweep.seeds
        ]  # fmt: skip

    def cell(
        self,
        purpose: str,
        *,
        n: int,
        problems_per_batch: int,
        seed: int,
        rollouts: int,
        evaluate_every: int,
        anchor: Anchor,
    ) -> Cell:
        """One cell, its learning rate scaled from the anchor.

        Args:
            purpose: ``sweep``, ``pilot`` or ``prescribe``.
            n: Rollouts per problem (group size).
            problems_per_batch: Problems per batch, B_p.
            seed: Seed of the run.
            rollouts: Budget, C.
            evaluate_every: Nominal rollouts between evaluations.
            anchor: The learning rate that the cell's is scaled from.
        """
        allocation = Allocation.within(rollouts, problems_per_batch=problems_per_batch, rollouts_per_problem=n)
        rate = allocation.learning_rate(anchor=anchor.learning_rate, anchor_batch=anchor.batch_rollouts)
        return Cell(
            purpose=purpose,
            origin=self.origin,
            rollouts_per_problem=n,
            problems_per_batch=problems_per_batch,
            seed=seed,
            rollouts=rollouts,
            evaluate_every=evaluate_every,
            evaluation_samples=self.preset.evaluation.samples,
            learner=LearnerConfig(
                learning_rate=rate,
                temperature=self.preset.sampling.temperature,
                **_with_horizon(self.sweep.learner, allocation.update_steps),
            ),
        )


def _with_horizon(learner: Mapping[str, Any], update_steps: int) -> dict[str, Any]:
    """The learner's settings, with the run's own length as the horizon of a schedule that needs one."""
    settings = dict(learner)
    if settings.get("decay", "constant") != "constant":
        settings.setdefault("decay_steps", update_steps)
    return settings

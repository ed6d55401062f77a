"""From the settings of a sweep to its cells."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from isocompute.learner import RunConfig

from ..errors import ExperimentError
from ..rates import Rates
from ..settings.learner import learner_config
from ..settings.model import Preset
from ..settings.sweep import DeclaredRate, SweepConfig
from .cells import Cell, Origin
from .foreign import CommandCell, CommandSurroundings


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """What the cells of one problem set are made from.

    Raises:
        ExperimentError: The grid of evaluations does not hold the sweep's budget, so that no end would be evaluated.
    """

    preset: Preset
    sweep: SweepConfig
    origin: Origin

    def __post_init__(self) -> None:
        sweep = self.sweep
        n, problems_per_batch = sweep.grid()[0]
        run = RunConfig(
            run_id="", rollouts_per_problem=n, problems_per_batch=problems_per_batch, seed=0,
            evaluate_every=sweep.evaluate_every, evaluations_per_octave=sweep.evaluations_per_octave,
        )  # fmt: skip
        if not run.evaluated_at(sweep.rollouts):
            raise ExperimentError(
                f"sweep.{self.origin.problem_set}.rollouts is {sweep.rollouts}, no point of the grid of evaluations "
                f"with {sweep.evaluations_per_octave} an octave of {sweep.evaluate_every}: the end would not be "
                "evaluated"
            )

    def declared_rates(self) -> Rates | None:
        """The learning rates where they are declared; None where pilots find them."""
        rate = self.sweep.learning_rate
        if not isinstance(rate, DeclaredRate):
            return None
        return Rates(rule=rate.rule, found={(rate.batch_rollouts, 1): rate.learning_rate})

    def trials(
        self, rates: Iterable[float] | None = None, *, at: Iterable[tuple[int, int]] | None = None
    ) -> list[Cell]:
        """One pilot cell for each seed, (n, B_p) and rate, none of a declared rate: all have a seed before one has two.

        Args:
            rates: Learning rates; by default those that a search begins with.
            at: Every (n, B_p); by default those that are searched.
        """
        pilot = self.sweep.search
        if pilot is None:
            return []
        tried = list(pilot.learning_rates if rates is None else rates)
        pairs = list(self.sweep.searched() if at is None else at)
        return [
            self.cell(
                "pilot", n=n, problems_per_batch=problems_per_batch, seed=seed, rollouts=pilot.rollouts,
                evaluate_every=pilot.evaluate_every, learning_rate=rate,
            )
            for seed in pilot.seeds
            for rate in tried
            for n, problems_per_batch in pairs
        ]  # fmt: skip

    def cells(self, rates: Rates) -> list[Cell]:
        """Every (n, B_p), rate factor and seed of the sweep."""
        return [
            self.cell(
                "sweep", n=n, problems_per_batch=problems_per_batch, seed=seed, rollouts=self.sweep.rollouts,
                evaluate_every=self.sweep.evaluate_every,
                learning_rate=float(f"{rates.at(n, problems_per_batch) * factor:.12g}"),
            )
            for n, problems_per_batch in self.sweep.grid()
            for factor in self.sweep.rate_factors
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
        learning_rate: float,
    ) -> Cell:
        """One cell."""
        learner = learner_config(self.sweep.learner, self.preset.sampling, learning_rate=learning_rate)
        if self.sweep.warmup_rollouts is not None:
            steps = max(1, round(self.sweep.warmup_rollouts / (n * problems_per_batch)))
            learner = replace(learner, optimizer=replace(learner.optimizer, warmup_steps=steps))
        kind = CommandCell if isinstance(self.origin.surroundings, CommandSurroundings) else Cell
        return kind(
            purpose=purpose,
            origin=self.origin,
            rollouts_per_problem=n,
            problems_per_batch=problems_per_batch,
            seed=seed,
            rollouts=rollouts,
            evaluate_every=evaluate_every,
            evaluations_per_octave=self.sweep.evaluations_per_octave if purpose == "sweep" else None,
            evaluation_samples=self.preset.evaluation.samples,
            learner=learner,
        )
